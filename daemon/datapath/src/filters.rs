//! The tc filters at the qdisc `clsact` of a device, of any program: nodelb removes no qdisc that another program uses,
//! and recognises other service proxies by the names of their filters. Reading them takes no privilege.

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use crate::hook_point::Direction;

/// The parent of filters at `clsact`: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` of `linux/pkt_sched.h`, or the same for
/// egress.
pub(crate) fn parent(direction: Direction) -> u32 {
    match direction {
        Direction::In => 0xffff_fff2,
        Direction::Out => 0xffff_fff3,
    }
}

/// Lengths of `struct nlmsghdr` and `struct tcmsg` in bytes.
pub(crate) const HEADER: usize = 16;
const TCMSG: usize = 20;

/// Flags of requests: `NLM_F_REQUEST` and `NLM_F_DUMP`.
const REQUEST: u16 = 1;
const DUMP: u16 = 0x0300;

/// Types of answers, `NLMSG_ERROR` and `NLMSG_DONE`.
pub(crate) const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Numbers of attributes, from `linux/rtnetlink.h` and `linux/pkt_cls.h`.
pub(crate) const TCA_OPTIONS: u16 = 2;
pub(crate) const TCA_BPF_NAME: u16 = 7;

/// How long the kernel may take to answer, in seconds.
const TIMEOUT_SECONDS: i64 = 2;

/// More bytes than the kernel puts into one datagram.
const BUFFER: usize = 64 << 10;

/// The filters of a device, at ingress and at egress: the name of each that runs a BPF program, and an empty name for
/// the others. A removed device has none.
pub fn at_device(ifindex: u32) -> io::Result<Vec<String>> {
    let arriving = in_direction(ifindex, Direction::In)?;
    Ok([arriving, in_direction(ifindex, Direction::Out)?].concat())
}

/// The name of the first filter in this direction, which runs before the others; `None` without any.
pub(crate) fn first(ifindex: u32, direction: Direction) -> io::Result<Option<String>> {
    Ok(in_direction(ifindex, direction)?.into_iter().next())
}

fn in_direction(ifindex: u32, direction: Direction) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let request = message(libc::RTM_GETTFILTER, DUMP, [ifindex, 0, parent(direction), 0], &[]);
    exchange(&request, |datagram| parse(datagram, &mut names))?;
    Ok(names)
}

/// Sends a request, and reads datagrams of the kernel until one is the end of the answer.
pub(crate) fn exchange(request: &[u8], mut is_end: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<()> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
    sendto(socket.as_raw_fd(), request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (length, from) = recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut buffer)?;
        if from.is_some_and(|from| from.pid() == 0) && is_end(&buffer[..length])? {
            return Ok(());
        }
    }
}

/// A message with a `struct tcmsg` of these numbers: index, handle, parent, and information.
pub(crate) fn message(kind: u16, flags: u16, numbers: [u32; 4], attributes: &[u8]) -> Vec<u8> {
    let length = HEADER + TCMSG + attributes.len();
    let mut bytes = Vec::with_capacity(length);
    // Requests have fewer than 100 bytes.
    bytes.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | REQUEST).to_ne_bytes());
    // Sequence number and sender; family and padding.
    bytes.extend([0; 12]);
    bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    bytes.extend(attributes);
    bytes
}

/// Adds the filters of one datagram; returns whether the answer ends with it.
fn parse(datagram: &[u8], names: &mut Vec<String>) -> io::Result<bool> {
    for (kind, body) in messages(datagram) {
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let error = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return match error.saturating_neg() {
                    // The device has no such qdisc, or was removed.
                    0 | libc::ENODEV | libc::EINVAL | libc::ENOENT => Ok(true),
                    error => Err(io::Error::from_raw_os_error(error)),
                };
            }
            libc::RTM_NEWTFILTER => names.extend(name(body)),
            _ => {}
        }
    }
    Ok(false)
}

pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    parts(datagram, HEADER, |header| {
        let length = u32::from_ne_bytes(*header.first_chunk()?) as usize;
        Some((length, u16::from_ne_bytes([header[4], header[5]])))
    })
}

/// The name of the filter; `None` for the head of a list of filters, which has no handle.
fn name(body: &[u8]) -> Option<String> {
    let handle = u32::from_ne_bytes(*body.get(8..)?.first_chunk()?);
    let options = attribute(body.get(TCMSG..)?, TCA_OPTIONS);
    let name = options.and_then(|options| attribute(options, TCA_BPF_NAME)).unwrap_or_default();
    let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    (handle != 0 || !name.is_empty()).then_some(name)
}

fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    // The upper bits of the type are flags.
    const TYPE: u16 = 0x3fff;
    let header = |header: &[u8]| {
        let (length, kind) = (u16::from_ne_bytes([header[0], header[1]]), u16::from_ne_bytes([header[2], header[3]]));
        Some((usize::from(length), kind & TYPE))
    };
    parts(attributes, 4, header).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The parts of a list, each with a header of this size that has the length and the type. A truncated part ends it.
fn parts(
    mut rest: &[u8],
    header_size: usize,
    header: impl Fn(&[u8]) -> Option<(usize, u16)>,
) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = header(rest.get(..header_size)?)?;
        let body = rest.get(header_size..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

#[cfg(test)]
#[path = "tests/filters.rs"]
mod tests;
