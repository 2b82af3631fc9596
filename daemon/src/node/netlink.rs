//! rtnetlink(7), as far as the node's addresses need it: one reading of interfaces, addresses and routes, and a socket that
//! tells that they may have changed. Owns the sockets; what the answers mean is `addresses.rs`'. Takes no privilege.
//!
//! Each message is decoded by itself, and here: a driver that loses one (it logs, and goes on) would make an address look
//! as if it had gone.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily as SocketFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, sendto,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;
use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::state::entries::CANARIES;
use rtnetlink::packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use super::addresses::{Address, Interface, Machine};
use crate::netlink::{HEADER, messages};

/// How long the kernel may take to answer: it does so at once, or there is something wrong with it.
const PATIENCE_SECONDS: i64 = 2;

/// How often a list is asked for again that changed while it was read.
const ATTEMPTS: usize = 50;

/// And after how long.
const PAUSE: Duration = Duration::from_millis(10);

/// More than the kernel puts into one datagram.
const BUFFER: usize = 64 << 10;

/// Groups of rtnetlink(7), as bits.
const GROUPS: i32 = libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE;

/// One datagram of the kernel's; `None` for anybody else's.
fn receive<'b>(socket: &OwnedFd, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
    let (length, from) = recvfrom::<NetlinkAddr>(socket.as_raw_fd(), buffer)?;
    let is_kernel = from.is_some_and(|from| from.pid() == 0);
    Ok(is_kernel.then(|| &buffer[..length]))
}

/// Reads everything, now. Blocks, for [`PATIENCE_SECONDS`] at each question.
///
/// # Errors
/// When the kernel refuses an answer, does not give one, or the lists change each time while they are read.
pub(super) fn read() -> io::Result<Machine> {
    for _ in 1..ATTEMPTS {
        match read_once() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
    read_once()
}

fn read_once() -> io::Result<Machine> {
    let mut kernel = Kernel::open()?;
    let mut machine = Machine::default();
    let mut links = LinkMessage::default();
    links.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    for link in kernel.list(RouteNetlinkMessage::GetLink(links))? {
        if let RouteNetlinkMessage::NewLink(link) = link {
            machine.interfaces.insert(link.header.index, interface(&link));
        }
    }
    for address in kernel.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
        if let RouteNetlinkMessage::NewAddress(address) = address {
            machine.addresses.extend(self::address(&address));
        }
    }
    for canary in CANARIES {
        machine.sources.extend(kernel.source_towards(canary.addr)?);
    }
    Ok(machine)
}

