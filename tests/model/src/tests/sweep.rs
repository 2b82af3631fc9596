use nodelb_core::state::entries::{BackendId, ServiceId};

use super::*;
use crate::connections::{Flags, TableLimits};
use crate::key::{Endpoint, Side, Tuple};

const TIMEOUTS: SweepTimeouts =
    SweepTimeouts { handshake: 30, closed: 60, reset: 10, tcp_idle: 86_400, udp_idle: 120, forwarded_idle: 86_400 };

fn end(addr: &str, port: u16) -> Endpoint {
    Endpoint::new(addr.parse().unwrap(), port)
}

/// A connection of a client at this port, and the flags and times of both entries. Its table is `connections` or
/// `half_open`.
fn put(tables: &mut Tables, (protocol, port): (Protocol, u16), ends: [(Flags, u32); 2], is_established: bool) {
    let client = Tuple { source: end("198.51.100.7", port), target: end("203.0.113.1", 80) };
    let backend = Tuple { source: end("198.51.100.7", port), target: end("10.0.1.5", 8080) };
    let [(forward, used), (reverse, reverse_used)] = ends;
    let key = PacketKey { tuple: client, protocol, side: Side::Arriving };
    let entry = Connection {
        to: backend,
        service: ServiceId(1),
        backend: BackendId(1),
        offset: 0,
        ifindex: 2,
        last_used: used,
        created: 0,
        flags: forward,
        acknowledgment: 0,
        bytes: 0,
    };
    let flags = Flags { is_reverse: true, ..reverse };
    let other = Connection { to: client.turned(), flags, last_used: reverse_used, ..entry };
    let table = if is_established { &mut tables.connections } else { &mut tables.half_open };
    table.insert(entry.reverse_key(&key), other);
    table.insert(key, entry);
}

/// The reasons at this time.
fn swept(ends: [(Flags, u32); 2], protocol: Protocol, is_established: bool, now: u32) -> Vec<(SweepReason, usize)> {
    let mut tables = Tables::new(TableLimits { connections: 8, half_open: 8, fragments: 8 });
    put(&mut tables, (protocol, 1), ends, is_established);
    let reasons = sweep(&mut tables, now, &TIMEOUTS);
    let left = tables.connections.len() + tables.half_open.len();
    assert_eq!(left, if reasons.is_empty() { 2 } else { 0 }, "both entries or none");
    reasons
}

#[test]
fn each_state_has_its_timeout() {
    let (open, fin) = (Flags::default(), Flags { has_fin: true, ..Flags::default() });
    let reset = Flags { has_reset: true, ..Flags::default() };
    let assured = Flags { is_assured: true, ..Flags::default() };
    let both = |flags: Flags, used: u32| [(flags, used), (flags, used)];
    for (ends, protocol, is_established, timeout, reason) in [
        (both(open, 5), Protocol::Tcp, false, 30, SweepReason::Handshake),
        (both(open, 5), Protocol::Udp, false, 30, SweepReason::Handshake),
        (both(open, 5), Protocol::Tcp, true, 86_400, SweepReason::Idle),
        (both(open, 5), Protocol::Udp, true, 120, SweepReason::Idle),
        (both(fin, 5), Protocol::Tcp, true, 60, SweepReason::Closed),
        (both(assured, 5), Protocol::Tcp, false, 86_400, SweepReason::Idle),
        ([(assured, 5), (open, 5)], Protocol::Udp, false, 120, SweepReason::Idle),
        ([(fin, 5), (open, 5)], Protocol::Tcp, true, 86_400, SweepReason::Idle),
        ([(open, 5), (reset, 5)], Protocol::Tcp, true, 10, SweepReason::Reset),
        // The last packet in either direction counts.
        ([(open, 5), (open, 50)], Protocol::Udp, true, 45 + 120, SweepReason::Idle),
    ] {
        // The last packet may have come at the end of its second.
        assert_eq!(swept(ends, protocol, is_established, 5 + timeout), [], "{ends:?}");
        assert_eq!(swept(ends, protocol, is_established, 5 + timeout + 1), [(reason, 1)], "{ends:?}");
    }
}

#[test]
fn connections_are_counted_by_reason() {
    let mut tables = Tables::new(TableLimits { connections: 8, half_open: 8, fragments: 8 });
    let open = [(Flags::default(), 0), (Flags::default(), 0)];
    put(&mut tables, (Protocol::Udp, 1), open, true);
    put(&mut tables, (Protocol::Udp, 2), open, true);
    put(&mut tables, (Protocol::Tcp, 3), open, true);
    put(&mut tables, (Protocol::Tcp, 4), open, false);
    let reasons = sweep(&mut tables, 200, &TIMEOUTS);
    assert_eq!(reasons, [(SweepReason::Handshake, 1), (SweepReason::Idle, 2)]);
    assert_eq!(tables.connections.len(), 2);
}
