//! The decision about a packet: what the programs of `bpf/packet.bpf.c` do, as a pure function.

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::packets::admission::{Admission, admission};
use nodelb_core::state::entries::{Lead, ServiceId};

use crate::begin::{begin, begin_at_node, leads_here, slot_by_all};
use crate::choice::offset_number;
use crate::connections::{Connection, FragmentPorts, Tables, is_plain_syn, short};
use crate::forward;
use crate::headers::tcp_flags::{ACK, SYN};
use crate::headers::{Content, Headers, Parsed, Ports, parse};
use crate::hook_state::{Decision, HookState};
use crate::icmp;
use crate::key::{FragmentKey, PacketKey, Side};
use crate::node::{Node, Packet, Reason, Verdict};
use crate::rewrite;
use crate::rule::Rule;
use crate::unwrap;

/// A packet without an answer counts as lost after this many seconds.
const ANSWER_SECONDS: u32 = 2;

/// A SYN of a client that used its port so many seconds ago is not one of the same connection: TIME_WAIT.
const TIME_WAIT_SECONDS: u32 = 60;

/// A client does not repeat the packets of a connection that it has closed for longer.
const QUIET_SECONDS: u32 = 2;

/// The result of [`translate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What is done with the packet.
    pub verdict: Verdict,
    /// The frame afterwards; as it came if it is dropped.
    pub bytes: Vec<u8>,
    /// Why the packet was not translated or not forwarded; `None` if it was, or if it is no service's.
    pub reason: Option<Reason>,
    pub tables: Tables,
    /// The backend that gets a packet which keeps its addresses (direct return).
    pub backend: Option<Addr>,
}

/// Decides what is done with a packet. `random` returns a random number at each call.
pub fn translate(node: Node<'_>, tables: &Tables, random: &mut dyn FnMut() -> u32, packet: &Packet) -> Outcome {
    let untouched = |reason| {
        let (verdict, bytes, tables) = (Verdict::Next, packet.bytes.clone(), tables.clone());
        Outcome { verdict, bytes, reason, tables, backend: None }
    };
    if packet.has_vlan_tag || (packet.hook.side() != Side::Leaving && !packet.is_for_host) {
        return untouched(None);
    }
    let headers = match parse(&packet.bytes, packet.l2_length, packet.is_gso) {
        Parsed::Packet(headers) => headers,
        Parsed::Foreign => return untouched(None),
        Parsed::Short => return untouched(Some(Reason::Short)),
    };
    let whole = &packet.bytes;
    let unwrapped = unwrap::unwrapped(&node, tables, packet, &headers);
    let (packet, headers, tunnel_end) = match &unwrapped {
        _ if !matches!(headers.content, Content::Tunnel(_)) => (packet, headers, None),
        Some((inner, inner_headers)) => (inner, inner_headers.clone(), Some(headers.target)),
        None => return untouched(None),
    };
    let (tables, service, new_id, next_hop) = (tables.clone(), ServiceId(0), None, None);
    let mut state = HookState { node, tables, random, packet, headers, service, new_id, tunnel_end, next_hop };
    let Decision { verdict, mut bytes, reason } = decide(&mut state);
    if verdict == Verdict::Drop {
        bytes.clone_from(whole);
    }
    Outcome { verdict, bytes, reason, tables: state.tables, backend: state.next_hop }
}

