//! kube-proxy's rules: its table `kube-proxy` in nftables, or the chain `KUBE-SERVICES` of iptables, which writes to
//! nftables on current systems and has tables of its own as iptables-legacy. Any request takes CAP_NET_ADMIN, even one
//! that only reads.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use nodelb_datapath::xtables::LegacyTables;
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST};

use super::netlink::{HEADER, messages};

/// Which rules of kube-proxy there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KubeProxyRules {
    /// The table of its nftables mode.
    pub(crate) has_table: bool,
    /// The chains of its iptables mode.
    pub(crate) has_chains: bool,
}

/// The table of kube-proxy's nftables mode, in the families ip and ip6 (KEP-3866).
const TABLE: &str = "kube-proxy";

/// The chain of kube-proxy's iptables mode.
const CHAIN: &str = "KUBE-SERVICES";

/// `NFNL_SUBSYS_NFTABLES << 8`, with `NFT_MSG_GETTABLE` and `NFT_MSG_GETCHAIN` of `linux/netfilter/nf_tables.h`.
const GET_TABLES: u16 = 10 << 8 | 1;
const GET_CHAINS: u16 = 10 << 8 | 4;

/// The attributes with the names: `NFTA_TABLE_NAME` and `NFTA_CHAIN_NAME`.
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 3;

/// Length of `struct nfgenmsg` in bytes, and that of a request.
const NFGENMSG: usize = 4;
const REQUEST: u32 = 20;

/// Types of answers, `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// How long the kernel may take to answer, in seconds.
const TIMEOUT_SECONDS: i64 = 2;

/// More bytes than the kernel puts into one datagram.
const BUFFER: usize = 64 << 10;

/// Looks for the rules of kube-proxy in this network namespace, in nftables and in these tables of iptables-legacy.
///
/// # Errors
/// If this process lacks CAP_NET_ADMIN, or the kernel does not answer.
pub(crate) fn find(legacy: LegacyTables) -> io::Result<KubeProxyRules> {
    let KubeProxyRules { has_table, has_chains } = in_nftables()?;
    Ok(KubeProxyRules { has_table, has_chains: has_chains || legacy.has_chain(CHAIN)? })
}

/// The rules in nftables. There are none if the kernel does not have it.
fn in_nftables() -> io::Result<KubeProxyRules> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = match socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter) {
        Err(nix::Error::EPROTONOSUPPORT) => return Ok(KubeProxyRules::default()),
        socket => socket?,
    };
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
    Ok(KubeProxyRules {
        has_table: names(&socket, GET_TABLES, TABLE_NAME)?.contains(TABLE),
        has_chains: names(&socket, GET_CHAINS, CHAIN_NAME)?.contains(CHAIN),
    })
}

/// The names of all objects of a kind.
fn names(socket: &OwnedFd, request: u16, attribute: u16) -> io::Result<BTreeSet<String>> {
    sendto(socket.as_raw_fd(), &dump(request), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let (mut buffer, mut names) = (vec![0; BUFFER], BTreeSet::new());
    loop {
        let (length, from) = recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut buffer)?;
        if from.is_none_or(|from| from.pid() != 0) {
            continue;
        }
        if take(&buffer[..length], attribute, &mut names)? {
            return Ok(names);
        }
    }
}

/// A request for all objects of a kind, of all families.
fn dump(request: u16) -> Vec<u8> {
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let header = [&REQUEST.to_ne_bytes()[..], &request.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
    [&header.concat()[..], &[0; NFGENMSG]].concat()
}

/// Takes the names from one datagram; returns whether the answer ends with it.
fn take(datagram: &[u8], wanted: u16, names: &mut BTreeSet<String>) -> io::Result<bool> {
    for message in messages(datagram) {
        match u16::from_ne_bytes([message[4], message[5]]) {
            DONE => return Ok(true),
            ERROR => {
                let code =
                    message.get(HEADER..).and_then(<[u8]>::first_chunk).map_or(0, |code| i32::from_ne_bytes(*code));
                return match code.saturating_neg() {
                    0 => Ok(true),
                    // The module is not loaded, so there are no rules.
                    libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT => Ok(true),
                    error => Err(io::Error::from_raw_os_error(error)),
                };
            }
            _ => names.extend(name(message, wanted)),
        }
    }
    Ok(false)
}

fn name(message: &[u8], wanted: u16) -> Option<String> {
    let mut attributes = message.get(HEADER + NFGENMSG..)?;
    loop {
        let &[a, b, c, d] = attributes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        if u16::from_ne_bytes([c, d]) == wanted {
            let text = String::from_utf8_lossy(attributes.get(4..length)?);
            return Some(text.trim_end_matches('\0').to_owned());
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
#[path = "tests/nf_tables.rs"]
mod tests;
