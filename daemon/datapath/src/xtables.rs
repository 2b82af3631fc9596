//! The chains of iptables-legacy and ip6tables-legacy in this network namespace. Only root may read which tables exist,
//! and reading a table takes CAP_NET_ADMIN. The kernel creates a table that a process requests, so only tables that
//! exist are read.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nodelb_core::model::addr::Family;

use crate::sys::xt;

/// The table with the chains: kube-proxy has its chains in `filter` and in `nat`, and few rules in this one.
const TABLE: &[u8] = b"filter";

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES` of `linux/netfilter_ipv4/ip_tables.h`; the same for IPv6.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;

/// Length of a table's name in both questions.
const NAME: usize = 32;

/// Length of `struct ipt_getinfo` in bytes; the last four are the size of all entries.
const INFO: usize = 84;

/// Length of the head of `struct ipt_get_entries` in bytes: name, size, and padding.
const HEAD: usize = 40;

/// Where `struct ipt_getinfo` has `underflow[NF_INET_FORWARD]`: the place of the entry that is the policy of the chain, which has
/// the target of a verdict.
const FORWARD_POLICY: usize = 64;

/// Where `struct ipt_entry` and `struct ip6t_entry` have the offset of the target.
const V4_ENTRY: usize = 88;
const V6_ENTRY: usize = 140;

/// Length of the head of a target (`struct xt_entry_target`). A verdict follows: `-NF_DROP - 1`.
const TARGET: usize = 32;
const DROP: i32 = -1;

/// How often the entries are read if they change meanwhile.
const ATTEMPTS: usize = 5;

/// An entry begins a chain with the target `ERROR`: 29 bytes of its name and one of its revision, and the chain's name.
const CHAIN_TARGET: &[u8] = b"ERROR\0";
const CHAIN_TARGET_LENGTH: usize = 30;

const V4_NAMES: &str = "/proc/self/net/ip_tables_names";
const V6_NAMES: &str = "/proc/self/net/ip6_tables_names";

/// Whether the table `filter` exists in this network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegacyTables {
    pub v4: bool,
    pub v6: bool,
}

impl LegacyTables {
    /// Reads which tables exist.
    pub fn read() -> io::Result<Self> {
        Ok(Self { v4: has_table(V4_NAMES)?, v6: has_table(V6_NAMES)? })
    }

    /// Reads those that exist, at most one for each family.
    pub fn filters(self) -> io::Result<Vec<Filter>> {
        let mut filters = Vec::new();
        for (is_there, family, domain, level) in [
            (self.v4, Family::Ipv4, AddressFamily::Inet, libc::SOL_IP),
            (self.v6, Family::Ipv6, AddressFamily::Inet6, libc::SOL_IPV6),
        ] {
            if is_there {
                filters.push(Filter { family, table: Table::read(domain, level)? });
            }
        }
        Ok(filters)
    }
}

/// The table `filter` of a family.
pub struct Filter {
    pub family: Family,
    table: Table,
}

impl Filter {
    /// Whether the table has this chain.
    pub fn has_chain(&self, chain: &str) -> bool {
        has(&self.table.entries, chain)
    }

    /// Whether the policy of the chain FORWARD drops packets.
    pub fn drops_forwarded(&self) -> bool {
        let entry = match self.family {
            Family::Ipv4 => V4_ENTRY,
            Family::Ipv6 => V6_ENTRY,
        };
        drops(&self.table, entry)
    }
}

/// Whether the table exists. Without the kernel's module there is no file.
fn has_table(names: &str) -> io::Result<bool> {
    match fs::read(names) {
        Ok(names) => Ok(names.split(|byte| *byte == b'\n').any(|name| name == TABLE)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The table, as the kernel has it.
struct Table {
    /// `struct ipt_getinfo`.
    info: [u8; INFO],
    entries: Vec<u8>,
}

impl Table {
    fn read(family: AddressFamily, level: i32) -> io::Result<Self> {
        let any: OwnedFd = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let mut attempt = 0;
        loop {
            let mut info = [0; INFO];
            info[..TABLE.len()].copy_from_slice(TABLE);
            xt::read_option(any.as_fd(), level, GET_INFO, &mut info)?;
            let size = info.last_chunk().map_or(0, |size| u32::from_ne_bytes(*size));
            let mut entries = vec![0; HEAD + size as usize];
            entries[..TABLE.len()].copy_from_slice(TABLE);
            entries[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
            match xt::read_option(any.as_fd(), level, GET_ENTRIES, &mut entries) {
                Ok(length) => {
                    entries.truncate(length);
                    return Ok(Self { info, entries });
                }
                // The table has another size by now.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the policy of the chain FORWARD drops packets. `entry` is where an entry has the offset of its target.
fn drops(Table { info, entries }: &Table, entry: usize) -> bool {
    let policy = || {
        let at = u32::from_ne_bytes(*info.get(FORWARD_POLICY..)?.first_chunk()?);
        let policy = entries.get(HEAD..)?.get(usize::try_from(at).ok()?..)?;
        let target = usize::from(u16::from_ne_bytes(*policy.get(entry..)?.first_chunk()?));
        Some(i32::from_ne_bytes(*policy.get(target + TARGET..)?.first_chunk()?))
    };
    policy() == Some(DROP)
}

/// Whether the entries have the beginning of this chain.
fn has(entries: &[u8], chain: &str) -> bool {
    let wanted = [chain.as_bytes(), b"\0"].concat();
    let mut targets = entries.windows(CHAIN_TARGET.len()).enumerate().filter(|(_, bytes)| *bytes == CHAIN_TARGET);
    targets.any(|(at, _)| entries.get(at + CHAIN_TARGET_LENGTH..).is_some_and(|name| name.starts_with(&wanted)))
}

#[cfg(test)]
#[path = "tests/xtables.rs"]
mod tests;