fn decide(state: &mut HookState<'_>) -> Decision {
    let side = state.packet.hook.side();
    if state.tunnel_end.is_some_and(|end| end.family() != state.headers.family) {
        return left_to_backend(state);
    }
    let (protocol, ports) = match state.headers.content {
        Content::IcmpError => return icmp::translate(state),
        Content::Tunnel(_) => return state.next(),
        Content::Transport(protocol, ports) => (protocol, ports),
        Content::LaterFragment(protocol) => {
            let known = fragment_key(&state.headers, protocol, side);
            let known = known.and_then(|key| state.tables.fragment(&key, state.node.now()));
            let Some(known) = known else { return state.next() };
            state.new_id = state.tables.keeps(Rule::FragmentIds).then(|| known.new_id());
            (protocol, Ports { source: known.source, target: known.target, ..Ports::default() })
        }
    };
    let key = PacketKey { tuple: state.headers.tuple(ports.source, ports.target), protocol, side };
    let entry = match side {
        Side::Arriving | Side::FromPod => arriving(state, &state.tables.key_of_arrival(key), &ports),
        Side::Leaving => leaving(state, &key, &ports),
    };
    let entry = match entry {
        Ok(entry) => entry,
        Err(decision) => return decision,
    };
    if let Some(key) = fragment_key(&state.headers, protocol, side)
        && !store_ports(state, &key, &ports, &entry)
    {
        return state.discard(Reason::FragmentRate);
    }
    if entry.flags.is_forwarded {
        return forward::unchanged(state, &entry);
    }
    let mut bytes = state.packet.bytes.clone();
    rewrite::write(&mut bytes, &state.headers, &entry.to);
    if entry.flags.is_redirected {
        return forward::redirect(state, &entry, bytes);
    }
    Decision { verdict: Verdict::Next, bytes, reason: None }
}

/// Leaves a packet that has come in a tunnel of another family to the network stack: the backend has the service's address.
fn left_to_backend(state: &mut HookState<'_>) -> Decision {
    if let Content::Transport(protocol, ports) = state.headers.content
        && let Some(key) = fragment_key(&state.headers, protocol, state.packet.hook.side())
    {
        let seen = short(state.node.now());
        state.tables.put_fragment(key, FragmentPorts { source: ports.source, target: ports.target, seen, id: 0 });
    }
    state.next()
}

/// Stores the ports of a first fragment, with an id of its own if it is redirected; false if there is none. A later
/// fragment stores what it has found.
fn store_ports(state: &mut HookState<'_>, key: &FragmentKey, ports: &Ports, entry: &Connection) -> bool {
    if matches!(state.headers.content, Content::LaterFragment(_)) {
        return true;
    }
    let (now, addresses) = (state.node.now(), (entry.to.source.addr, entry.to.target.addr));
    let id = match entry.flags.is_redirected && !entry.flags.is_forwarded {
        true => state.tables.take_fragment_id(addresses, now),
        false => Some(0),
    };
    let Some(id) = id else { return false };
    let stored = FragmentPorts { source: ports.source, target: ports.target, seen: short(now), id };
    state.new_id = state.tables.keeps(Rule::FragmentIds).then(|| stored.new_id());
    state.tables.put_fragment(*key, stored);
    true
}

/// The key that the ports of the datagram are stored under if the packet is one of its fragments.
fn fragment_key(headers: &Headers, protocol: Protocol, side: Side) -> Option<FragmentKey> {
    let id = headers.fragment?.id;
    Some(FragmentKey { source: headers.source, target: headers.target, id, protocol, side })
}

/// The entry for a packet that leaves: the one that exists, or that of a new connection of this node. If its network stack
/// opens a TCP connection from a source port, it has given the port away.
fn leaving(state: &mut HookState<'_>, key: &PacketKey, ports: &Ports) -> Result<Connection, Decision> {
    let is_syn = is_plain_syn(ports.tcp_flags);
    // What was redirected and has waited for its neighbour has arrived by a device with the programs.
    let has_arrived = state.node.state.uplinks.contains_key(&state.packet.came_by);
    let is_of_other = |entry: &Connection| has_arrived && entry.flags.is_of_node && !entry.flags.is_reverse;
    if let Some(entry) = state.tables.find(key).copied().filter(|entry| !is_of_other(entry)) {
        if entry.flags.is_reverse || continues_at_node(&mut state.tables, key, &entry, ports) {
            return Ok(touched(state, key, entry, ports));
        }
        state.tables.remove_pair(key, &entry);
    }
    let is_later = matches!(state.headers.content, Content::LaterFragment(_));
    let may_begin = (is_syn || key.protocol == Protocol::Udp) && !is_later;
    if !may_begin {
        return Err(state.next());
    }
    if is_syn {
        let answer = PacketKey { tuple: key.tuple.turned(), side: Side::Arriving, ..*key };
        state.tables.give_port_up(&answer, ports.sequence);
    }
    begin_at_node(state, key)
}

