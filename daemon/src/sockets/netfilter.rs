//! Lists of the kernel's netfilter objects over netlink (`linux/netfilter/nfnetlink.h`). Any request takes CAP_NET_ADMIN,
//! even one that only reads.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};

use nodelb_host::netlink::{HEADER, messages};

/// Length of `struct nfgenmsg` in bytes.
const NFGENMSG: usize = 4;

/// How long the kernel may take to answer, in seconds.
const TIMEOUT_SECONDS: i64 = 2;

/// More bytes than the kernel puts into one datagram.
const BUFFER: usize = 64 << 10;

/// The bits of an attribute's type that are not its number: `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const FLAGS: u16 = 0xc000;

#[derive(Debug)]
pub(super) struct Netfilter(OwnedFd);

impl Netfilter {
    /// Opens the socket; `None` if the kernel has no netfilter.
    pub(super) fn open() -> io::Result<Option<Self>> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = match socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter) {
            Err(nix::Error::EPROTONOSUPPORT) => return Ok(None),
            socket => socket?,
        };
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
        Ok(Some(Self(socket)))
    }

    /// Requests all objects of a kind, of all families, and hands on the family (`nfgen_family`) and attributes of each. There
    /// are none if the kernel does not have the kind.
    pub(super) fn list(&self, request: u16, attributes: &[u8], mut take: impl FnMut(u8, &[u8])) -> io::Result<()> {
        let mut take = |object: &[u8]| {
            if let Some((head, attributes)) = object.split_at_checked(NFGENMSG) {
                take(head[0], attributes);
            }
        };
        sendto(self.0.as_raw_fd(), &dump(request, attributes), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let (length, from) = recvfrom::<NetlinkAddr>(self.0.as_raw_fd(), &mut buffer)?;
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            if read(&buffer[..length], 0, &mut take)? {
                return Ok(());
            }
        }
    }
}

/// A request for all objects of a kind, of all families.
fn dump(request: u16, attributes: &[u8]) -> Vec<u8> {
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let length = u32::try_from(HEADER + NFGENMSG + attributes.len()).unwrap_or_default();
    let header = [&length.to_ne_bytes()[..], &request.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
    [&header.concat()[..], &[0; NFGENMSG], attributes].concat()
}

/// Reads one datagram; returns whether the answer ends with it. `skipped`: the bytes of each object's own header that are not
/// handed on.
pub(super) fn read(datagram: &[u8], skipped: usize, take: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    for message in messages(datagram) {
        match u16::from_ne_bytes([message[4], message[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code =
                    message.get(HEADER..).and_then(<[u8]>::first_chunk).map_or(0, |code| i32::from_ne_bytes(*code));
                return match code.saturating_neg() {
                    0 => Ok(true),
                    // The module is not loaded, so there are no objects.
                    libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT => Ok(true),
                    error => Err(io::Error::from_raw_os_error(error)),
                };
            }
            _ => take(message.get(HEADER + skipped..).unwrap_or_default()),
        }
    }
    Ok(false)
}

/// The value of the first attribute with this number. A truncated attribute ends the list.
pub(super) fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let &[a, b, c, d] = attributes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        if u16::from_ne_bytes([c, d]) & !FLAGS == wanted {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
#[path = "tests/netfilter.rs"]
pub(super) mod tests;
