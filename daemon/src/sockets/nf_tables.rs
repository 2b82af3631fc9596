//! kube-proxy's rules: its table `kube-proxy` in nftables, or the chain `KUBE-SERVICES` of iptables, which writes to
//! nftables on current systems and has tables of its own as iptables-legacy.

use std::io;

use nodelb_datapath::xtables::LegacyTables;

use super::netfilter::{Netfilter, attribute};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KubeProxyRules {
    /// The table of its nftables mode, with chains.
    pub(crate) has_table: bool,
    pub(crate) has_chains: bool,
}

/// The table of kube-proxy's nftables mode, in the families ip and ip6 (KEP-3866).
const TABLE: &str = "kube-proxy";

/// The chain of kube-proxy's iptables mode.
const CHAIN: &str = "KUBE-SERVICES";

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN` of `linux/netfilter/nf_tables.h`.
const GET_CHAINS: u16 = 10 << 8 | 4;

/// The attributes with the names: `NFTA_CHAIN_TABLE` and `NFTA_CHAIN_NAME`.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;

/// `NFTA_CHAIN_HOOK` with `NFTA_HOOK_HOOKNUM`, and `NFTA_CHAIN_POLICY`; `NF_INET_FORWARD` and `NF_DROP`.
const CHAIN_HOOK: u16 = 4;
const HOOK_NUMBER: u16 = 1;
const HOOK_FORWARD: u32 = 2;
const CHAIN_POLICY: u16 = 5;
const POLICY_DROP: u32 = 0;

/// Looks for the rules of kube-proxy in this network namespace, in nftables and in these tables of iptables-legacy.
///
/// # Errors
/// If this process lacks CAP_NET_ADMIN, or the kernel does not answer.
pub(crate) fn find(legacy: LegacyTables) -> io::Result<KubeProxyRules> {
    let KubeProxyRules { has_table, has_chains } = in_nftables()?;
    Ok(KubeProxyRules { has_table, has_chains: has_chains || legacy.has_chain(CHAIN)? })
}

/// The rules in nftables. There are none if the kernel does not have it. A table without chains translates nothing.
fn in_nftables() -> io::Result<KubeProxyRules> {
    let mut rules = KubeProxyRules::default();
    let Some(socket) = Netfilter::open()? else { return Ok(rules) };
    socket.list(GET_CHAINS, &[], |attributes| {
        rules.has_table |= name(attributes, CHAIN_TABLE).is_some_and(|table| table == TABLE);
        rules.has_chains |= name(attributes, CHAIN_NAME).is_some_and(|chain| chain == CHAIN);
    })?;
    Ok(rules)
}

/// The chains of nftables and iptables that drop forwarded packets unless a rule accepts them, such as `the chain FORWARD of the
/// table filter`.
///
/// # Errors
/// If this process lacks CAP_NET_ADMIN, or the kernel does not answer.
pub fn forward_drops() -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    if let Some(socket) = Netfilter::open()? {
        socket.list(GET_CHAINS, &[], |attributes| {
            if drops_forwarded(attributes)
                && let (Some(table), Some(chain)) = (name(attributes, CHAIN_TABLE), name(attributes, CHAIN_NAME))
            {
                found.push(format!("the chain {chain} of the table {table}"));
            }
        })?;
    }
    let legacy = LegacyTables::read()?.drop_forwarded()?;
    found.extend(legacy.into_iter().map(|tables| format!("the chain FORWARD of {tables}")));
    Ok(found)
}

/// Whether the chain is one for forwarded packets with the policy to drop them.
fn drops_forwarded(attributes: &[u8]) -> bool {
    let number = |attributes: &[u8], kind| Some(u32::from_be_bytes(*attribute(attributes, kind)?.first_chunk()?));
    attribute(attributes, CHAIN_HOOK).and_then(|hook| number(hook, HOOK_NUMBER)) == Some(HOOK_FORWARD)
        && number(attributes, CHAIN_POLICY) == Some(POLICY_DROP)
}

fn name(attributes: &[u8], kind: u16) -> Option<String> {
    let text = String::from_utf8_lossy(attribute(attributes, kind)?);
    Some(text.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
#[path = "tests/nf_tables.rs"]
mod tests;