/// Whether the packet continues the connection of this node with this entry, which is then established if the backend has
/// answered.
fn continues_at_node(tables: &mut Tables, key: &PacketKey, entry: &Connection, ports: &Ports) -> bool {
    let is_half_open = !tables.connections.contains_key(key);
    if is_half_open && !tables.has_both(key, entry) {
        return false;
    }
    let has_ended = tables.reverse_of(key, entry).is_none() || tables.is_closing(key, entry);
    if is_plain_syn(ports.tcp_flags) && has_ended {
        return false;
    }
    if is_half_open && tables.has_proved_address(key, entry, ports) {
        tables.establish(key, entry, ports);
    }
    true
}

/// Whether the packet is the answer to a SYN of the node itself: its entry is of a connection that has ended.
fn is_answer_to_node(tables: &Tables, key: &PacketKey, entry: &Connection, ports: &Ports) -> bool {
    let has_ended = || tables.reverse_of(key, entry).is_none() || tables.is_closing(key, entry);
    ports.tcp_flags & (SYN | ACK) == SYN | ACK
        && entry.flags.is_reverse
        && has_ended()
        && tables.keeps(Rule::AnswerOfEndedConnection)
}

/// Records in the entry that it translates the packet.
fn touched(state: &mut HookState<'_>, key: &PacketKey, entry: Connection, ports: &Ports) -> Connection {
    if entry.flags.is_forwarded {
        forward::touch(state, key, ports);
        return entry;
    }
    state.tables.touch(key, state.node.now(), ports, state.headers.length());
    entry
}

/// The entry for a packet that arrives: the one that exists, or that of a new connection.
fn arriving(state: &mut HookState<'_>, key: &PacketKey, ports: &Ports) -> Result<Connection, Decision> {
    let to = L4Addr::new(key.tuple.target.addr, key.tuple.target.port, key.protocol);
    let established = state.tables.connections.get(key).copied();
    let found = state.node.frontend(state.packet.hook, to);
    let is_source_port = state.node.settings.source_ports.contains(&to.port);
    let is_pod = state.packet.hook.is_pod();
    let known = established.or_else(|| {
        let half_open = state.tables.half_open.get(key).copied();
        let is_own = |entry: &Connection| entry.flags.is_forwarded && !forward::has_short_ttl(&state.headers, entry);
        let is_syn = key.protocol == Protocol::Tcp && is_plain_syn(ports.tcp_flags);
        half_open.filter(|entry| found.is_some() || is_source_port || (is_own(entry) && !is_pod && !is_syn))
    });
    if established.is_some_and(|entry| is_answer_to_node(&state.tables, key, &entry, ports)) {
        return Err(state.next());
    }
    if let Some(entry) = known {
        if let Some(decision) = refused_again(state, key, &entry, (ports, found)) {
            return Err(decision);
        }
        if let Some(entry) = continued(state, key, entry, (ports, found)) {
            return Ok(touched(state, key, entry, ports));
        }
        state.tables.remove_pair(key, &entry);
    }
    if found.is_none() && is_plain_syn(ports.tcp_flags) {
        // A backend on this node answers a direct connection under the key of one through a service.
        let answer = PacketKey { tuple: key.tuple.turned(), side: Side::Leaving, ..*key };
        state.tables.forget_ended(&answer);
    }
    let is_later = matches!(state.headers.content, Content::LaterFragment(_));
    match found {
        Some(frontend) if !is_later => begin(state, key, ports.tcp_flags, frontend),
        Some(_) if state.tunnel_end.is_some() => Err(state.discard(Reason::Fragment)),
        _ => Err(state.next()),
    }
}

