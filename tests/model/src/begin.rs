//! The first packet of a connection: the client is admitted, gets a backend, and the connection its two entries.

use std::sync::Arc;

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::packets::admission::{Refusal, admit};
use nodelb_core::packets::choice::selected;
use nodelb_core::state::entries::{BackendId, Lead, ServiceId, Slot};

use crate::choice::{self, offset_number};
use crate::connections::{Connection, Flags, is_plain_syn};
use crate::forward;
use crate::headers::Content;
use crate::headers::tcp_flags::{ACK, FIN, RST, SYN};
use crate::hook_state::{Decision, HookState};
use crate::key::{Endpoint, Hook, PacketKey, Side, Tuple};
use crate::node::{Reason, Route, RouteQuery, Unknown};
use crate::ports::{self, Search};
use crate::reject::IcmpError;
use crate::rule::Rule;

/// Where a connection's packets go.
enum Way {
    /// Through the network stack, with the client's address.
    Stack,
    /// Past the network stack, with this address of the node, and whether the backend is on another machine.
    Redirect(Addr, bool),
}

/// What is done with a packet that begins no connection.
enum Refused {
    /// The network stack gets the packet.
    Left,
    Dropped(Reason),
    Answered(Reason),
}

/// Stores the entries of a new connection and returns the client's entry, or decides otherwise about the packet.
pub(crate) fn begin(
    state: &mut HookState<'_>,
    key: &PacketKey,
    tcp_flags: u8,
    frontend: Lead,
) -> Result<Connection, Decision> {
    state.service = frontend.service;
    // No other proxy serves what another node has sent in a tunnel.
    if state.node.settings.is_draining && state.tunnel_end.is_none() {
        return Err(state.next());
    }
    let is_in_the_middle = key.protocol == Protocol::Tcp && !is_plain_syn(tcp_flags);
    // Another node of entry may have begun the connection.
    let is_direct = forward_of(state, key) != Forward::Translate && state.tables.keeps(Rule::ForwardedByRing);
    if is_in_the_middle
        && !is_direct
        && let Some(decision) = unknown(state, key, tcp_flags)
    {
        return Err(decision);
    }
    let mut begun = chosen(state, key, frontend);
    if is_in_the_middle && tcp_flags & RST == 0 {
        begun = continued(state, frontend, begun);
    }
    match begun {
        Ok(entry) if entry.flags.is_forwarded => Ok(store_forwarded(state, key, entry)),
        Ok(entry) => store(state, key, entry).ok_or_else(|| no_port(state, key.protocol)),
        Err(Refused::Left) => Err(state.next()),
        Err(Refused::Dropped(reason)) => Err(state.discard(reason)),
        Err(Refused::Answered(Reason::Ttl)) => Err(state.answer_icmp(IcmpError::TimeExceeded, Reason::Ttl)),
        Err(Refused::Answered(reason)) if key.protocol == Protocol::Tcp => Err(state.answer_reset(reason)),
        Err(Refused::Answered(reason)) => Err(state.answer_icmp(IcmpError::PortUnreachable, reason)),
    }
}

fn forward_of(state: &HookState<'_>, key: &PacketKey) -> Forward {
    let target = key.tuple.target;
    state.node.forward(state.packet.hook, L4Addr::new(target.addr, target.port, key.protocol))
}

