//! Changes of nodelb's filters at the qdisc `clsact` of a device. Each takes CAP_NET_ADMIN, which the daemon drops after
//! its start; then another process makes them. They take only netlink, and not bpf(2), which that process may not call.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::filters::{self, ERROR, TCA_BPF_NAME, TCA_OPTIONS, message};
use crate::hook_point::Direction;

/// The handle of nodelb's filters, `nl` in ASCII. Others use 1.
pub(crate) const HANDLE: u32 = 0x6e6c;

/// The priority of the filters, which is the highest.
pub(crate) const PRIORITY: u32 = 1;

/// The name of the filters, which tc(8) shows.
pub(crate) const NAME: &[u8] = b"nodelb\0";

/// All protocols: `ETH_P_ALL` of `linux/if_ether.h`.
const ALL_PROTOCOLS: u16 = 3;

/// Flags of requests, of `linux/netlink.h`.
const ACKNOWLEDGE: u16 = 4;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;

/// The handle and the parent of the qdisc, of `linux/pkt_sched.h`.
const CLSACT_HANDLE: u32 = 0xffff_0000;
const CLSACT: u32 = 0xffff_fff1;

/// Numbers of attributes, from `linux/rtnetlink.h` and `linux/pkt_cls.h`.
const TCA_KIND: u16 = 1;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_FLAGS: u16 = 8;

/// The program's verdict counts: `TCA_BPF_FLAG_ACT_DIRECT`.
const DIRECT_ACTION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterChange {
    /// Adds the qdisc. Fails with EEXIST if the device has it.
    AddQdisc,
    /// Removes the qdisc. Fails with EBUSY if it has a filter of any program.
    RemoveQdisc,
    /// Makes nodelb's filter run a program; replaces the program of an existing filter in one step.
    Replace(Direction),
    Remove(Direction),
}

/// A process that makes changes: this one, or one with CAP_NET_ADMIN.
pub trait ChangeFilters: fmt::Debug + Send + Sync {
    /// Makes the change at a device. `program` is that of [`FilterChange::Replace`].
    fn change(&self, ifindex: u32, change: FilterChange, program: Option<BorrowedFd<'_>>) -> io::Result<()>;
}

#[derive(Clone, Copy, Debug)]
pub struct InThisProcess;

impl ChangeFilters for InThisProcess {
    fn change(&self, ifindex: u32, change: FilterChange, program: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let request = match change {
            FilterChange::AddQdisc => qdisc(ifindex, libc::RTM_NEWQDISC, CREATE | EXCLUSIVE),
            FilterChange::RemoveQdisc if filters::at_device(ifindex)?.is_empty() => {
                qdisc(ifindex, libc::RTM_DELQDISC, 0)
            }
            FilterChange::RemoveQdisc => return Err(io::Error::from_raw_os_error(libc::EBUSY)),
            FilterChange::Replace(direction) => {
                let program = program.ok_or(io::ErrorKind::InvalidInput)?;
                let attributes = [attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &options(program))].concat();
                filter(ifindex, direction, libc::RTM_NEWTFILTER, CREATE, &attributes)
            }
            FilterChange::Remove(direction) => {
                filter(ifindex, direction, libc::RTM_DELTFILTER, 0, &attribute(TCA_KIND, b"bpf\0"))
            }
        };
        filters::exchange(&request, |datagram| result(datagram).transpose().map(|result| result.is_some()))
    }
}

/// The result in a datagram; `None` without one.
fn result(datagram: &[u8]) -> Option<io::Result<()>> {
    filters::messages(datagram).find(|(kind, _)| *kind == ERROR).map(|(_, body)| {
        match body.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    })
}

fn qdisc(ifindex: u32, kind: u16, flags: u16) -> Vec<u8> {
    message(kind, flags | ACKNOWLEDGE, [ifindex, CLSACT_HANDLE, CLSACT, 0], &attribute(TCA_KIND, b"clsact\0"))
}

fn filter(ifindex: u32, direction: Direction, kind: u16, flags: u16, attributes: &[u8]) -> Vec<u8> {
    let info = PRIORITY << 16 | u32::from(ALL_PROTOCOLS.to_be());
    message(kind, flags | ACKNOWLEDGE, [ifindex, HANDLE, filters::parent(direction), info], attributes)
}

/// The options of a filter that runs this program.
fn options(program: BorrowedFd<'_>) -> Vec<u8> {
    let number = |kind, number: u32| attribute(kind, &number.to_ne_bytes());
    // A descriptor is not negative.
    let descriptor = number(TCA_BPF_FD, program.as_raw_fd().unsigned_abs());
    [descriptor, attribute(TCA_BPF_NAME, NAME), number(TCA_BPF_FLAGS, DIRECT_ACTION)].concat()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or_default();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
#[path = "tests/filter_changes.rs"]
mod tests;