/// What becomes of a SYN of a connection with direct return if its client may not connect any more: the entry stays, because
/// anyone can send a SYN.
fn refused_again(
    state: &mut HookState<'_>,
    key: &PacketKey,
    entry: &Connection,
    (ports, found): (&Ports, Option<Lead>),
) -> Option<Decision> {
    let is_asked = entry.flags.is_forwarded && key.protocol == Protocol::Tcp && is_plain_syn(ports.tcp_flags);
    let frontend = found.filter(|frontend| is_asked && frontend.service == entry.service)?;
    if admission(state.node.state, frontend, Some(key.tuple.source.addr)) == Admission::No {
        state.service = frontend.service;
        return Some(state.discard(Reason::SourceRange));
    }
    let is_left = state.node.settings.is_draining && state.tunnel_end.is_none() && entry.flags.is_assured;
    is_left.then(|| state.next())
}

/// The entry if the packet continues its connection, which moves to `connections` if it is established now. Not
/// continued are connections without the other entry; TCP connections that have ended when the client opens a new one,
/// and those with a backend that does not answer and is on this node or no longer the service's; UDP flows that would
/// reach another service or view, or another backend, or would not be admitted.
fn continued(
    state: &mut HookState<'_>,
    key: &PacketKey,
    mut entry: Connection,
    (ports, found): (&Ports, Option<Lead>),
) -> Option<Connection> {
    if entry.flags.is_reverse {
        return Some(entry);
    }
    if entry.flags.is_forwarded {
        return continued_forwarded(state, key, entry, (ports, found));
    }
    let is_new = is_plain_syn(ports.tcp_flags);
    let is_half_open = !state.tables.connections.contains_key(key);
    if is_half_open && !state.tables.has_both(key, &entry) {
        return None;
    }
    let reverse = state.tables.reverse_of(key, &entry).map(|(_, reverse)| *reverse);
    if is_new && (reverse.is_none() || state.tables.is_closing(key, &entry)) {
        return None;
    }
    let has_replied = reverse.is_some_and(|reverse| reverse.flags.has_replied);
    let is_later = matches!(state.headers.content, Content::LaterFragment(_));
    let is_proved = !is_half_open || entry.flags.is_assured;
    let asks = match key.protocol {
        Protocol::Tcp => is_new && !(is_proved && reverse.is_some_and(|reverse| is_answered(state, &entry, &reverse))),
        _ => !is_later,
    };
    if asks {
        if !leads_to(state, key, &entry, found) {
            return None;
        }
        let offset = offset_in_view(state, &entry)?;
        // If no route led to the backend for a moment, the entry takes it for one of this node.
        if is_new && !entry.flags.is_redirected && !has_replied {
            return None;
        }
        if offset != entry.offset {
            entry.offset = offset;
            let tables = &mut state.tables;
            let table = if is_half_open { &mut tables.half_open } else { &mut tables.connections };
            table.insert(*key, entry);
        }
    }
    if is_half_open && state.tables.has_proved_address(key, &entry, ports) {
        // The packet is noted as one of the handshake.
        let last_used = if entry.flags.is_assured { entry.last_used } else { state.node.now() };
        state.tables.establish(key, &Connection { last_used, ..entry }, ports);
    }
    Some(entry)
}

