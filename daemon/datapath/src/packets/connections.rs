//! Reads the connections of clients outside the node from the maps of the packet programs, in batches.

use std::io;
use std::ops::ControlFlow;

use libbpf_rs::MapHandle;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::forward::Forward;
use nodelb_core::state::entries::ServiceId;

use crate::layout::connections::{
    ConnectionBytes, ConnectionEntry, PacketKeyBytes, is_forwarded, packet_key, parse_connection,
};
use crate::packets::counts::seconds;
use crate::packets::handles::PacketMaps;
use crate::sys;

/// Sizes of the entries in bytes.
const KEY: usize = size_of::<PacketKeyBytes>();
const VALUE: usize = size_of::<ConnectionBytes>();

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionState {
    /// The backend has not answered.
    Unanswered,
    /// The client has not answered the backend.
    Handshake,
    Established,
    /// TCP: one of them has closed or reset the connection.
    Closing,
    /// Packets are forwarded without a translation, and the backend answers past this node.
    Forwarded,
}

impl ConnectionState {
    pub const NAMES: [&'static str; 5] = ["unanswered", "handshake", "established", "closing", "forwarded"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub client: L4Addr,
    pub frontend: L4Addr,
    pub backend: L4Addr,
    /// The address of the node that the backend sees; `None` if it sees the client's.
    pub source: Option<L4Addr>,
    /// [`ServiceId::CANARY`] if the client is this node, whose network stack has sent the packets from the port of another
    /// connection.
    pub service: ServiceId,
    /// Index of the device where the client's packets arrive.
    pub ifindex: u32,
    /// Whether the packets pass the network stack of the node by, because the backend is on another node.
    pub is_redirected: bool,
    pub forward: Forward,
    pub state: ConnectionState,
    /// Seconds since the last packet in either direction.
    pub idle: u32,
    /// Seconds since the first packet.
    pub age: u32,
    /// Bytes of IP packets in both directions.
    pub bytes: u64,
}

/// The two ends of a connection, and what nodelb is to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEnds {
    pub client: L4Addr,
    pub frontend: L4Addr,
    /// What the backend sees, the address of the client or of the node, and the backend; `None` if packets to it pass the
    /// network stack of the node, or keep the addresses that they have.
    pub past_stack: Option<(L4Addr, L4Addr)>,
}

impl ConnectionEnds {
    fn of(entry: &ConnectionEntry) -> Self {
        let ((client, frontend), (source, backend)) =
            if entry.is_reverse { (swapped(entry.to), swapped(entry.from)) } else { (entry.from, entry.to) };
        let is_past_stack = entry.is_redirected && entry.forward == Forward::Translate;
        Self { client, frontend, past_stack: is_past_stack.then_some((source, backend)) }
    }
}

