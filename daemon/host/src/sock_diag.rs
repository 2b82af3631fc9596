//! The kernel's list of sockets, over netlink (sock_diag(7)): encodes requests, decodes answers, and exchanges them.
//! Covers the sockets of the current network namespace; reading needs no capability. Does not know what callers search
//! for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::netlink::{HEADER, messages};

/// The IANA number of TCP.
pub const TCP: u8 = 6;
/// The IANA number of UDP.
pub const UDP: u8 = 17;

/// The state of an established TCP connection and of a connected UDP socket (`include/net/tcp_states.h`).
pub const ESTABLISHED: u8 = 1;
/// The state of a UDP socket that is bound but not connected.
pub const CLOSE: u8 = 7;
/// The state of a listening TCP socket.
pub const LISTEN: u8 = 10;

/// Requests sockets (`SOCK_DIAG_BY_FAMILY`).
pub const BY_FAMILY: u16 = 20;
/// Ends a socket: pending calls on it return ECONNABORTED (`SOCK_DESTROY`).
pub const DESTROY: u16 = 21;
/// Flags of a message (`NLM_F_*`): it is a request; it is to be acknowledged; it is for all matching sockets.
pub const REQUEST: u16 = 0x1;
/// See [`REQUEST`].
pub const ACKNOWLEDGE: u16 = 0x4;
/// See [`REQUEST`].
pub const DUMP: u16 = 0x300;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// The attribute that shows whether an IPv6 socket is IPv6-only.
const INET_DIAG_SKV6ONLY: u16 = 11;
/// The attribute with the cgroup v2 in which the socket was created, as the inode of its directory (Linux 5.9).
const INET_DIAG_CGROUP_ID: u16 = 21;

/// Size of a `struct inet_diag_msg` in bytes; attributes follow.
const MESSAGE_BODY: usize = 72;
/// Size of a header and a `struct inet_diag_req_v2` in bytes.
const WHOLE_REQUEST: u32 = 72;

/// Size of the receive buffer in bytes. The kernel puts at most 32 KiB into one part of an answer.
const ANSWER: usize = 64 * 1024;

/// How long the kernel may take for a part of its answer, in seconds. It answers from memory, during the request.
const TIMEOUT: i64 = 2;

/// The content of a `struct inet_diag_sockid`. All zero matches any socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketId {
    /// Local port, in host order.
    pub source_port: u16,
    /// Port of the peer, in host order; 0 without one.
    pub destination_port: u16,
    /// Local address in the form of the socket's family: IPv4 in the first four bytes, the others zero.
    pub source: [u8; 16],
    /// Address of the peer, in the same form.
    pub destination: [u8; 16],
    /// Index of the interface that the socket is bound to; 0 for none.
    pub interface: u32,
    /// The socket's cookie, low half first; `u32::MAX` twice for any.
    pub cookie: [u32; 2],
}

/// A request for sockets (`struct inet_diag_req_v2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InetDiagRequest {
    /// Family of the socket, not of the address: an IPv6 socket may carry IPv4. IPv4 or IPv6.
    pub family: AddressFamily,
    /// The IANA number of the protocol: [`TCP`], [`UDP`] or another one.
    pub protocol: u8,
    /// The requested states, one bit each (`1 << LISTEN`).
    pub states: u32,
    /// The requested socket; for a dump, a port other than 0 limits the result.
    pub id: SocketId,
}

impl InetDiagRequest {
    /// A request for all sockets of this family and protocol in one of these states.
    pub fn all(family: AddressFamily, protocol: u8, states: &[u8]) -> Self {
        let states = states.iter().fold(0, |set, state| set | 1 << state);
        Self { family, protocol, states, id: SocketId::default() }
    }

