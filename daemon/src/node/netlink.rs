//! The part of rtnetlink(7) that the node's addresses and devices need: reading interfaces, addresses and routes once,
//! and a socket that reports possible changes. Owns the sockets; `addresses.rs` interprets the answers. Needs no privilege.
//!
//! This module decodes each message separately: a library that loses one (it logs the error and continues) would make
//! an address appear to be removed.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{MsgFlags, NetlinkAddr, recvfrom, sendto, setsockopt};
use nix::sys::time::TimeVal;
use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::state::entries::CANARIES;
use rtnetlink::packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};
use tokio::time::{Instant, sleep_until};

use super::addresses::{Address, Interface, Machine};
use nodelb_host::netlink::{HEADER, messages};

/// How long the kernel may take to answer, in seconds. It answers at once, unless others have its lock of all devices:
/// on a busy host that removes many network namespaces, for some seconds.
const TIMEOUT_SECONDS: i64 = 10;

/// How long events must pause before everything is read again: an interface that comes up causes a dozen.
const SETTLE: Duration = Duration::from_millis(20);

/// The maximum delay while events continue.
pub(crate) const SETTLE_AT_MOST: Duration = Duration::from_millis(200);

/// How often a list that changed while it was read is requested again.
const ATTEMPTS: usize = 50;

const PAUSE: Duration = Duration::from_millis(10);

/// More bytes than the kernel puts into one datagram.
const BUFFER: usize = 64 << 10;

/// Groups of rtnetlink(7), as bits.
const GROUPS: i32 = libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE;

/// Receives one datagram from the kernel; `None` for a datagram from another process.
fn receive<'b>(socket: &Socket, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
    let (length, from) = recvfrom::<NetlinkAddr>(socket.as_raw_fd(), buffer)?;
    let is_kernel = from.is_some_and(|from| from.pid() == 0);
    Ok(is_kernel.then(|| &buffer[..length]))
}

/// Reads everything once. Blocks for up to [`TIMEOUT_SECONDS`] per request.
pub(crate) fn read() -> io::Result<Machine> {
    repeat(read_once)
}

/// Repeats a read if the lists changed meanwhile.
fn repeat<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
    read()
}

/// The unicast routes over an interface that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Routes {
    pub(crate) has_default: bool,
    pub(crate) has_any: bool,
}

/// Reads the routes of all tables over these interfaces. Of many routes over an interface only the first are read:
/// default routes precede others of the same table.
pub(crate) fn read_routes(interfaces: impl IntoIterator<Item = u32>) -> io::Result<BTreeMap<u32, Routes>> {
    let read = |interface| {
        let [v4, v6] = [AddressFamily::Inet, AddressFamily::Inet6].map(|family| repeat(|| routes(interface, family)));
        let (v4, v6) = (v4?, v6?);
        let routes = Routes { has_default: v4.has_default || v6.has_default, has_any: v4.has_any || v6.has_any };
        Ok((interface, routes))
    };
    interfaces.into_iter().map(read).collect()
}

fn routes(interface: u32, family: AddressFamily) -> io::Result<Routes> {
    let mut kernel = Kernel::open()?;
    // The kernel selects by interface only if it checks requests strictly (Linux 4.20).
    let is_strict = kernel.socket.set_netlink_get_strict_chk(true).is_ok();
    let mut question = RouteMessage::default();
    question.header.address_family = family;
    if is_strict {
        question.header.kind = RouteType::Unicast;
        question.attributes.push(RouteAttribute::Oif(interface));
    }
    kernel.ask(RouteNetlinkMessage::GetRoute(question), NLM_F_DUMP)?;
    let (mut found, mut routes) = (Vec::new(), Routes::default());
    loop {
        let answer = kernel.receive(&mut found)?;
        let over = found.drain(..).filter_map(|message| route_over(&message, interface));
        for is_default in over {
            routes.has_any = true;
            routes.has_default |= is_default;
        }
        match answer {
            Answer::More if !routes.has_any || !is_strict => {}
            // The kernel does not have the family, or the interface was removed.
            Answer::Refused(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)) => {
                return Ok(routes);
            }
            Answer::Refused(error) => return Err(error),
            // The socket, and with it the rest of the answer, is closed.
            Answer::More | Answer::Complete => return Ok(routes),
        }
    }
}

/// Whether the route is a default route; `None` if it is not a unicast route over the interface.
fn route_over(message: &RouteNetlinkMessage, interface: u32) -> Option<bool> {
    let RouteNetlinkMessage::NewRoute(route) = message else { return None };
    let is_over = route.attributes.iter().any(|attribute| match attribute {
        RouteAttribute::Oif(index) => *index == interface,
        RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| hop.interface_index == interface),
        _ => false,
    });
    (route.header.kind == RouteType::Unicast && is_over).then_some(route.header.destination_prefix_length == 0)
}

/// How packets to an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The interface.
    pub(crate) device: u32,
    /// Whether they go to a router, and not to the address itself.
    pub(crate) has_gateway: bool,
}

