//! The kernel's list of sockets, over netlink (sock_diag(7)): encodes requests, decodes answers, and exchanges them.
//! Covers the sockets of the current network namespace; reading needs no capability. Does not know what callers search
//! for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkHeader, NlasIterator, Parseable,
};
use netlink_packet_sock_diag::constants::{INET_DIAG_SKV6ONLY, SOCK_DESTROY, SOCK_DIAG_BY_FAMILY};
use netlink_packet_sock_diag::inet::ExtensionFlags;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::netlink::{HEADER, messages};

pub use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_UDP};
pub use netlink_packet_sock_diag::inet::{InetRequest, InetResponseHeader, SocketId, StateFlags};

/// The attribute with the cgroup v2 in which the socket was created, as the inode of its directory (Linux 5.9).
const INET_DIAG_CGROUP_ID: u16 = 21;

/// Size of the receive buffer in bytes. The kernel puts at most 32 KiB into one part of an answer.
const ANSWER: usize = 64 * 1024;

/// How long the kernel may take for a part of its answer, in seconds. It answers from memory, during the request.
const TIMEOUT: i64 = 2;

/// A request for all sockets of this family ([`AF_INET`] or [`AF_INET6`]) and protocol in one of these states. The
/// family is that of the socket, not of the address: an IPv6 socket may carry IPv4.
pub fn all(family: u8, protocol: u8, states: StateFlags) -> InetRequest {
    let socket_id = if family == AF_INET6 { SocketId::new_v6() } else { SocketId::new_v4() };
    InetRequest { family, protocol, extensions: ExtensionFlags::empty(), states, socket_id }
}

/// The whole datagram: a netlink header with this type and these flags, and the request.
fn encode(request: &InetRequest, kind: u16, flags: u16, sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; HEADER + request.buffer_len()];
    let mut header = NetlinkHeader::default();
    (header.message_type, header.flags, header.sequence_number) = (kind, flags, sequence);
    header.length = u32::try_from(bytes.len()).unwrap_or_default();
    header.emit(&mut bytes[..HEADER]);
    request.emit(&mut bytes[HEADER..]);
    bytes
}

/// A socket in an answer of the kernel (`struct inet_diag_msg` with attributes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InetDiagMessage {
    pub header: InetResponseHeader,
    pub only_v6: bool,
    /// Inode of the cgroup v2 directory in which it was created, if the kernel reports it.
    pub cgroup: Option<u64>,
}

impl InetDiagMessage {
    /// Not the crate's `InetResponse`, which allocates for the message and for each attribute that it does not know.
    fn decode(body: &[u8]) -> Option<Self> {
        let header = InetResponseHeader::parse(body).ok()?;
        let (mut only_v6, mut cgroup) = (false, None);
        for attribute in NlasIterator::new(body.get(header.buffer_len()..)?).map_while(Result::ok) {
            match attribute.kind() {
                INET_DIAG_SKV6ONLY => only_v6 = attribute.value().first() == Some(&1),
                INET_DIAG_CGROUP_ID => cgroup = array(attribute.value(), 0).map(u64::from_ne_bytes),
                _ => {}
            }
        }
        Some(Self { header, only_v6, cgroup })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Socket(InetDiagMessage),
    Done,
    /// The request failed, with an errno; 0 is an acknowledgement.
    Error(i32),
}

/// The messages of a datagram from the kernel. Truncated messages and those of another type are left out.
fn decode(datagram: &[u8]) -> Vec<Answer> {
    messages(datagram).filter_map(decode_message).collect()
}

fn decode_message(message: &[u8]) -> Option<Answer> {
    let (header, body) = message.split_at_checked(HEADER)?;
    match u16::from_ne_bytes(array(header, 4)?) {
        SOCK_DIAG_BY_FAMILY => InetDiagMessage::decode(body).map(Answer::Socket),
        // If an error ends a dump, the last message contains it: negative, as in an error message.
        NLMSG_DONE => match array(body, 0).map_or(0, i32::from_ne_bytes) {
            error if error < 0 => Some(Answer::Error(-error)),
            _ => Some(Answer::Done),
        },
        NLMSG_ERROR => array(body, 0).map(|error| Answer::Error(-i32::from_ne_bytes(error))),
        _ => None,
    }
}

#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
}