    /// The whole datagram: a netlink header with this type and these flags, and the request.
    pub fn encode(&self, kind: u16, flags: u16, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(WHOLE_REQUEST as usize);
        bytes.extend(WHOLE_REQUEST.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend([family_number(self.family), self.protocol, 0, 0]);
        bytes.extend(self.states.to_ne_bytes());
        bytes.extend(self.id.source_port.to_be_bytes());
        bytes.extend(self.id.destination_port.to_be_bytes());
        bytes.extend(self.id.source);
        bytes.extend(self.id.destination);
        bytes.extend(self.id.interface.to_ne_bytes());
        self.id.cookie.iter().for_each(|half| bytes.extend(half.to_ne_bytes()));
        debug_assert_eq!(bytes.len(), WHOLE_REQUEST as usize, "struct inet_diag_req_v2");
        bytes
    }
}

/// A socket in an answer of the kernel (`struct inet_diag_msg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InetDiagMessage {
    /// Family of the socket: IPv4 or IPv6.
    pub family: AddressFamily,
    /// State: [`LISTEN`] and others.
    pub state: u8,
    /// Addresses, ports and cookie of the socket.
    pub id: SocketId,
    /// Id of the user that created it.
    pub uid: u32,
    /// Inode in sockfs, as under `/proc/PID/fd`.
    pub inode: u32,
    /// Whether an IPv6 socket takes IPv6 only.
    pub only_v6: bool,
    /// Inode of the cgroup v2 directory in which it was created, if the kernel reports it.
    pub cgroup: Option<u64>,
}

impl InetDiagMessage {
    pub fn source(&self) -> IpAddr {
        addr(self.family, self.id.source)
    }

    /// The address of the peer.
    pub fn destination(&self) -> IpAddr {
        addr(self.family, self.id.destination)
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let family = match *body.first()? {
            2 => AddressFamily::Inet,
            10 => AddressFamily::Inet6,
            _ => return None,
        };
        let (fixed, attributes) = body.split_at_checked(MESSAGE_BODY)?;
        let id = SocketId {
            source_port: u16::from_be_bytes(array(fixed, 4)?),
            destination_port: u16::from_be_bytes(array(fixed, 6)?),
            source: array(fixed, 8)?,
            destination: array(fixed, 24)?,
            interface: u32::from_ne_bytes(array(fixed, 40)?),
            cookie: [u32::from_ne_bytes(array(fixed, 44)?), u32::from_ne_bytes(array(fixed, 48)?)],
        };
        let only_v6 = attribute(attributes, INET_DIAG_SKV6ONLY).is_some_and(|value| value.first() == Some(&1));
        let (uid, inode) = (u32::from_ne_bytes(array(fixed, 64)?), u32::from_ne_bytes(array(fixed, 68)?));
        let cgroup =
            attribute(attributes, INET_DIAG_CGROUP_ID).and_then(|value| array(value, 0).map(u64::from_ne_bytes));
        Some(Self { family, state: fixed[1], id, uid, inode, only_v6, cgroup })
    }
}

/// One netlink message of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Socket(InetDiagMessage),
    /// The end of the dump.
    Done {
        /// Whether sockets came or went during the dump, so that some may be missing.
        interrupted: bool,
    },
    /// The request failed, with an errno; 0 is an acknowledgement.
    Error(i32),
}

/// The messages of a datagram from the kernel. Truncated messages and those of another type are left out.
pub fn decode(datagram: &[u8]) -> Vec<Answer> {
    messages(datagram).filter_map(decode_message).collect()
}

fn decode_message(message: &[u8]) -> Option<Answer> {
    let (header, body) = message.split_at_checked(HEADER)?;
    let (kind, flags) = (u16::from_ne_bytes(array(header, 4)?), u16::from_ne_bytes(array(header, 6)?));
    match kind {
        BY_FAMILY => InetDiagMessage::decode(body).map(Answer::Socket),
        // If an error ends a dump, the last message contains it: negative, as in an error message.
        NLMSG_DONE => match array(body, 0).map_or(0, i32::from_ne_bytes) {
            error if error < 0 => Some(Answer::Error(-error)),
            _ => Some(Answer::Done { interrupted: flags & NLM_F_DUMP_INTR != 0 }),
        },
        NLMSG_ERROR => array(body, 0).map(|error| Answer::Error(-i32::from_ne_bytes(error))),
        _ => None,
    }
}

/// A netlink socket for sock_diag requests.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
}

