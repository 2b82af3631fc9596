use nodelb_core::model::addr::Protocol;
use nodelb_core::state::entries::ServiceId;

use super::*;
use crate::connections::{Connection, Flags, TableLimits};
use crate::key::{Endpoint, Side, Tuple};
use crate::node::Unknown;
use crate::rule::Rule;

const FIRST: u16 = 10_000;

/// The key of a packet from this address and port.
fn key(client: &str, port: u16, target: (&str, u16)) -> PacketKey {
    let end = |addr: &str, port| Endpoint::new(addr.parse().unwrap(), port);
    let tuple = Tuple { source: end(client, port), target: end(target.0, target.1) };
    PacketKey { tuple, protocol: Protocol::Tcp, side: Side::Arriving }
}

/// Tables with this number of ports in use, from the cursor on.
fn with_block(used: u16) -> Tables {
    let mut tables = Tables::new(TableLimits { connections: 4, half_open: 4_096, fragments: 2 });
    for offset in 0..used {
        let client = key("203.0.113.10", 1 + offset, ("203.0.113.1", 80));
        let flags =
            Flags { is_reverse: true, is_redirected: true, has_replied: true, is_assured: true, ..Flags::default() };
        let (service, backend, to) = (ServiceId(1), BackendId(1), client.tuple.turned());
        let entry = Connection {
            to,
            service,
            backend,
            offset: 0,
            ifindex: 2,
            last_used: 0,
            created: 0,
            flags,
            acknowledgment: 0,
            bytes: 0,
        };
        tables.put_half_open(key("10.0.1.5", 53, ("203.0.113.1", FIRST + offset)), entry);
    }
    tables
}

/// The ports that some searches find, in order.
fn found(tables: &mut Tables, ports: std::ops::RangeInclusive<u16>) -> Vec<Option<u16>> {
    let settings = Settings {
        nodeport_range: 30_000..=32_767,
        source_ports: ports,
        is_draining: false,
        unknown: Unknown::Auto,
        answers: true,
        always_masquerades: false,
    };
    let mut number = 0_u32;
    let mut random = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        number >> 8
    };
    let client = key("203.0.113.11", 1, ("203.0.113.1", 80));
    let reverse_key = key("10.0.1.5", 53, ("203.0.113.1", 0));
    let search = Search { key: &client, reverse_key: &reverse_key, backend: BackendId(1), now: 0 };
    (0..20).map(|_| source_port(tables, &settings, &search, &mut random).map(|key| key.tuple.target.port)).collect()
}

#[test]
fn a_block_of_ports_in_use_stops_no_search() {
    let mut tables = with_block(500);
    let ports = found(&mut tables, FIRST..=FIRST + 999);
    assert!(ports.iter().all(|port| port.is_some_and(|port| port >= FIRST + 500)), "{ports:?}");
}

#[test]
fn the_only_free_port_of_a_small_range_is_found() {
    let mut tables = with_block(63);
    assert_eq!(found(&mut tables, FIRST..=FIRST + 63), [Some(FIRST + 63); 20]);
}

#[test]
fn what_was_idle_for_longest_gives_way_and_the_active_last() {
    let mut tables = with_block(64);
    let block: Vec<PacketKey> = tables.half_open.keys().copied().collect();
    for (number, key) in (0_u32..).zip(block) {
        let mut entry = tables.half_open[&key];
        entry.flags.is_assured = false;
        // One after the other, the last two a moment ago.
        entry.last_used = if number == 40 { 1 } else { 2 };
        tables.half_open.insert(key, entry);
    }
    let client = key("203.0.113.11", 1, ("203.0.113.1", 80));
    let reverse_key = key("10.0.1.5", 53, ("203.0.113.1", 0));
    let port = |tables: &Tables, now: u32| {
        let search = Search { key: &client, reverse_key: &reverse_key, backend: BackendId(1), now };
        search.among(tables, FIRST..FIRST + 64, FREE_TRIES).map(|key| key.tuple.target.port)
    };
    assert_eq!(port(&tables, 2), Some(FIRST + 40), "all are active");
    assert_eq!(port(&tables, 4), Some(FIRST), "after three tries, one that is quiet suffices");
    tables.removed = Some(Rule::FlowsGiveWay);
    assert_eq!(port(&tables, 4), None);
}
