//! What others have in nftables and iptables, which writes to nftables on current systems and has tables of its own as
//! iptables-legacy: kube-proxy's rules, which are its table `kube-proxy` or the chain `KUBE-SERVICES`; and chains that drop
//! forwarded packets.

use std::io;

use nix::libc;
use nodelb_core::model::addr::Family;
use nodelb_datapath::xtables::LegacyTables;
use nodelb_report::problems::DroppingChain;

use super::netfilter::{Netfilter, attribute};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForeignRules {
    /// The table of kube-proxy's nftables mode, with chains.
    pub(crate) has_table: bool,
    /// The chains of its iptables mode.
    pub(crate) has_chains: bool,
    /// The chains that drop forwarded packets unless a rule accepts them, in the order of their names.
    pub(crate) dropping: Vec<DroppingChain>,
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

/// Reads the rules in this network namespace, in nftables and in these tables of iptables-legacy.
///
/// # Errors
/// If this process lacks CAP_NET_ADMIN, or the kernel does not answer.
pub(crate) fn find(legacy: LegacyTables) -> io::Result<ForeignRules> {
    let mut rules = in_nftables()?;
    for filter in legacy.filters()? {
        rules.has_chains |= filter.has_chain(CHAIN);
        if filter.drops_forwarded() {
            let tables = match filter.family {
                Family::Ipv4 => "iptables-legacy",
                Family::Ipv6 => "ip6tables-legacy",
            };
            let name = format!("the chain FORWARD of {tables}");
            rules.dropping.push(DroppingChain { name, family: Some(filter.family) });
        }
    }
    rules.dropping.sort();
    Ok(rules)
}

/// The rules in nftables. There are none if the kernel does not have it. A table without chains translates nothing.
fn in_nftables() -> io::Result<ForeignRules> {
    let mut rules = ForeignRules::default();
    let Some(socket) = Netfilter::open()? else { return Ok(rules) };
    socket.list(GET_CHAINS, &[], |family, attributes| {
        rules.has_table |= name(attributes, CHAIN_TABLE).is_some_and(|table| table == TABLE);
        rules.has_chains |= name(attributes, CHAIN_NAME).is_some_and(|chain| chain == CHAIN);
        rules.dropping.extend(dropping(family, attributes));
    })?;
    Ok(rules)
}

/// The chains that drop forwarded packets unless a rule accepts them, such as `the chain FORWARD of the table filter`.
///
/// # Errors
/// If this process lacks CAP_NET_ADMIN, or the kernel does not answer.
pub fn forward_drops() -> io::Result<Vec<String>> {
    let rules = find(LegacyTables::read()?)?;
    Ok(rules.dropping.into_iter().map(|chain| chain.name).collect())
}

/// The chain, if it is one that drops packets which the network stack forwards. Chains for bridges have the same hook for
/// frames.
fn dropping(family: u8, attributes: &[u8]) -> Option<DroppingChain> {
    let family = match i32::from(family) {
        libc::NFPROTO_INET => None,
        libc::NFPROTO_IPV4 => Some(Family::Ipv4),
        libc::NFPROTO_IPV6 => Some(Family::Ipv6),
        _ => return None,
    };
    let (table, chain) = (name(attributes, CHAIN_TABLE)?, name(attributes, CHAIN_NAME)?);
    let name = format!("the chain {chain} of the table {table}");
    drops_forwarded(attributes).then_some(DroppingChain { name, family })
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