/// The entry of a connection that the packet begins, with the backend that the client gets. Its port at the node is not
/// chosen yet.
fn chosen(state: &mut HookState<'_>, key: &PacketKey, frontend: Lead) -> Result<Connection, Refused> {
    let client = key.tuple.source;
    let service = state.node.state.services.get(&frontend.service).map(Arc::clone).unwrap_or_default();
    let view = match admit(state.node.state, frontend, Some(client.addr)) {
        Ok(view) => view,
        Err(Refusal::NotAdmitted) => return Err(Refused::Dropped(Reason::SourceRange)),
        Err(Refusal::NoLocalBackend) => return Err(Refused::Dropped(Reason::NoLocalBackend)),
        Err(Refusal::NoBackend) => return Err(Refused::Answered(Reason::NoBackend)),
    };
    let forward = forward_of(state, key);
    let to = L4Addr::new(key.tuple.target.addr, key.tuple.target.port, key.protocol);
    let offset = match state.tunnel_end.filter(|_| state.tables.keeps(Rule::UnwrappedStays)) {
        // The node that has sent the packet here has chosen the backend.
        Some(end) => {
            let is_meant = |offset: &usize| view[*offset].addr.addr == end;
            let by_all = selected(&service, view, (client.addr, Some(client.port)), to).filter(is_meant);
            let meant = by_all.or_else(|| (0..view.len()).find(is_meant));
            meant.ok_or(Refused::Dropped(Reason::NoBackend))?
        }
        None => {
            let (node, of) = (state.node, (frontend.service, &*service, view));
            choice::choose(&node, &mut state.tables, state.random, of, (client, to))
        }
    };
    // Another node may have sent the packet here unchanged: for this machine.
    let may_be_sent_on = forward == Forward::Direct && state.headers.ttl <= forward::DIRECT_TTL;
    let offset = if may_be_sent_on { own(state, view, offset) } else { offset };
    let slot = view[offset];
    // An IPv4 packet fits into a tunnel to an IPv6 address.
    let is_other_family = slot.addr.addr.family() != client.addr.family();
    if is_other_family && forward != Forward::Tunnel {
        return Err(Refused::Dropped(Reason::NoBackend));
    }
    let way = way_to(state, &key.tuple, &slot, frontend)?;
    if is_other_family && !matches!(way, Way::Redirect(_, true)) {
        let stays = state.node.stays_here(state.packet.ifindex, to.addr);
        return Err(if stays { Refused::Left } else { Refused::Dropped(Reason::NoRoute) });
    }
    let is_forwarded = matches!(way, Way::Redirect(_, true)) && forward != Forward::Translate;
    if is_forwarded && state.tunnel_end.is_some() && state.tables.keeps(Rule::UnwrappedStays) {
        return Err(Refused::Dropped(Reason::NoRoute));
    }
    if is_forwarded && may_be_sent_on {
        return Err(Refused::Answered(Reason::Ttl));
    }
    let now = state.node.now();
    let source = match way {
        Way::Stack => client,
        Way::Redirect(addr, _) if is_forwarded => Endpoint::new(addr, client.port),
        Way::Redirect(addr, _) => Endpoint::new(addr, 0),
    };
    Ok(Connection {
        to: Tuple { source, target: Endpoint::new(slot.addr.addr, slot.addr.port) },
        service: frontend.service,
        backend: slot.backend,
        offset: offset_number(offset),
        ifindex: state.packet.ifindex,
        last_used: now,
        created: now,
        flags: Flags {
            is_redirected: matches!(way, Way::Redirect(..)),
            is_local_view: frontend.local,
            ..if is_forwarded { forwarded_flags(state, forward) } else { Flags::default() }
        },
        acknowledgment: syn_acknowledgment(state),
        bytes: 0,
    })
}

/// The flags of a connection with direct return that the packet begins.
fn forwarded_flags(state: &HookState<'_>, forward: Forward) -> Flags {
    let tcp_flags = match state.headers.content {
        Content::Transport(Protocol::Tcp, ports) => ports.tcp_flags,
        _ => 0,
    };
    Flags {
        is_assured: !is_plain_syn(tcp_flags),
        has_fin: tcp_flags & (FIN | RST) != 0,
        is_forwarded: true,
        is_tunnelled: forward == Forward::Tunnel,
        ..Flags::default()
    }
}

/// The offset of a backend with an address of this node, or of the device, if the list has one: the given one, if it is such a
/// backend's.
fn own(state: &HookState<'_>, view: &[Slot], offset: usize) -> usize {
    let is_own = |slot: &Slot| is_own(state, slot);
    if is_own(&view[offset]) { offset } else { view.iter().position(is_own).unwrap_or(offset) }
}

/// Whether the slot's backend has an address of this node, or of the device.
fn is_own(state: &HookState<'_>, slot: &Slot) -> bool {
    let uplink = state.node.state.uplinks.get(&state.packet.ifindex);
    let of_device = uplink.map(|uplink| [uplink.v4, uplink.v6]).into_iter().flatten();
    of_device.flatten().any(|own| own == slot.addr.addr) || state.node.state.node_addrs.contains(&slot.addr.addr)
}

/// The slot that all nodes select for the packet.
pub(crate) fn slot_by_all<'s>(state: &HookState<'s>, key: &PacketKey, frontend: Lead) -> Option<&'s Slot> {
    let service = state.node.state.services.get(&frontend.service)?;
    let (view, client, to) = (service.view(frontend.local), key.tuple.source, key.tuple.target);
    let to = L4Addr::new(to.addr, to.port, key.protocol);
    let offset = selected(service, view, (client.addr, Some(client.port)), to).filter(|_| !view.is_empty());
    view.get(offset?)
}

/// Whether that is the backend on this node to which another node seems to have sent the packet.
pub(crate) fn leads_here(state: &HookState<'_>, key: &PacketKey, frontend: Lead) -> bool {
    slot_by_all(state, key, frontend).is_some_and(|slot| match state.tunnel_end {
        Some(end) => slot.addr.addr == end,
        None => is_own(state, slot),
    })
}