impl SockDiag {
    /// Opens a socket in the network namespace of this thread.
    pub fn open() -> io::Result<Self> {
        let protocol = SockProtocol::NetlinkSockDiag;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Passes every matching socket to `each`. Blocks while the kernel reads its tables: about a microsecond per
    /// socket.
    pub fn dump(&mut self, request: &InetRequest, mut each: impl FnMut(&InetDiagMessage)) -> io::Result<()> {
        self.send(request, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP)?;
        loop {
            for answer in self.receive()? {
                match answer {
                    Answer::Socket(socket) => each(&socket),
                    Answer::Done => return Ok(()),
                    Answer::Error(number) => return Err(io::Error::from_raw_os_error(number)),
                }
            }
        }
    }

    /// Ends the socket with this cookie and these addresses, if it still exists. Takes CAP_NET_ADMIN in the network
    /// namespace, and a kernel with CONFIG_INET_DIAG_DESTROY.
    ///
    /// # Errors
    /// ENOENT if the socket no longer exists; otherwise the kernel's error.
    pub fn destroy(&mut self, family: u8, protocol: u8, socket_id: SocketId) -> io::Result<()> {
        let request = InetRequest { socket_id, ..all(family, protocol, StateFlags::all()) };
        self.send(&request, SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK)?;
        loop {
            for answer in self.receive()? {
                match answer {
                    Answer::Error(0) => return Ok(()),
                    Answer::Error(number) => return Err(io::Error::from_raw_os_error(number)),
                    Answer::Socket(_) | Answer::Done => {}
                }
            }
        }
    }

    /// Sends a request; [`Self::receive`] returns the answer.
    fn send(&mut self, request: &InetRequest, kind: u16, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let datagram = encode(request, kind, flags, self.sequence);
        send(self.socket.as_raw_fd(), &datagram, MsgFlags::empty())?;
        Ok(())
    }

    /// The next part of the answer to the last request.
    fn receive(&self) -> io::Result<Vec<Answer>> {
        let mut buffer = vec![0; ANSWER];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) if is_answer_to(&buffer[..length], self.sequence) => return Ok(decode(&buffer[..length])),
                // The rest of an abandoned answer.
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_answer_to(datagram: &[u8], sequence: u32) -> bool {
    array(datagram, 8).map(u32::from_ne_bytes) == Some(sequence)
}

/// A socket that is connected to itself, which no other one is, by the loopback address that the host has.
pub fn connected_to_itself() -> io::Result<UdpSocket> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let socket = UdpSocket::bind(&loopback.map(|addr| SocketAddr::new(addr, 0))[..])?;
    socket.connect(socket.local_addr()?)?;
    Ok(socket)
}

/// Ends a socket of this process: the only way to find out whether the kernel supports and permits it.
///
/// # Errors
/// If the kernel does not support it (CONFIG_INET_DIAG_DESTROY), or does not permit it to this process (CAP_NET_ADMIN).
pub fn try_destroy() -> io::Result<()> {
    let socket = connected_to_itself()?;
    let address = socket.local_addr()?;
    let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut kernel = SockDiag::open()?;
    let mut own = None;
    kernel.dump(&all(family, IPPROTO_UDP, StateFlags::ESTABLISHED), |found| {
        let id = &found.header.socket_id;
        if id.source_port == address.port() && id.destination_port == address.port() {
            own = Some(id.clone());
        }
    })?;
    kernel.destroy(family, IPPROTO_UDP, own.ok_or(io::ErrorKind::NotFound)?)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The peer that the socket with this local address is connected or connecting to, as the kernel has it; `None` if there is
/// none.
pub fn peer(socket: BorrowedFd<'_>, source: SocketAddr, protocol: u8) -> io::Result<Option<SocketAddr>> {
    // Sockets to other destinations may have the same local address.
    let inode = nix::sys::stat::fstat(socket)?.st_ino;
    let family = if source.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut request = all(family, protocol, StateFlags::ESTABLISHED | StateFlags::SYN_SENT);
    request.socket_id.source_port = source.port();
    let mut found = None;
    SockDiag::open()?.dump(&request, |socket| {
        let id = &socket.header.socket_id;
        if u64::from(socket.header.inode) == inode && id.destination_port != 0 {
            found = Some(SocketAddr::new(id.destination_address, id.destination_port));
        }
    })?;
    Ok(found)
}

#[cfg(test)]
#[path = "tests/sock_diag.rs"]
mod tests;
