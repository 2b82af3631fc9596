//! Other service proxies on this node: with `packets.mode = "auto"`, nodelb leaves new connections from outside to them.
//! Recognised are the rules of kube-proxy in nftables, iptables-legacy and IPVS, and the programs of Cilium and Calico at
//! network devices. All of these take privileges in the network namespace of this process: what any user can do, such as
//! listening on a port, is no evidence.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nodelb_report::problems::DroppingChain;

use crate::node::addresses::Machine;
use crate::sockets::nf_tables::ForeignRules;

/// Another service proxy, by what it leaves in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum ServiceProxy {
    #[strum(to_string = "the nftables table kube-proxy")]
    NftablesTable,
    /// Also those of iptables that writes to nftables.
    #[strum(to_string = "the iptables chain KUBE-SERVICES")]
    IptablesChains,
    #[strum(to_string = "virtual servers of IPVS")]
    Ipvs,
    /// A program at a device that translates services.
    #[strum(to_string = "the program {name} at {device}")]
    Program { name: String, device: String },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub proxies: BTreeSet<ServiceProxy>,
    /// The chains that drop forwarded packets, at the last search that could read rules.
    pub dropping: Vec<DroppingChain>,
    /// Whether a search has ever been complete.
    pub is_complete: bool,
    /// Why the last search is not complete, if so. Reading rules of nftables takes CAP_NET_ADMIN.
    pub error: Option<String>,
}

impl Findings {
    /// Adds what the search before this one has found, if this one could not read everything.
    pub(crate) fn after(mut self, last: &Self) -> Self {
        if self.error.is_some() {
            self.proxies.extend(last.proxies.iter().cloned());
            self.is_complete = last.is_complete;
            self.dropping.extend(last.dropping.iter().cloned());
            self.dropping.sort();
            self.dropping.dedup();
        }
        self
    }

    /// Takes a part of the search: what it has found, or why it could not be read.
    fn take(&mut self, part: io::Result<impl IntoIterator<Item = ServiceProxy>>) {
        match part {
            Ok(found) => self.proxies.extend(found),
            Err(error) => {
                self.is_complete = false;
                self.error.get_or_insert(error.to_string());
            }
        }
    }
}

/// Virtual servers of IPVS in this network namespace. The file exists if the module is loaded.
const IP_VS: &str = "/proc/net/ip_vs";

/// Where Cilium pins the links of its programs, in a directory for each device. Its programs there have these names.
const CILIUM_DEVICES: &str = "/sys/fs/bpf/cilium/devices";

/// Prefixes of programs that translate packets from other machines to services: of Cilium and of Calico.
const TRANSLATING: [&str; 3] = ["cil_from_netdev", "cil_to_netdev", "cali_from_hep"];

/// Looks for other service proxies. `rules` are those of others.
pub(crate) fn find(machine: &Machine, mut rules: io::Result<ForeignRules>) -> Findings {
    let mut findings = Findings { is_complete: true, ..Findings::default() };
    findings.dropping = rules.as_mut().map(|rules| mem::take(&mut rules.dropping)).unwrap_or_default();
    findings.take(rules.map(of_rules).map_err(|error| io::Error::other(format!("rules of kube-proxy: {error}"))));
    findings.take(ipvs());
    for (index, interface) in &machine.interfaces {
        let pinned = names(&Path::new(CILIUM_DEVICES).join(&interface.name).join("links"));
        let program = |name: String| ServiceProxy::Program { name, device: interface.name.clone() };
        let filters = nodelb_datapath::filters::at_device(*index);
        findings.take(filters.map(|filters| translating(filters.into_iter()).map(program)));
        findings.take(Ok(translating(pinned.into_iter()).map(program)));
    }
    findings
}

fn of_rules(ForeignRules { has_table, has_chains, .. }: ForeignRules) -> impl Iterator<Item = ServiceProxy> {
    let table = has_table.then_some(ServiceProxy::NftablesTable);
    table.into_iter().chain(has_chains.then_some(ServiceProxy::IptablesChains))
}

fn ipvs() -> io::Result<Option<ServiceProxy>> {
    match fs::read_to_string(IP_VS) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => Ok(has_virtual_server(&text?).then_some(ServiceProxy::Ipvs)),
    }
}

/// Whether IPVS has a virtual server: the first three lines are headings, and each server begins with its protocol.
fn has_virtual_server(text: &str) -> bool {
    text.lines().any(|line| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|protocol| line.starts_with(protocol)))
}

fn translating(names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    names.filter_map(|name| {
        let known = TRANSLATING.into_iter().find(|known| name.starts_with(known))?;
        Some(known.to_owned())
    })
}

/// The names of what root has put into a directory; none if it cannot be read. Everybody may make directories in a BPF
/// file system that is mounted without a mode.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let of_root = entries.filter(|entry| entry.metadata().is_ok_and(|it| it.uid() == 0));
    of_root.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
#[path = "tests/proxies.rs"]
mod tests;
