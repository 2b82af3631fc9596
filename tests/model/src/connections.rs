//! The tables of the packet path and the life of their entries. A connection has two entries: one for packets of the
//! client, one for packets of the backend. Handshakes are in `half_open`, where new ones evict old ones. A connection
//! moves to `connections`, which evicts nothing, when the client has answered the backend.

use imbl::OrdMap;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::state::entries::{BackendId, ServiceId};

use crate::headers::Ports;
use crate::headers::tcp_flags::{ACK, FIN, RST, SYN};
use crate::key::{FragmentKey, PacketKey, Side, Tuple};
use crate::node::Reason;
use crate::rule::Rule;

/// After these seconds without a packet, a connection gives way to another one before the search has tried all ports.
/// Before them, one that has ended never does.
pub(crate) const QUIET_SECONDS: u32 = 2;

/// Bytes that a client may have received before the programs see that it has received anything: the window in its SYN,
/// which is never scaled, and a FIN.
const MOST_RECEIVED: u32 = 1 << 16;

/// How far a number of TCP may be from the last one of its kind and still show that the sender sees the connection.
pub const NEAR: u32 = 1 << 16;

/// The ids of redirected datagrams are used again after these seconds, and the number of ids in each.
const ID_SECONDS: u32 = 32;
const IDS_PER_SECOND: u32 = 2_048;

/// Seconds during which the ports of a datagram's first fragment are valid for the others: `net.ipv4.ipfrag_time`.
const FRAGMENT_SECONDS: u16 = 30;

/// An entry of `half_open` or `connections`: `struct connection` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The addresses and ports that are written into the packet.
    pub to: Tuple,
    pub service: ServiceId,
    pub backend: BackendId,
    /// Position of the backend in the view when it was last looked for.
    pub offset: u32,
    /// The device that the connection began at, for display.
    pub ifindex: u32,
    /// Seconds of the monotonic clock when an entry last translated a packet.
    pub last_used: u32,
    /// That clock, when the connection began.
    pub created: u32,
    pub flags: Flags,
    /// TCP, in a handshake: the number that acknowledges the SYN of the entry's side; then what that side has acknowledged
    /// last. 0 if the programs have not seen it.
    pub acknowledgment: u32,
    /// Bytes of the packets that the entry translated, from the IP header.
    pub bytes: u64,
}

/// `enum connection_flags` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The packet does not pass the network stack of this node.
    pub is_redirected: bool,
    /// The entry is for packets from the backend.
    pub is_reverse: bool,
    /// The backend has answered. Only in entries for packets from the backend.
    pub has_replied: bool,
    /// The entry translated a TCP packet with the FIN flag and the numbers of the connection.
    pub has_fin: bool,
    /// `has_fin` for the RST flag.
    pub has_reset: bool,
    /// The backend was selected from the local view.
    pub is_local_view: bool,
    /// The connection is established, but in `half_open`, because `connections` was full.
    pub is_assured: bool,
    /// Only in the entry for packets from the client of an established TCP connection: the packet that set `last_used` came
    /// from the client, as its numbers show, and a backend that still has the connection answers it.
    pub is_waiting: bool,
    /// The client is this node, whose network stack has sent the packets from the port of another connection.
    pub is_of_node: bool,
    /// Direct return: packets keep their addresses, and the backend answers the client itself. Only in `half_open`, and
    /// without the other entry; the source is the node's address on the way to the backend.
    pub is_forwarded: bool,
    /// The packets are in a tunnel to the target.
    pub is_tunnelled: bool,
    /// The client's packets arrive at the device of a pod. Only in the backend's entry.
    pub is_of_pod: bool,
}

impl FragmentPorts {
    /// The id that the fragments of the datagram get, which has 32 bits with IPv6.
    pub fn new_id(&self) -> u32 {
        (u32::from(self.seen) / ID_SECONDS) << 16 | u32::from(self.id)
    }
}