/// How packets to each address leave; addresses without a route are left out.
pub(crate) fn ways_out(addresses: impl IntoIterator<Item = Addr>) -> io::Result<BTreeMap<Addr, Way>> {
    let mut kernel = Kernel::open()?;
    let mut ways = BTreeMap::new();
    for address in addresses {
        let Some(route) = kernel.route_to(address)? else { continue };
        let has_gateway =
            route.attributes.iter().any(|it| matches!(it, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)));
        ways.extend(way_out(&route).map(|device| (address, Way { device, has_gateway })));
    }
    Ok(ways)
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
        if let Some(route) = kernel.route_to(canary.addr)? {
            machine.sources.extend(source(&route));
            machine.ways_out.extend(way_out(&route));
        }
    }
    Ok(machine)
}

struct Kernel {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

enum Answer {
    More,
    Complete,
    Refused(io::Error),
}

impl Kernel {
    fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
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

    /// The complete answer to a request.
    fn list(&mut self, question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(question, NLM_F_DUMP)?;
        let mut found = Vec::new();
        loop {
            match self.receive(&mut found)? {
                Answer::More => {}
                Answer::Complete => return Ok(found),
                Answer::Refused(error) => return Err(error),
            }
        }
    }

    /// The source address of packets to a distant address; `None` without a route, or with one that drops packets.
    fn route_to(&mut self, far: Addr) -> io::Result<Option<RouteMessage>> {
        let mut question = RouteMessage::default();
        (question.header.address_family, question.header.destination_prefix_length) = match far.family() {
            Family::Ipv4 => (AddressFamily::Inet, 32),
            Family::Ipv6 => (AddressFamily::Inet6, 128),
        };
        question.attributes.push(RouteAttribute::Destination(far.ip().into()));
        self.ask(RouteNetlinkMessage::GetRoute(question), 0)?;
        let mut found = Vec::new();
        while found.is_empty() {
            if let Answer::Complete | Answer::Refused(_) = self.receive(&mut found)? {
                return Ok(None);
            }
        }
        Ok(found.into_iter().find_map(unicast))
    }

    /// Processes one datagram. A message that cannot be decoded is left out: some types of interfaces have attributes
    /// that only newer programs know.
    fn receive(&mut self, found: &mut Vec<RouteNetlinkMessage>) -> io::Result<Answer> {
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
    let mut interface = Interface {
        is_up: link.header.flags.contains(LinkFlags::Up),
        is_loopback: link.header.flags.contains(LinkFlags::Loopback),
        link_type: link.header.link_layer_type.into(),
        ..Interface::default()
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Controller(index) => interface.master = *index,
            LinkAttribute::Link(index) => interface.lower = *index,
            LinkAttribute::LinkNetNsId(_) => interface.is_lower_elsewhere = true,
            LinkAttribute::Mtu(bytes) => interface.mtu = *bytes,
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                interface.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    interface
}

/// Decodes an address. On a point-to-point link `IFA_ADDRESS` is the address of the peer.
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
    // This bit is "temporary" for IPv6 and "secondary" for IPv4.
    let has_bit = flags.contains(AddressFlags::Secondary);
    let (is_temporary, is_secondary) =
        (has_bit && addr.family() == Family::Ipv6, has_bit && addr.family() == Family::Ipv4);
    Some(Address {
        interface: message.header.index,
        addr,
        is_global: message.header.scope == AddressScope::Universe,
        is_in_doubt: is_tentative || flags.contains(AddressFlags::Dadfailed),
        is_passing: is_temporary || flags.contains(AddressFlags::Deprecated),
        is_secondary,
    })
}

fn unicast(message: RouteNetlinkMessage) -> Option<RouteMessage> {
    let RouteNetlinkMessage::NewRoute(route) = message else { return None };
    (route.header.kind == RouteType::Unicast).then_some(route)
}

/// The interface by which packets leave.
fn way_out(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

fn source(route: &RouteMessage) -> Option<Addr> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => Some(Addr::from(std::net::IpAddr::from(*v4))),
        RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => Some(Addr::from(std::net::IpAddr::from(*v6))),
        _ => None,
    })
}

/// Reports that something may have changed, without details: the reader reads everything again.
pub(crate) struct Events {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Events {
    /// Opens the socket; no event is missed from now on.
    pub(crate) fn open() -> io::Result<Self> {
        let groups = u32::try_from(GROUPS).map_err(io::Error::other)?;
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Waits until events pause, at most [`SETTLE_AT_MOST`].
    pub(crate) async fn settle(&mut self) -> io::Result<()> {
        let latest = Instant::now() + SETTLE_AT_MOST;
        loop {
            let quiet = (Instant::now() + SETTLE).min(latest);
            tokio::select! {
                biased;
                () = sleep_until(quiet) => return Ok(()),
                again = self.next() => again?,
            }
        }
    }

    /// Waits until something may have changed. Cancel-safe.
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            match self.socket.recv_from(&mut self.buffer).await {
                // The datagram is not from the kernel.
                Ok(from) if from.port_number() != 0 => {}
                Ok(_) if messages(&self.buffer).any(is_of_interest) => return Ok(()),
                Ok(_) => {}
                // Some events were lost; it is unknown which.
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the message may concern the node's addresses. Of routes only default routes do: a network plugin adds one
/// route per pod.
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
