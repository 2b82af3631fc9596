//! The policies of IPsec in this network namespace (`linux/xfrm.h`), and a socket that reports possible changes. Reading
//! and listening take CAP_NET_ADMIN; a socket that listens goes on when it is dropped.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{MsgFlags, NetlinkAddr, recvfrom, sendto, setsockopt};
use nix::sys::time::TimeVal;
use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::model::ipsec::{Policy, PolicyDirection, PortMask, Selector};
use nodelb_core::model::source_range::SourceRange;
use nodelb_host::netlink::HEADER;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use rtnetlink::sys::protocols::NETLINK_XFRM;
use rtnetlink::sys::{Socket, SocketAddr};
use tokio::net::UnixDatagram;

use super::netfilter::{attribute, read as read_datagram};

const TIMEOUT_SECONDS: i64 = 2;

/// More bytes than the kernel puts into one datagram.
const BUFFER: usize = 64 << 10;

/// `XFRMNLGRP_POLICY`, as a bit.
const POLICY_GROUP: u32 = 1 << 3;

/// `XFRM_MSG_GETPOLICY`, and `XFRM_MSG_GETDEFAULT` of Linux 5.14.
const GET_POLICY: u16 = 0x15;
const GET_DEFAULT: u16 = 0x28;

/// Size of `struct xfrm_userpolicy_info`, and where its fields are.
const POLICY: usize = 168;
const TARGET: usize = 0;
const SOURCE: usize = 16;
const TARGET_PORT: usize = 32;
const SOURCE_PORT: usize = 36;
const FAMILY: usize = 40;
const TARGET_PREFIX: usize = 42;
const SOURCE_PREFIX: usize = 43;
const PROTOCOL: usize = 44;
const PRIORITY: usize = 152;
const DIRECTION: usize = 160;
const ACTION: usize = 161;

/// Attributes: templates, whether the policy is a main one (0), and the id of the device that it is for.
const TEMPLATES: u16 = 5;
const TYPE: u16 = 16;
const INTERFACE_ID: u16 = 31;

/// `XFRM_POLICY_BLOCK` and `XFRM_USERPOLICY_BLOCK`.
const BLOCK: u8 = 1;

/// Opens a socket; `None` if the kernel has no IPsec.
fn open() -> io::Result<Option<Socket>> {
    match Socket::new(NETLINK_XFRM) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
        socket => socket.map(Some),
    }
}

/// Reads the policies, in the order in which the kernel lists them; last those that it applies to the rest of the packets.
pub(crate) fn read() -> io::Result<Vec<Policy>> {
    let Some(socket) = open()? else { return Ok(Vec::new()) };
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
    let (mut policies, mut rest) = (Vec::new(), Vec::new());
    request(&socket, GET_POLICY, NLM_F_DUMP, &[], |message| policies.extend(policy(message)))?;
    request(&socket, GET_DEFAULT, NLM_F_ACK, &[0; 3], |message| rest.extend(rest_of(message)))?;
    Ok([policies, rest].concat())
}

fn request(socket: &Socket, kind: u16, flags: u16, body: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let length = u32::try_from(HEADER + body.len()).unwrap_or_default();
    let flags = NLM_F_REQUEST | flags;
    let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
    let message = [&header.concat()[..], body].concat();
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (length, from) = recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut buffer)?;
        let is_kernel = from.is_some_and(|from| from.pid() == 0);
        if is_kernel && read_datagram(&buffer[..length], 0, &mut take)? {
            return Ok(());
        }
    }
}

/// Decodes a policy; `None` if it applies to no packet that nodelb sends: those of other types, of sockets, and of the
/// devices of a tunnel, which are the way by which such packets leave.
fn policy(message: &[u8]) -> Option<Policy> {
    let (info, attributes) = message.split_at_checked(POLICY)?;
    let number =
        |name| attribute(attributes, name).and_then(|bytes| bytes.first_chunk()).map(|it| u32::from_ne_bytes(*it));
    if attribute(attributes, TYPE).is_some_and(|kind| kind.first() != Some(&0))
        || number(INTERFACE_ID).is_some_and(|id| id != 0)
    {
        return None;
    }
    let family = match i32::from(u16::from_ne_bytes(*info[FAMILY..].first_chunk()?)) {
        libc::AF_INET => Family::Ipv4,
        libc::AF_INET6 => Family::Ipv6,
        _ => return None,
    };
    let port = |at: usize| {
        let &[a, b, c, d] = info[at..].first_chunk()?;
        Some(PortMask { port: u16::from_be_bytes([a, b]), mask: u16::from_be_bytes([c, d]) })
    };
    let selector = Selector {
        family,
        source: network(family, &info[SOURCE..], info[SOURCE_PREFIX])?,
        target: network(family, &info[TARGET..], info[TARGET_PREFIX])?,
        source_port: port(SOURCE_PORT)?,
        target_port: port(TARGET_PORT)?,
        protocol: info[PROTOCOL],
    };
    Some(Policy {
        direction: *PolicyDirection::ALL.get(usize::from(info[DIRECTION]))?,
        priority: u32::from_ne_bytes(*info[PRIORITY..].first_chunk()?),
        selector,
        is_protected: info[ACTION] == BLOCK || attribute(attributes, TEMPLATES).is_some_and(|all| !all.is_empty()),
    })
}

fn network(family: Family, bytes: &[u8], prefix: u8) -> Option<SourceRange> {
    let (addr, before) = match family {
        Family::Ipv4 => (Addr::from(std::net::IpAddr::from(*bytes.first_chunk::<4>()?)), 96),
        Family::Ipv6 => (Addr::from_octets(*bytes.first_chunk()?), 0),
    };
    Some(SourceRange::new(addr, prefix.saturating_add(before).min(128)))
}

/// The policies for the packets that no policy selects, if they are blocked.
fn rest_of(message: &[u8]) -> Vec<Policy> {
    // `struct xfrm_userpolicy_default`.
    let directions = [PolicyDirection::In, PolicyDirection::Forward, PolicyDirection::Out];
    let blocked = directions.into_iter().zip(message).filter(|(_, action)| **action == BLOCK);
    let rest = |(direction, _)| {
        [Family::Ipv4, Family::Ipv6].map(|family| Policy {
            direction,
            priority: u32::MAX,
            selector: Selector::everything(family),
            is_protected: true,
        })
    };
    blocked.flat_map(rest).collect()
}

/// A socket to which the kernel sends changes of policies from now on; `None` without IPsec in the kernel.
pub(crate) fn listen() -> io::Result<Option<OwnedFd>> {
    let Some(mut socket) = open()? else { return Ok(None) };
    socket.bind(&SocketAddr::new(0, POLICY_GROUP))?;
    socket.set_non_blocking(true)?;
    socket.as_fd().try_clone_to_owned().map(Some)
}

/// Reports that policies may have changed. Only the type of the socket is that of another family: tokio has none for any
/// socket, and receiving is the same.
#[derive(Debug)]
pub(crate) struct PolicyEvents(UnixDatagram);

impl PolicyEvents {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        UnixDatagram::from_std(socket.into()).map(Self)
    }

    /// Waits until something may have changed. Cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<()> {
        match self.0.recv(&mut [0; HEADER]).await {
            // Some events were lost.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            received => received.map(drop),
        }
    }
}

#[cfg(test)]
#[path = "tests/xfrm.rs"]
mod tests;