impl Connection {
    /// The key of the other direction's entry.
    pub fn reverse_key(&self, key: &PacketKey) -> PacketKey {
        let Flags { is_redirected, is_reverse, is_of_node, is_of_pod, .. } = self.flags;
        let side = match !is_redirected && is_reverse == is_of_node {
            _ if is_of_pod => Side::FromPod,
            true => Side::Leaving,
            false => Side::Arriving,
        };
        PacketKey { tuple: self.to.turned(), protocol: key.protocol, side }
    }

    /// Whether it translates to what the key translates from.
    fn leads_back(&self, key: &PacketKey) -> bool {
        self.to == key.tuple.turned() && self.flags.is_of_pod == (key.side == Side::FromPod)
    }

    /// Whether the other entry is for the opposite direction of the connection that has this entry under this key.
    fn belongs_with(&self, key: &PacketKey, other: &Self) -> bool {
        other.leads_back(key) && other.flags.is_reverse != self.flags.is_reverse
    }
}

/// The client's last backend: `struct affinity` of `bpf/shared.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Nanoseconds of the monotonic clock.
    pub last_used_ns: u64,
    pub backend: BackendId,
    /// Its last known position in the view.
    pub offset: u32,
}

/// The ports of a datagram that was split: `struct fragment` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentPorts {
    /// Source port in host byte order.
    pub source: u16,
    /// Destination port in host byte order.
    pub target: u16,
    /// Seconds of the monotonic clock when the first fragment was seen, the lower 16 bits.
    pub seen: u16,
    /// The id that all fragments get if they are redirected.
    pub id: u16,
}

/// The sizes of the tables, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Entries of `connections`, two for each connection.
    pub connections: usize,
    /// Entries of `half_open`.
    pub half_open: usize,
    /// Entries of `fragments`.
    pub fragments: usize,
}

/// Whether a new connection can have a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// No other connection has it.
    Free,
    /// It belongs to a connection that gives way, and was used so many seconds ago.
    GivesWay(u32),
    /// Another connection uses it.
    Taken,
}

/// What the packet programs remember. Clones share their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    pub limits: TableLimits,
    /// The rule that a test has removed.
    pub removed: Option<Rule>,
    /// The connections that both ends take part in.
    pub connections: OrdMap<PacketKey, Connection>,
    pub half_open: OrdMap<PacketKey, Connection>,
    /// The datagrams that were split.
    pub fragments: OrdMap<FragmentKey, FragmentPorts>,
    /// The backends of clients of services with session affinity, by the client's number.
    pub affinity: OrdMap<(u64, ServiceId), Affinity>,
    /// Where the next search for a source port starts, by the backend's number.
    pub cursors: OrdMap<u32, u32>,
    /// The last second with a datagram in fragments that was redirected between two addresses, and their number in it.
    pub fragment_ids: OrdMap<(Addr, Addr), (u32, u32)>,
    /// The second of the last answers to packets, and the number of answers in it, by service and reason.
    pub answered: OrdMap<(ServiceId, Reason), (u32, u32)>,
}

