//! Other service proxies on this node: with `packets.mode = "auto"`, nodelb leaves new connections from outside to them.
//! Recognised are the rules of kube-proxy in nftables and IPVS, and the programs of Cilium at network devices.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use crate::node::addresses::Machine;
use crate::sockets::nf_tables::KubeProxyRules;

/// Another service proxy, by what it leaves in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceProxy {
    /// kube-proxy's table in nftables.
    NftablesTable,
    /// kube-proxy's chains of iptables, in nftables.
    IptablesChains,
    /// Virtual servers of IPVS.
    Ipvs,
    /// A program at a device that translates services.
    Program {
        /// Name of the program.
        name: String,
        /// Name of the device.
        device: String,
    },
}

impl fmt::Display for ServiceProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NftablesTable => f.write_str("the nftables table kube-proxy"),
            Self::IptablesChains => f.write_str("the iptables chain KUBE-SERVICES"),
            Self::Ipvs => f.write_str("virtual servers of IPVS"),
            Self::Program { name, device } => write!(f, "the program {name} at {device}"),
        }
    }
}

/// What was found, and what could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The other service proxies.
    pub proxies: BTreeSet<ServiceProxy>,
    /// Why rules of nftables are not known, if so. Reading them takes CAP_NET_ADMIN.
    pub rules_unknown: Option<String>,
}

/// Virtual servers of IPVS in this network namespace. The file exists if the module is loaded.
const IP_VS: &str = "/proc/net/ip_vs";

/// Where Cilium pins the links of its programs, in a directory for each device. Its programs there have these names.
const CILIUM_DEVICES: &str = "/sys/fs/bpf/cilium/devices";

/// Prefixes of programs that translate packets from other machines to services: of Cilium and of Calico.
const TRANSLATING: [&str; 3] = ["cil_from_netdev", "cil_to_netdev", "cali_from_hep"];

/// Looks for other service proxies, of which `rules` are those in nftables.
pub(crate) fn find(machine: &Machine, rules: io::Result<KubeProxyRules>) -> Findings {
    let mut findings = Findings::default();
    match rules {
        Ok(KubeProxyRules { has_table, has_chains }) => {
            findings.proxies.extend(has_table.then_some(ServiceProxy::NftablesTable));
            findings.proxies.extend(has_chains.then_some(ServiceProxy::IptablesChains));
        }
        Err(error) => findings.rules_unknown = Some(error.to_string()),
    }
    if fs::read_to_string(IP_VS).is_ok_and(|text| has_virtual_server(&text)) {
        findings.proxies.insert(ServiceProxy::Ipvs);
    }
    for (index, interface) in &machine.interfaces {
        let filters = nodelb_datapath::filters::at_device(*index).unwrap_or_default();
        let pinned = names(&Path::new(CILIUM_DEVICES).join(&interface.name).join("links"));
        let program = |name: String| ServiceProxy::Program { name, device: interface.name.clone() };
        findings.proxies.extend(translating(filters.into_iter().chain(pinned)).map(program));
    }
    findings
}

/// Whether IPVS has a virtual server: the first three lines are headings, and each server begins with its protocol.
fn has_virtual_server(text: &str) -> bool {
    text.lines().any(|line| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|protocol| line.starts_with(protocol)))
}

/// The names of programs that translate services.
fn translating(names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    names.filter_map(|name| {
        let known = TRANSLATING.into_iter().find(|known| name.starts_with(known))?;
        Some(known.to_owned())
    })
}

/// The names in a directory; none if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
#[path = "tests/proxies.rs"]
mod tests;