/// Decides about a packet in the middle of a connection. It continues only if the same backend is certain to be found
/// again, and sees the client's address.
fn continued(state: &HookState<'_>, frontend: Lead, begun: Result<Connection, Refused>) -> Result<Connection, Refused> {
    let service = state.node.state.services.get(&frontend.service);
    let is_certain = service.is_some_and(|it| it.has_rings || it.view(frontend.local).len() == 1);
    let is_by_ring = |entry: &Connection| entry.flags.is_forwarded && state.tables.keeps(Rule::ForwardedByRing);
    match begun {
        Ok(entry) if is_certain && (is_by_ring(&entry) || !entry.flags.is_redirected) => Ok(entry),
        Err(refused @ (Refused::Left | Refused::Dropped(Reason::SourceRange))) => Err(refused),
        _ => Err(Refused::Answered(Reason::Unknown)),
    }
}

/// For an ICMP error about a backend's answer that has not passed this node: the entry that the client's next packet
/// would get, if it is forwarded unchanged. Nothing is stored.
pub(crate) fn forwarded_by_error(state: &mut HookState<'_>, key: &PacketKey) -> Option<Connection> {
    let to = L4Addr::new(key.tuple.target.addr, key.tuple.target.port, key.protocol);
    let frontend = state.node.frontend(state.packet.hook, to)?;
    if state.packet.hook != Hook::In || forward_of(state, key) == Forward::Translate || state.node.settings.is_draining
    {
        return None;
    }
    chosen(state, key, frontend).ok().filter(|entry| entry.flags.is_forwarded)
}

/// The only entry of a connection with direct return. Without it, the next packet gets the same backend.
fn store_forwarded(state: &mut HookState<'_>, key: &PacketKey, mut entry: Connection) -> Connection {
    entry.bytes = state.headers.length() as u64;
    state.tables.put_half_open(*key, entry);
    entry
}

/// The decision about a TCP packet that opens no connection and belongs to none; `None` if its connection may continue.
/// The node's own address may be that of a connection of the node itself, with the number of a NodePort as its port. A
/// RST is never answered.
fn unknown(state: &mut HookState<'_>, key: &PacketKey, tcp_flags: u8) -> Option<Decision> {
    let is_own = state.node.state.node_addrs.contains(&key.tuple.target.addr);
    let mode = state.node.settings.unknown;
    if is_own || mode == Unknown::Pass || !state.tables.keeps(Rule::UnknownIsOwned) {
        return Some(state.next());
    }
    if tcp_flags & RST != 0 {
        return Some(state.discard(Reason::Unknown));
    }
    let is_reset = mode == Unknown::Reset || tcp_flags & (ACK | SYN) != ACK;
    is_reset.then(|| state.answer_reset(Reason::Unknown))
}

/// The number that acknowledges the client's SYN; 0 with UDP.
fn syn_acknowledgment(state: &HookState<'_>) -> u32 {
    match state.headers.content {
        Content::Transport(Protocol::Tcp, ports) => ports.sequence.wrapping_add(1),
        _ => 0,
    }
}

/// Decides by the route to the backend.
fn way_to(state: &HookState<'_>, ends: &Tuple, slot: &Slot, frontend: Lead) -> Result<Way, Refused> {
    let client = ends.source;
    let is_pod = state.packet.hook.is_pod();
    if is_pod && slot.addr.addr != client.addr {
        return Ok(Way::Stack);
    }
    let ifindex = state.packet.ifindex;
    let query = RouteQuery { ifindex, source: client.addr, target: slot.addr.addr };
    let (ifindex, preferred) = match state.node.routes.route(&query) {
        Route::Device { ifindex, preferred, .. } => (ifindex, preferred),
        // The network stack delivers the packet to the node itself, or reports what is wrong.
        Route::NotForwarded | Route::NoForwarding => return Ok(Way::Stack),
        Route::Unreachable => return Err(Refused::Dropped(Reason::NoRoute)),
    };
    let uplinks = &state.node.state.uplinks;
    let is_masqueraded = is_pod || (state.node.settings.always_masquerades && !frontend.local);
    if !uplinks.contains_key(&ifindex) && !is_masqueraded {
        return Ok(Way::Stack);
    }
    let uplink = uplinks.get(&ifindex).or_else(|| uplinks.get(&state.packet.ifindex));
    let (own, is_own_first) = uplink.map_or((None, false), |uplink| match slot.addr.addr.family() {
        Family::Ipv4 => (uplink.v4, uplink.is_v4_source),
        Family::Ipv6 => (uplink.v6, uplink.is_v6_source),
    });
    let source = if is_own_first { own.or(preferred) } else { preferred.or(own) };
    let source = source.ok_or(Refused::Dropped(Reason::NoRoute))?;
    if !is_pod && state.tables.keeps(Rule::ReversePath) && !has_way_back(state, ends) {
        return Err(Refused::Dropped(Reason::ReversePath));
    }
    Ok(Way::Redirect(source, uplinks.contains_key(&ifindex)))
}