/// The lower 16 bits of a time.
pub(crate) const fn short(now: u32) -> u16 {
    let [.., high, low] = now.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Whether the number is near the last one of its kind.
pub(crate) const fn is_within(number: u32, last: u32, distance: u32) -> bool {
    number.wrapping_sub(last).wrapping_add(distance) < 2 * distance
}

const fn is_near(number: u32, last: u32) -> bool {
    is_within(number, last, NEAR)
}

/// Whether the flags are those of a TCP packet that opens a connection.
pub const fn is_plain_syn(flags: u8) -> bool {
    flags & (SYN | RST | ACK | FIN) == SYN
}

impl Tables {
    /// Empty tables.
    pub fn new(limits: TableLimits) -> Self {
        Self {
            limits,
            removed: None,
            connections: OrdMap::new(),
            half_open: OrdMap::new(),
            fragments: OrdMap::new(),
            affinity: OrdMap::new(),
            cursors: OrdMap::new(),
            fragment_ids: OrdMap::new(),
            answered: OrdMap::new(),
        }
    }

    /// Whether the rule applies: no test has removed it.
    pub fn keeps(&self, rule: Rule) -> bool {
        self.removed != Some(rule)
    }

    /// The entry in either table.
    pub fn find(&self, key: &PacketKey) -> Option<&Connection> {
        self.connections.get(key).or_else(|| self.half_open.get(key))
    }

    /// The key of a packet that arrives with this one. Clients that are pods share no connection with others, but what a
    /// backend answers at the device of a pod has the same key as at other devices.
    #[must_use]
    pub fn key_of_arrival(&self, key: PacketKey) -> PacketKey {
        let answer = PacketKey { side: Side::Arriving, ..key };
        let is_answer = || self.find(&key).is_none() && self.find(&answer).is_some_and(|entry| entry.flags.is_reverse);
        let is_shared = key.side == Side::FromPod && (is_answer() || !self.keeps(Rule::PodsShareNothing));
        if is_shared { answer } else { key }
    }

    /// The entry of the other direction; `None` if it does not exist or belongs to another connection.
    pub fn reverse_of(&self, key: &PacketKey, entry: &Connection) -> Option<(PacketKey, &Connection)> {
        let reverse_key = entry.reverse_key(key);
        let reverse = self.find(&reverse_key)?;
        entry.belongs_with(key, reverse).then_some((reverse_key, reverse))
    }

    /// Whether one end has reset the connection, or both have closed it.
    pub fn is_closing(&self, key: &PacketKey, entry: &Connection) -> bool {
        let reverse = self.reverse_of(key, entry).map(|(_, reverse)| reverse.flags).unwrap_or_default();
        entry.flags.has_reset || reverse.has_reset || (entry.flags.has_fin && reverse.has_fin)
    }

    /// The client's key of the established connection that has this key for packets from its backend, if it has ended.
    fn ended(&self, reverse_key: &PacketKey) -> Option<PacketKey> {
        let reverse = self.connections.get(reverse_key).filter(|reverse| reverse.flags.is_reverse)?;
        let key = reverse.reverse_key(reverse_key);
        let entry = self.connections.get(&key).filter(|entry| reverse.belongs_with(reverse_key, entry))?;
        let is_reset = reverse.flags.has_reset || entry.flags.has_reset;
        (is_reset || (reverse.flags.has_fin && entry.flags.has_fin)).then_some(key)
    }

    /// Deletes that connection. Returns whether there was one.
    pub(crate) fn forget_ended(&mut self, reverse_key: &PacketKey) -> bool {
        let Some(key) = self.ended(reverse_key) else { return false };
        self.connections.remove(&key);
        self.connections.remove(reverse_key);
        true
    }

    /// For a SYN of the node itself that leaves: the connection that has this key for the backend's answers loses it, if
    /// it has ended, or if no backend has answered it and the SYN is not its own.
    pub(crate) fn give_port_up(&mut self, reverse_key: &PacketKey, sequence: u32) {
        if !self.keeps(Rule::StackTakesPort) || self.forget_ended(reverse_key) {
            return;
        }
        let Some(reverse) = self.half_open.get(reverse_key).copied() else { return };
        let Flags { is_reverse, has_replied, is_assured, .. } = reverse.flags;
        let key = reverse.reverse_key(reverse_key);
        let client = self.half_open.get(&key).filter(|client| reverse.belongs_with(reverse_key, client));
        let is_other = client.is_some_and(|client| client.acknowledgment != sequence.wrapping_add(1));
        if is_reverse && !has_replied && !is_assured && is_other {
            self.half_open.remove(&key);
            self.half_open.remove(reverse_key);
        }
    }

    /// Stores an entry of a handshake. If `half_open` is full, the entry that has not been used for the longest time is
    /// removed; the kernel chooses such an entry only approximately.
    pub fn put_half_open(&mut self, key: PacketKey, entry: Connection) {
        if self.half_open.len() >= self.limits.half_open && !self.half_open.contains_key(&key) {
            let oldest = self.half_open.iter().min_by_key(|(key, entry)| (entry.last_used, **key)).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.half_open.remove(&oldest);
            }
        }
        self.half_open.insert(key, entry);
    }

    /// Removes the client's entry, and the backend's if it is of the same connection.
    pub fn remove_pair(&mut self, key: &PacketKey, entry: &Connection) {
        let reverse_key = self.reverse_of(key, entry).map(|(reverse_key, _)| reverse_key);
        for key in [Some(*key), reverse_key].into_iter().flatten() {
            self.connections.remove(&key);
            self.half_open.remove(&key);
        }
    }

    /// Whether the client's packet proves that the client has received the backend's answer, so that its address is not
    /// false.
    pub fn has_proved_address(&self, key: &PacketKey, entry: &Connection, ports: &Ports) -> bool {
        let Some((_, reverse)) = self.reverse_of(key, entry) else { return false };
        if !reverse.flags.has_replied || key.protocol != Protocol::Tcp {
            return reverse.flags.has_replied;
        }
        let received = ports.acknowledgment.wrapping_sub(reverse.acknowledgment);
        // 0: the backend has sent nothing, or only a RST.
        let is_received = reverse.acknowledgment != 0 && received <= MOST_RECEIVED;
        let is_known = entry.flags.is_assured || !self.keeps(Rule::ProofByAcknowledgment);
        ports.tcp_flags & (ACK | SYN | RST) == ACK && (is_known || is_received)
    }

    /// Whether both ends take part in the connection of the entry with this key.
    fn is_established(&self, key: &PacketKey) -> bool {
        self.connections.contains_key(key) || self.half_open.get(key).is_some_and(|entry| entry.flags.is_assured)
    }

    /// Whether the sender of the packet is an end of the connection, as its numbers show. In a handshake it acknowledges
    /// the other side's SYN; afterwards, its sequence number is near what the other side has
    /// acknowledged last.
    fn has_numbers_of_end(&self, key: &PacketKey, entry: &Connection, ports: &Ports) -> bool {
        let Some((reverse_key, reverse)) = self.reverse_of(key, entry) else { return false };
        let last = reverse.acknowledgment;
        if self.is_established(&reverse_key) {
            return is_near(ports.sequence, last);
        }
        // 0: nothing has come, or an earlier nodelb has begun the connection.
        let is_unknown = last == 0 && (entry.flags.is_reverse || reverse.flags.has_replied);
        let is_next = is_unknown || (last != 0 && is_near(ports.acknowledgment, last));
        ports.tcp_flags & ACK != 0 && is_next
    }

    /// The same; in an established connection, the packet may also acknowledge about what the last one did.
    fn is_of_end(&self, key: &PacketKey, entry: &Connection, ports: &Ports) -> bool {
        let is_same = ports.tcp_flags & ACK != 0 && is_near(ports.acknowledgment, entry.acknowledgment);
        (is_same && self.is_established(key)) || self.has_numbers_of_end(key, entry, ports)
    }

    /// What the entry contains of the acknowledgments after the packet.
    fn acknowledgment(&self, key: &PacketKey, entry: &Connection, ports: &Ports) -> u32 {
        let (last, number) = (entry.acknowledgment, ports.acknowledgment);
        let is_of_end = |rule| self.has_numbers_of_end(key, entry, ports) || !self.keeps(rule);
        if !self.is_established(key) && !entry.flags.is_reverse {
            // Anyone can begin a handshake with a client's address before the client does.
            let is_syn = ports.tcp_flags & SYN != 0;
            let has_number = ports.tcp_flags & (SYN | ACK) != 0 && ports.tcp_flags & RST == 0;
            return if has_number { ports.sequence.wrapping_add(is_syn.into()) } else { last };
        }
        if !self.is_established(key) {
            let has_chosen = last == 0 && ports.tcp_flags & RST == 0;
            return match is_of_end(Rule::AnswerByAcknowledgment) {
                true if ports.tcp_flags & SYN != 0 => ports.sequence.wrapping_add(1),
                true if has_chosen => ports.sequence,
                _ => last,
            };
        }
        let (moved, behind) = (number.wrapping_sub(last), last.wrapping_sub(number));
        let is_next = moved < NEAR || (behind > NEAR && is_of_end(Rule::AcknowledgmentInWindow));
        if ports.tcp_flags & ACK != 0 && (is_next || !self.keeps(Rule::AcknowledgmentInWindow)) { number } else { last }
    }

    /// Moves a handshake that the backend and the client have answered to `connections`. If the table is full, the
    /// entries stay in `half_open`, and are marked.
    pub fn establish(&mut self, key: &PacketKey, entry: &Connection, ports: &Ports) {
        let Some((reverse_key, reverse)) = self.reverse_of(key, entry) else { return };
        if !reverse.flags.has_replied || !self.half_open.contains_key(&reverse_key) {
            return;
        }
        let (mut reverse, mut entry) = (*reverse, *entry);
        let has_room = self.connections.len() + 2 <= self.limits.connections && self.has_room_for(key.protocol);
        if reverse.flags.is_assured && !has_room {
            return;
        }
        if !reverse.flags.is_assured {
            reverse.acknowledgment = ports.sequence;
            entry.acknowledgment = ports.acknowledgment;
            // A RST before ended a handshake that another machine began with the client's address.
            if self.keeps(Rule::ResetTakenBack) {
                reverse.flags.has_reset = false;
                entry.flags.has_reset = false;
            }
        }
        for (key, mut entry) in [(reverse_key, reverse), (*key, entry)] {
            entry.flags.is_assured = !has_room;
            self.half_open.remove(&key);
            let table = if has_room { &mut self.connections } else { &mut self.half_open };
            table.insert(key, entry);
        }
    }

    /// Whether `connections` may have another connection of the protocol: UDP flows may have half of it.
    fn has_room_for(&self, protocol: Protocol) -> bool {
        let flows = || self.connections.keys().filter(|key| key.protocol == Protocol::Udp).count();
        protocol != Protocol::Udp || !self.keeps(Rule::UdpHasHalf) || flows() < self.limits.connections / 2
    }

    fn find_mut(&mut self, key: &PacketKey) -> Option<&mut Connection> {
        if self.connections.contains_key(key) { self.connections.get_mut(key) } else { self.half_open.get_mut(key) }
    }

    /// Records in the entry that it translates a packet of this length. A FIN or a RST counts only if it comes from an end
    /// of the connection. A connection that goes on after a RST has not ended: the receiver has ignored it.
    pub fn touch(&mut self, key: &PacketKey, now: u32, ports: &Ports, length: usize) {
        let Some(mut entry) = self.find(key).copied() else { return };
        let has = |flag: u8| ports.tcp_flags & flag != 0;
        let is_of_end = self.is_of_end(key, &entry, ports);
        let is_answer = is_of_end || key.protocol != Protocol::Tcp || self.is_established(key);
        let counts = |rule| is_of_end || !self.keeps(rule);
        let reset_rule = if entry.flags.is_reverse { Rule::BackendResetInWindow } else { Rule::ClientResetInWindow };
        let goes_on = is_of_end && !has(RST | SYN) && entry.last_used != now && self.keeps(Rule::ResetTakenBack);
        let may_reset = has(RST) && (entry.flags.is_reverse || self.is_established(key));
        if key.protocol == Protocol::Tcp {
            entry.acknowledgment = self.acknowledgment(key, &entry, ports);
        }
        if entry.last_used != now {
            self.note_second(key, &mut entry, now, ports);
        }
        entry.bytes += length as u64;
        entry.flags.has_replied |= entry.flags.is_reverse && (is_answer || !self.keeps(Rule::AnswerByAcknowledgment));
        entry.flags.has_fin |= has(FIN) && counts(Rule::FinInWindow);
        entry.flags.has_reset = (entry.flags.has_reset && !goes_on) || (may_reset && counts(reset_rule));
        if let Some(stored) = self.find_mut(key) {
            *stored = entry;
        }
    }

    /// Notes the first packet of a second that the entry translates. A client's SYN in an established connection is not
    /// noted: anyone can send it. The backend answers data, and what it has acknowledged already (a keepalive).
    fn note_second(&self, key: &PacketKey, entry: &mut Connection, now: u32, ports: &Ports) {
        if key.protocol == Protocol::Tcp && !entry.flags.is_reverse && self.is_established(key) {
            if ports.tcp_flags & SYN != 0 && self.keeps(Rule::SilenceAfterQuestion) {
                return;
            }
            let acknowledged = self.reverse_of(key, entry).map(|(_, reverse)| reverse.acknowledgment);
            let needs_answer = ports.has_data || acknowledged != Some(ports.sequence);
            let is_of_client = self.has_numbers_of_end(key, entry, ports);
            entry.flags.is_waiting = (is_of_client && needs_answer) || !self.keeps(Rule::SilenceAfterQuestion);
        }
        entry.last_used = now;
    }

    /// The state of this key for packets from the backend, if a new connection of a client with `key` needs one. An
    /// established TCP connection gives way only when it has ended. A handshake and a UDP flow do: anyone can begin one
    /// with a false address.
    pub fn port(&self, reverse_key: &PacketKey, key: &PacketKey, now: u32) -> Port {
        let Some(reverse) = self.find(reverse_key) else { return Port::Free };
        if reverse.leads_back(key) {
            return Port::Free;
        }
        let is_established = self.connections.contains_key(reverse_key);
        let Some((_, client)) = self.reverse_of(reverse_key, reverse) else {
            let idle = now.saturating_sub(reverse.last_used);
            return if is_established { Port::Taken } else { self.gives_way(idle) };
        };
        let idle = now.saturating_sub(reverse.last_used.max(client.last_used));
        if key.protocol != Protocol::Tcp || !(is_established || reverse.flags.is_assured) {
            return self.gives_way(idle);
        }
        let has_ended = reverse.flags.has_reset || (reverse.flags.has_fin && client.flags.has_fin);
        if has_ended && idle >= QUIET_SECONDS { Port::GivesWay(idle) } else { Port::Taken }
    }

    fn gives_way(&self, idle: u32) -> Port {
        if self.keeps(Rule::FlowsGiveWay) { Port::GivesWay(idle) } else { Port::Taken }
    }

    /// Whether the client's handshake has both entries. The backend's is restored if it was evicted, unless another
    /// connection has its key.
    pub fn has_both(&mut self, key: &PacketKey, entry: &Connection) -> bool {
        let reverse_key = entry.reverse_key(key);
        if self.find(&reverse_key).is_none() {
            let Flags { is_redirected, is_local_view, is_of_node, .. } = entry.flags;
            let is_of_pod = key.side == Side::FromPod;
            let flags =
                Flags { is_redirected, is_local_view, is_of_node, is_of_pod, is_reverse: true, ..Flags::default() };
            self.put_half_open(
                reverse_key,
                Connection { to: key.tuple.turned(), flags, acknowledgment: 0, bytes: 0, ..*entry },
            );
        }
        self.reverse_of(key, entry).is_some()
    }

    /// Takes an id for a datagram between the addresses; `None` if this second has none left.
    pub fn take_fragment_id(&mut self, addresses: (Addr, Addr), now: u32) -> Option<u16> {
        let (second, count) = self.fragment_ids.get(&addresses).copied().unwrap_or((0, 0));
        let (second, count) = if second < now { (now, 0) } else { (second, count) };
        self.fragment_ids.insert(addresses, (second, count.saturating_add(1)));
        let id = (count < IDS_PER_SECOND).then_some(second % ID_SECONDS * IDS_PER_SECOND + count)?;
        u16::try_from(id).ok()
    }

    /// Stores the ports of the first fragment. If the table is full, the oldest datagram is removed.
    pub fn put_fragment(&mut self, key: FragmentKey, ports: FragmentPorts) {
        if self.fragments.len() >= self.limits.fragments && !self.fragments.contains_key(&key) {
            let oldest = self.fragments.iter().min_by_key(|(key, ports)| (ports.seen, **key)).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.fragments.remove(&oldest);
            }
        }
        self.fragments.insert(key, ports);
    }

    /// The ports of the datagram, if its first fragment was seen.
    pub fn fragment(&self, key: &FragmentKey, now: u32) -> Option<FragmentPorts> {
        self.fragments.get(key).copied().filter(|ports| short(now).wrapping_sub(ports.seen) < FRAGMENT_SECONDS)
    }
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;