/// A socket for questions.
struct Kernel {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// What a datagram brought.
enum Answer {
    More,
    Complete,
    Refused(io::Error),
}

impl Kernel {
    fn open() -> io::Result<Self> {
        let (flags, protocol) = (SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute);
        let socket = socket(SocketFamily::Netlink, SockType::Raw, flags, protocol)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(PATIENCE_SECONDS, 0))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    fn ask(&mut self, question: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        sendto(self.socket.as_raw_fd(), &bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(())
    }

    /// Everything the question is answered with.
    fn list(&mut self, question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(question, NLM_F_DUMP)?;
        let mut found = Vec::new();
        loop {
            match self.hear(&mut found)? {
                Answer::More => {}
                Answer::Complete => return Ok(found),
                Answer::Refused(error) => return Err(error),
            }
        }
    }

    /// The source address of packets to there; `None` where there is no route, or one that leads nowhere.
    fn source_towards(&mut self, far: Addr) -> io::Result<Option<Addr>> {
        let mut question = RouteMessage::default();
        (question.header.address_family, question.header.destination_prefix_length) = match far.family() {
            Family::Ipv4 => (AddressFamily::Inet, 32),
            Family::Ipv6 => (AddressFamily::Inet6, 128),
        };
        question.attributes.push(RouteAttribute::Destination(far.ip().into()));
        self.ask(RouteNetlinkMessage::GetRoute(question), 0)?;
        let mut found = Vec::new();
        while found.is_empty() {
            if let Answer::Complete | Answer::Refused(_) = self.hear(&mut found)? {
                return Ok(None);
            }
        }
        Ok(found.iter().find_map(source))
    }

    /// Takes in one datagram. A message that cannot be decoded is left out: there are kinds of interfaces with attributes
    /// that only newer programs know.
    fn hear(&mut self, found: &mut Vec<RouteNetlinkMessage>) -> io::Result<Answer> {
        let Some(datagram) = receive(&self.socket, &mut self.buffer)? else { return Ok(Answer::More) };
        for message in messages(datagram) {
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else { continue };
            if message.header.sequence_number != self.sequence {
                continue;
            }
            if message.header.flags & NLM_F_DUMP_INTR != 0 {
                return Ok(Answer::Refused(io::ErrorKind::Interrupted.into()));
            }
            match message.payload {
                NetlinkPayload::InnerMessage(message) => found.push(message),
                NetlinkPayload::Done(done) if done.code == 0 => return Ok(Answer::Complete),
                NetlinkPayload::Done(done) => {
                    return Ok(Answer::Refused(io::Error::from_raw_os_error(done.code.saturating_neg())));
                }
                NetlinkPayload::Error(error) => return Ok(Answer::Refused(error.to_io())),
                _ => {}
            }
        }
        Ok(Answer::More)
    }
}

fn interface(link: &LinkMessage) -> Interface {
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    });
    Interface {
        name: name.unwrap_or_default(),
        is_up: link.header.flags.contains(LinkFlags::Up),
        is_loopback: link.header.flags.contains(LinkFlags::Loopback),
    }
}

/// On a point-to-point link `IFA_ADDRESS` is the other side's.
fn address(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut remote) = (None, None);
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => remote = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let addr = Addr::from(local.or(remote)?);
    let is_tentative = flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic);
    // The bit means "secondary" to IPv4.
    let is_temporary = addr.family() == Family::Ipv6 && flags.contains(AddressFlags::Secondary);
    Some(Address {
        interface: message.header.index,
        addr,
        is_global: message.header.scope == AddressScope::Universe,
        is_in_doubt: is_tentative || flags.contains(AddressFlags::Dadfailed),
        is_passing: is_temporary || flags.contains(AddressFlags::Deprecated),
    })
}

fn source(message: &RouteNetlinkMessage) -> Option<Addr> {
    let RouteNetlinkMessage::NewRoute(route) = message else { return None };
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => Some(Addr::from(std::net::IpAddr::from(*v4))),
        RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => Some(Addr::from(std::net::IpAddr::from(*v6))),
        _ => None,
    })
}

/// Tells that something may have changed, never what: whoever wants to know reads again.
pub(super) struct Events {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Events {
    /// From now on nothing is missed.
    ///
    /// # Errors
    /// When the kernel gives no such socket.
    pub(super) fn open() -> io::Result<Self> {
        let groups = u32::try_from(GROUPS).map_err(io::Error::other)?;
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Waits until something may have changed. May be dropped while it waits.
    ///
    /// # Errors
    /// When the socket is of no use any more.
    pub(super) async fn next(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            match self.socket.recv_from(&mut self.buffer).await {
                // Not from the kernel.
                Ok(from) if from.port_number() != 0 => {}
                Ok(_) if messages(&self.buffer).any(is_of_interest) => return Ok(()),
                Ok(_) => {}
                // Some were lost; nobody knows which.
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the message may be about the node's addresses. Of routes only those to everywhere are: a network plugin adds
/// one for each pod.
fn is_of_interest(message: &[u8]) -> bool {
    let Some(kind) = message.get(4..6).and_then(|kind| kind.first_chunk()) else { return false };
    match u16::from_ne_bytes(*kind) {
        libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR => true,
        // `rtm_dst_len` of `struct rtmsg`.
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => message.get(HEADER + 1) == Some(&0),
        _ => false,
    }
}

#[cfg(test)]
#[path = "tests/netlink.rs"]
mod tests;