/// Whether the network stack would have accepted the client's packet: a way leads back to the client, which is not the
/// node itself, and with a strict `rp_filter` it begins at the device of the packet. IPv6 has no such setting.
fn has_way_back(state: &HookState<'_>, ends: &Tuple) -> bool {
    let (ifindex, headers) = (state.packet.ifindex, &state.headers);
    let query = RouteQuery { ifindex, source: ends.target.addr, target: ends.source.addr };
    let Route::Device { ifindex: back, .. } = state.node.routes.route(&query) else { return false };
    let uplink = state.node.state.uplinks.get(&ifindex);
    let is_strict = headers.family == Family::Ipv4 && uplink.is_some_and(|uplink| uplink.is_strict);
    !is_strict || back == ifindex
}

/// Whether a packet that leaves was masqueraded with the address and port of a service, which would get the answers.
/// Packets of processes are not: their sockets have their ports.
fn has_port_of_service(state: &HookState<'_>, key: &PacketKey) -> bool {
    let (node, from, source) = (&state.node, state.packet.came_by, key.tuple.source);
    from != 0
        && !node.state.uplinks.contains_key(&from)
        && state.packet.is_tracked_request
        && !node.settings.is_draining
        && node.frontend(Hook::In, L4Addr::new(source.addr, source.port, key.protocol)).is_some()
        && state.tables.keeps(Rule::ClientGetsOtherPort)
}

/// Begins a connection of this node with a packet that leaves, if a service or another connection has its port, and
/// returns the client's entry, or decides otherwise about the packet. A packet that was redirected and had to wait for its
/// neighbour is not the network stack's: it has arrived at a device with the programs.
pub(crate) fn begin_at_node(state: &mut HookState<'_>, key: &PacketKey) -> Result<Connection, Decision> {
    let answer = PacketKey { tuple: key.tuple.turned(), side: Side::Arriving, ..*key };
    let other = state.tables.find(&answer).filter(|other| other.flags.is_reverse).copied();
    let from = state.packet.came_by;
    let is_other = other.is_some_and(|other| {
        let may_be_own = from != 0 && (from == other.ifindex || state.node.state.uplinks.contains_key(&from));
        !may_be_own && state.tables.keeps(Rule::StackGetsOtherPort)
    });
    if !is_other && !has_port_of_service(state, key) {
        return Err(state.next());
    }
    let now = state.node.now();
    let entry = Connection {
        to: key.tuple,
        service: ServiceId(0),
        backend: other.map_or(BackendId(0), |other| other.backend),
        offset: 0,
        ifindex: state.packet.ifindex,
        last_used: now,
        created: now,
        flags: Flags { is_of_node: true, ..Flags::default() },
        acknowledgment: syn_acknowledgment(state),
        bytes: 0,
    };
    store(state, key, entry).ok_or_else(|| state.discard(Reason::NoPort))
}

/// Finds the ports and stores both entries; `None` if no port is free.
fn store(state: &mut HookState<'_>, key: &PacketKey, mut entry: Connection) -> Option<Connection> {
    let search = Search { key, reverse_key: &entry.reverse_key(key), backend: entry.backend, now: state.node.now() };
    let reverse_key = if entry.flags.is_redirected || entry.flags.is_of_node {
        ports::source_port(&mut state.tables, state.node.settings, &search, state.random)?
    } else {
        ports::client_port(&state.tables, &search)?
    };
    entry.to.source = reverse_key.tuple.target;
    let flags = Flags { is_reverse: true, is_of_pod: key.side == Side::FromPod, ..entry.flags };
    let reverse = Connection { to: key.tuple.turned(), flags, acknowledgment: 0, ..entry };
    if let Some(other) = state.tables.find(&reverse_key).copied() {
        state.tables.remove_pair(&reverse_key, &other);
    }
    state.tables.put_half_open(reverse_key, reverse);
    entry.bytes = state.headers.length() as u64;
    state.tables.put_half_open(*key, entry);
    Some(entry)
}

fn no_port(state: &mut HookState<'_>, protocol: Protocol) -> Decision {
    match protocol {
        Protocol::Tcp => state.answer_reset(Reason::NoPort),
        _ => state.discard(Reason::NoPort),
    }
}