impl SockDiag {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel has no sock_diag, or the process may not create netlink sockets.
    pub fn open() -> io::Result<Self> {
        let protocol = SockProtocol::NetlinkSockDiag;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Passes every matching socket to `each`. Blocks while the kernel reads its tables: about a microsecond per
    /// socket.
    ///
    /// # Errors
    /// If the kernel does not answer, or answers with an error.
    pub fn dump(&mut self, request: &InetDiagRequest, mut each: impl FnMut(&InetDiagMessage)) -> io::Result<()> {
        self.send(request, BY_FAMILY, REQUEST | DUMP)?;
        loop {
            for answer in self.receive()? {
                match answer {
                    Answer::Socket(socket) => each(&socket),
                    Answer::Done { .. } => return Ok(()),
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
    pub fn destroy(&mut self, family: AddressFamily, protocol: u8, id: SocketId) -> io::Result<()> {
        let request = InetDiagRequest { family, protocol, states: u32::MAX, id };
        self.send(&request, DESTROY, REQUEST | ACKNOWLEDGE)?;
        loop {
            for answer in self.receive()? {
                match answer {
                    Answer::Error(0) => return Ok(()),
                    Answer::Error(number) => return Err(io::Error::from_raw_os_error(number)),
                    Answer::Socket(_) | Answer::Done { .. } => {}
                }
            }
        }
    }

    /// Sends a request; [`Self::receive`] returns the answer.
    ///
    /// # Errors
    /// If the kernel does not accept the request.
    pub fn send(&mut self, request: &InetDiagRequest, kind: u16, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let datagram = request.encode(kind, flags, self.sequence);
        send(self.socket.as_raw_fd(), &datagram, MsgFlags::empty())?;
        Ok(())
    }

    /// The next part of the answer to the last request.
    ///
    /// # Errors
    /// If there is none within two seconds.
    pub fn receive(&self) -> io::Result<Vec<Answer>> {
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

fn family_number(family: AddressFamily) -> u8 {
    if family == AddressFamily::Inet6 { 10 } else { 2 }
}

/// Ends a socket of this process: the only way to find out whether the kernel supports and permits it.
///
/// # Errors
/// If the kernel does not support it (CONFIG_INET_DIAG_DESTROY), or does not permit it to this process (CAP_NET_ADMIN).
pub fn try_destroy() -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    // Connected to itself: no other socket has this address at both ends.
    socket.connect(address)?;
    let mut kernel = SockDiag::open()?;
    let mut own = None;
    kernel.dump(&InetDiagRequest::all(AddressFamily::Inet, UDP, &[ESTABLISHED]), |found| {
        if found.id.source_port == address.port() && found.id.destination_port == address.port() {
            own = Some(found.id);
        }
    })?;
    kernel.destroy(AddressFamily::Inet, UDP, own.ok_or(io::ErrorKind::NotFound)?)
}

fn addr(family: AddressFamily, bytes: [u8; 16]) -> IpAddr {
    if family == AddressFamily::Inet6 {
        Ipv6Addr::from(bytes).into()
    } else {
        Ipv4Addr::from([bytes[0], bytes[1], bytes[2], bytes[3]]).into()
    }
}

/// The value of the first attribute of this type.
fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut rest = attributes;
    loop {
        let length = usize::from(u16::from_ne_bytes(array(rest, 0)?));
        let found = u16::from_ne_bytes(array(rest, 2)?);
        let value = rest.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The peer that the socket with this local address is connected or connecting to, as the kernel has it; `None` if there is
/// none.
///
/// # Errors
/// If the list of sockets cannot be read.
pub fn peer(socket: BorrowedFd<'_>, source: SocketAddr, protocol: u8) -> io::Result<Option<SocketAddr>> {
    // Sockets to other destinations may have the same local address.
    let inode = nix::sys::stat::fstat(socket)?.st_ino;
    let family = if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let mut request = InetDiagRequest::all(family, protocol, &[1, 2]);
    request.id = SocketId { source_port: source.port(), ..request.id };
    let mut found = None;
    SockDiag::open()?.dump(&request, |socket| {
        if u64::from(socket.inode) == inode && socket.id.destination_port != 0 {
            found = Some(SocketAddr::new(socket.destination(), socket.id.destination_port));
        }
    })?;
    Ok(found)
}

#[cfg(test)]
#[path = "tests/sock_diag.rs"]
mod tests;