/// The entry if the packet continues its connection, which has direct return. Anyone can send a SYN: it begins
/// a new connection only if there was no other packet, or none for [`TIME_WAIT_SECONDS`] and the ring leads elsewhere, or if
/// the client has closed the connection and its backend is gone. What another node may have sent here does in the first two cases, if the ring leads
/// to this node.
fn continued_forwarded(
    state: &mut HookState<'_>,
    key: &PacketKey,
    mut entry: Connection,
    (ports, found): (&Ports, Option<Lead>),
) -> Option<Connection> {
    let is_later = matches!(state.headers.content, Content::LaterFragment(_));
    let is_syn = is_plain_syn(ports.tcp_flags);
    let idle = state.node.now().saturating_sub(entry.last_used);
    let is_unproven = (is_syn && !entry.flags.is_assured) || idle >= TIME_WAIT_SECONDS;
    let is_sent_on = forward::is_sent_on(state, &entry);
    let offset = offset_in_view(state, &entry);
    let is_kept = offset.is_some() && leads_to(state, key, &entry, found);
    let is_over = entry.flags.has_fin && !is_kept && idle >= QUIET_SECONDS;
    let leads_here = || found.is_some_and(|frontend| leads_here(state, key, frontend));
    let is_in_use = entry.flags.is_assured && !entry.flags.has_fin && state.tables.keeps(Rule::IdleConnectionStays);
    let is_repeated = !entry.flags.is_assured && entry.acknowledgment == ports.sequence.wrapping_add(1);
    let is_led_back = || {
        let frontend = found.filter(|frontend| offset.is_some() && frontend.service == entry.service);
        frontend.is_some_and(|frontend| {
            // Without a ring, no other node would find another backend.
            slot_by_all(state, key, frontend).is_none_or(|slot| slot.backend == entry.backend)
        })
    };
    let begins_again = match is_sent_on {
        true => is_unproven && (leads_here() || !state.tables.keeps(Rule::SentOnByRing)),
        false if is_unproven => is_syn && !((is_in_use || is_repeated) && is_led_back()),
        false => is_syn && (is_over || !state.tables.keeps(Rule::SynOfForwardedConnection)),
    };
    if begins_again {
        return None;
    }
    if let Some(offset) = offset.filter(|_| is_syn && !is_sent_on && entry.flags.has_fin && is_kept) {
        // The entry of the connection that the client has closed is that of the next one from its port.
        (entry.flags.has_fin, entry.offset) = (false, offset);
        entry.acknowledgment = ports.sequence.wrapping_add(1);
        state.tables.half_open.insert(*key, entry);
    }
    if key.protocol == Protocol::Udp && !is_later {
        if !leads_to(state, key, &entry, found) {
            return None;
        }
        entry.offset = offset_in_view(state, &entry)?;
        state.tables.half_open.insert(*key, entry);
    }
    Some(entry)
}

/// Whether the frontend reaches what the entry was made for. A UDP flow is admitted again.
fn leads_to(state: &HookState<'_>, key: &PacketKey, entry: &Connection, found: Option<Lead>) -> bool {
    let Some(frontend) = found else { return false };
    let is_asked = key.protocol == Protocol::Udp && state.tables.keeps(Rule::FlowAdmittedAgain);
    let is_admitted = || {
        let admission = admission(state.node.state, frontend, Some(key.tuple.source.addr));
        frontend.local == entry.flags.is_local_view && admission != Admission::No
    };
    frontend.service == entry.service && (!is_asked || is_admitted())
}

/// Whether the backend takes part in the connection: it has answered, and has not been silent since the client has sent
/// what it answers, [`ANSWER_SECONDS`] ago.
fn is_answered(state: &HookState<'_>, entry: &Connection, reverse: &Connection) -> bool {
    let is_silent = entry.flags.is_waiting
        && entry.last_used.saturating_sub(reverse.last_used) >= ANSWER_SECONDS
        && state.node.now().saturating_sub(entry.last_used) >= ANSWER_SECONDS;
    reverse.flags.has_replied && !is_silent && state.tables.keeps(Rule::SynOfAnsweredConnection)
}

/// The position of the connection's backend in its view, if it is still there.
fn offset_in_view(state: &HookState<'_>, entry: &Connection) -> Option<u32> {
    let service = state.node.state.services.get(&entry.service)?;
    let way = if entry.flags.is_tunnelled { Forward::Tunnel } else { Forward::Direct };
    if entry.flags.is_forwarded && service.forward != way {
        return None;
    }
    let view = service.view(entry.flags.is_local_view);
    let is_there = view.get(entry.offset as usize).is_some_and(|slot| slot.backend == entry.backend);
    if is_there {
        return Some(entry.offset);
    }
    view.iter().position(|slot| slot.backend == entry.backend).map(offset_number)
}