const fn swapped((first, second): (L4Addr, L4Addr)) -> (L4Addr, L4Addr) {
    (second, first)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCount {
    /// Those that both sides have answered.
    pub connections: u64,
    /// The others that are translated. They can be evicted, as can those with direct return.
    pub handshakes: u64,
    /// Those with direct return.
    pub forwarded: u64,
}

impl ConnectionCount {
    /// As many handshakes as would take the room of those and of the connections with direct return.
    pub const fn half_open(&self) -> u64 {
        self.handshakes + self.forwarded.div_ceil(2)
    }
}

/// Reads the connections. Works from any thread and without capabilities.
#[derive(Debug)]
pub struct ConnectionReader {
    connections: MapHandle,
    half_open: MapHandle,
}

impl ConnectionReader {
    pub fn new(maps: &PacketMaps) -> io::Result<Self> {
        Ok(Self { connections: maps.handle("connections")?, half_open: maps.handle("half_open")? })
    }

    /// Counts the connections, by reading all entries.
    pub fn count(&self) -> io::Result<ConnectionCount> {
        // Each connection has two entries, but with direct return it has one.
        let count = |map: &MapHandle| {
            let (mut entries, mut forwarded) = (0, 0);
            sys::each_batch::<KEY, VALUE>(map, |keys, values| {
                entries += keys.len() as u64;
                forwarded += values.iter().filter(|value| is_forwarded(value)).count() as u64;
            })?;
            Ok::<_, io::Error>(((entries - forwarded).div_ceil(2), forwarded))
        };
        let (connections, _) = count(&self.connections)?;
        let (handshakes, forwarded) = count(&self.half_open)?;
        Ok(ConnectionCount { connections, handshakes, forwarded })
    }

    /// Ends connections. The next datagram of a client begins a new flow, and the next TCP packet is refused. Returns how many
    /// entries are deleted.
    pub fn end(&self, is_over: &dyn Fn(&ConnectionEnds) -> bool) -> io::Result<u64> {
        let mut ended = 0;
        for map in [&self.connections, &self.half_open] {
            let mut over = Vec::new();
            sys::each_batch(map, |keys, values| {
                let ends = |key, value| parse_connection(key, value).map(|entry| ConnectionEnds::of(&entry));
                let entries = keys.iter().zip(values);
                let found = entries.filter(|(key, value)| ends(key, value).is_some_and(|it| is_over(&it)));
                over.extend(found.map(|(key, _)| *key));
            })?;
            for key in &over {
                sys::delete(map, key)?;
            }
            ended += over.len() as u64;
        }
        Ok(ended)
    }

    /// Passes each connection to `see`, until it breaks. Connections that begin or end at the same time may be missing,
    /// and one may be passed twice.
    pub fn read(&self, see: &mut dyn FnMut(Connection) -> ControlFlow<()>) -> io::Result<()> {
        let now = seconds()?;
        for (map, is_half_open) in [(&self.connections, false), (&self.half_open, true)] {
            let mut flow = ControlFlow::Continue(());
            sys::each_batch_until(map, |keys, values| {
                let entries = keys.iter().zip(values).filter_map(|(key, value)| parse_connection(key, value));
                for entry in entries.filter(|entry| !entry.is_reverse) {
                    if flow.is_continue() {
                        flow = see(self.connection(&entry, is_half_open, now));
                    }
                }
                flow
            })?;
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn connection(&self, entry: &ConnectionEntry, is_half_open: bool, now: u32) -> Connection {
        let is_forwarded = entry.forward != Forward::Translate;
        let reverse = self.reverse(entry).filter(|_| !is_forwarded);
        let ((client, mut frontend), (source, mut backend)) = (entry.from, entry.to);
        if entry.is_of_node && frontend.addr != backend.addr {
            // A health check of a backend with direct return goes to the service's address.
            std::mem::swap(&mut frontend, &mut backend);
        }
        let used = reverse.map_or(entry.last_used, |reverse| reverse.last_used.max(entry.last_used));
        // Also a handshake that the backend refuses.
        let is_closed_by_backend = reverse.is_some_and(|reverse| reverse.is_closing);
        Connection {
            client,
            frontend,
            backend,
            source: (source != client && !is_forwarded).then_some(source),
            service: entry.service,
            ifindex: entry.ifindex,
            is_redirected: entry.is_redirected,
            forward: entry.forward,
            state: match is_half_open {
                _ if is_forwarded => ConnectionState::Forwarded,
                _ if is_closed_by_backend => ConnectionState::Closing,
                true if reverse.is_some_and(|reverse| reverse.is_replied) => ConnectionState::Handshake,
                true => ConnectionState::Unanswered,
                false if entry.is_closing => ConnectionState::Closing,
                false => ConnectionState::Established,
            },
            idle: now.saturating_sub(used),
            age: now.saturating_sub(entry.created),
            bytes: entry.bytes.saturating_add(reverse.map_or(0, |reverse| reverse.bytes)),
        }
    }

    /// The entry for packets from the backend.
    fn reverse(&self, entry: &ConnectionEntry) -> Option<ConnectionEntry> {
        let leaves = !entry.is_redirected && !entry.is_of_node;
        let key = packet_key((entry.to.1, entry.to.0), leaves);
        let value = |map: &MapHandle| sys::look_up(map, &key).ok().flatten();
        let value = value(&self.connections).or_else(|| value(&self.half_open))?;
        let entry = parse_connection(&key, &ConnectionBytes::try_from(value).ok()?)?;
        entry.is_reverse.then_some(entry)
    }
}
