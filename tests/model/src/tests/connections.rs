use super::*;
use crate::key::Endpoint;

const LIMITS: TableLimits = TableLimits { connections: 4, half_open: 4, fragments: 2 };

fn end(text: &str) -> Endpoint {
    let (addr, port) = text.rsplit_once(':').unwrap();
    Endpoint::new(addr.parse().unwrap(), port.parse().unwrap())
}

/// A handshake that began at this time, and its key.
fn handshake(client: &str, created: u32) -> (PacketKey, Connection) {
    let tuple = Tuple { source: end(client), target: end("203.0.113.1:80") };
    let to = Tuple { source: end(client), target: end("10.0.1.5:8080") };
    let entry = Connection {
        to,
        service: ServiceId(1),
        backend: BackendId(1),
        offset: 0,
        ifindex: 2,
        last_used: created,
        created,
        flags: Flags::default(),
        acknowledgment: 0,
        bytes: 0,
    };
    (PacketKey { tuple, protocol: Protocol::Tcp, side: Side::Arriving }, entry)
}

/// A TCP header with these flags.
fn with(tcp_flags: u8) -> Ports {
    Ports { tcp_flags, ..Ports::default() }
}

/// Stores both entries and returns their keys.
fn put(tables: &mut Tables, (key, entry): (PacketKey, Connection)) -> (PacketKey, PacketKey) {
    let reverse_key = entry.reverse_key(&key);
    let flags = Flags { is_reverse: true, ..entry.flags };
    tables.put_half_open(reverse_key, Connection { to: key.tuple.turned(), flags, ..entry });
    tables.put_half_open(key, entry);
    (key, reverse_key)
}

#[test]
fn the_entries_of_a_connection_lead_to_each_other() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 0));
    assert_eq!(reverse_key.side, Side::Leaving);
    let (forward, reverse) = (tables.half_open[&key], tables.half_open[&reverse_key]);
    assert_eq!(tables.reverse_of(&key, &forward), Some((reverse_key, &reverse)));
    assert_eq!(tables.reverse_of(&reverse_key, &reverse), Some((key, &forward)));
}

#[test]
fn only_an_answered_handshake_is_established() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 0));
    let entry = tables.half_open[&key];
    tables.establish(&key, &entry, &with(ACK));
    assert_eq!((tables.connections.len(), tables.half_open.len()), (0, 2));
    tables.touch(&reverse_key, 1, &with(SYN | ACK), 40);
    tables.establish(&key, &entry, &with(ACK));
    assert_eq!((tables.connections.len(), tables.half_open.len()), (2, 0));
}

#[test]
fn a_connection_that_finds_no_room_is_marked_and_moves_later() {
    let mut tables = Tables::new(TableLimits { connections: 1, ..LIMITS });
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 0));
    tables.touch(&reverse_key, 1, &with(SYN | ACK), 40);
    let entry = tables.half_open[&key];
    tables.establish(&key, &entry, &Ports { sequence: 5, ..with(ACK) });
    assert_eq!((tables.connections.len(), tables.half_open.len()), (0, 2));
    let (entry, reverse) = (tables.half_open[&key], tables.half_open[&reverse_key]);
    assert!(entry.flags.is_assured && reverse.flags.is_assured);
    assert_eq!(reverse.acknowledgment, 5);
    // No other connection takes its port, and a number that the backend has acknowledged later stays.
    assert_eq!(tables.port(&reverse_key, &handshake("198.51.100.8:1", 0).0, 100), Port::Taken);
    tables.touch(&reverse_key, 1, &Ports { acknowledgment: 9, ..with(ACK) }, 40);
    assert!(tables.has_proved_address(&key, &entry, &with(ACK)));
    tables.limits.connections = 2;
    tables.establish(&key, &entry, &Ports { sequence: 6, ..with(ACK) });
    assert_eq!((tables.connections.len(), tables.half_open.len()), (2, 0));
    assert!(!tables.connections[&key].flags.is_assured && !tables.connections[&reverse_key].flags.is_assured);
    assert_eq!(tables.connections[&reverse_key].acknowledgment, 9);
}

/// An established connection: the backend has acknowledged 1,000, the client 5,000,000.
fn established(tables: &mut Tables) -> (PacketKey, PacketKey) {
    let (key, reverse_key) = put(tables, handshake("198.51.100.7:1", 0));
    tables.touch(&reverse_key, 1, &Ports { sequence: 4_999_999, ..with(SYN | ACK) }, 40);
    let entry = tables.half_open[&key];
    let proof = Ports { sequence: 1_000, acknowledgment: 5_000_000, ..with(ACK) };
    tables.establish(&key, &entry, &proof);
    (key, reverse_key)
}

#[test]
fn a_rst_counts_with_the_numbers_of_the_connection_from_either_side() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = established(&mut tables);
    for (key, acknowledged, own) in [(key, 1_000_u32, 5_000_000_u32), (reverse_key, 5_000_000, 1_000)] {
        let reset = |ports: Ports| {
            let mut tables = tables.clone();
            tables.touch(&key, 1, &ports, 40);
            tables.find(&key).unwrap().flags.has_reset
        };
        let by_sequence = |sequence: u32| reset(Ports { sequence, ..with(RST) });
        assert!(by_sequence(acknowledged) && by_sequence(acknowledged + NEAR - 1));
        assert!(by_sequence(acknowledged.wrapping_sub(NEAR)), "it answers an old packet");
        assert!(!by_sequence(acknowledged + NEAR) && !by_sequence(acknowledged.wrapping_sub(NEAR + 1)));
        let by_acknowledgment =
            |acknowledgment: u32| reset(Ports { sequence: 1 << 31, acknowledgment, ..with(RST | ACK) });
        assert!(by_acknowledgment(own) && !by_acknowledgment(own + NEAR));
    }
    tables.connections.remove(&reverse_key);
    tables.touch(&key, 1, &Ports { sequence: 1_000, ..with(RST) }, 40);
    assert!(!tables.connections[&key].flags.has_reset, "without the backend's entry");
}

#[test]
fn a_rst_counts_in_a_handshake_only_if_it_acknowledges_the_syn() {
    let mut tables = Tables::new(LIMITS);
    let (key, mut entry) = handshake("198.51.100.7:1", 0);
    entry.acknowledgment = 1_000_000;
    let (_, reverse_key) = put(&mut tables, (key, entry));
    let reset = |key: &PacketKey, ports: Ports| {
        let mut tables = tables.clone();
        tables.touch(key, 1, &ports, 40);
        let flags = tables.half_open[key].flags;
        (flags.has_replied, flags.has_reset)
    };
    assert_eq!(reset(&reverse_key, Ports { acknowledgment: 1_000_000, ..with(RST | ACK) }), (true, true));
    assert_eq!(reset(&reverse_key, Ports { acknowledgment: 9, ..with(RST | ACK) }), (false, false));
    assert_eq!(reset(&reverse_key, Ports { sequence: 1_000_000, ..with(RST) }), (false, false));
    assert_eq!(reset(&key, with(RST | ACK)), (false, false), "nothing is known of the client yet");
}

#[test]
fn a_connection_that_goes_on_after_a_rst_has_not_ended() {
    let mut tables = Tables::new(LIMITS);
    let (key, _) = established(&mut tables);
    tables.touch(&key, 10, &Ports { sequence: 1_000, ..with(RST) }, 40);
    tables.touch(&key, 10, &Ports { acknowledgment: 5_000_000, ..with(ACK) }, 40);
    assert!(tables.connections[&key].flags.has_reset, "it was sent before the RST");
    tables.touch(&key, 11, &Ports { acknowledgment: 1, sequence: 1 << 31, ..with(ACK) }, 40);
    assert!(tables.connections[&key].flags.has_reset, "a stranger's");
    tables.touch(&key, 12, &Ports { acknowledgment: 5_000_000, ..with(ACK) }, 40);
    assert!(!tables.connections[&key].flags.has_reset);
}

#[test]
fn strangers_do_not_move_what_a_side_has_acknowledged() {
    let mut tables = Tables::new(LIMITS);
    let (key, _) = established(&mut tables);
    let mut after = |sequence: u32, acknowledgment: u32| {
        tables.touch(&key, 1, &Ports { sequence, acknowledgment, ..with(ACK) }, 40);
        tables.connections[&key].acknowledgment
    };
    assert_eq!(after(1 << 31, 5_000_000 + NEAR), 5_000_000, "a jump with a number that is not the client's");
    assert_eq!(after(1 << 31, 5_000_000 + NEAR - 1), 5_000_000 + NEAR - 1);
    assert_eq!(after(1_000, 5_000_000), 5_000_000 + NEAR - 1, "an old packet");
    assert_eq!(after(1_000, 1 << 30), 1 << 30, "a jump of the client");
}

#[test]
fn the_oldest_handshake_is_displaced() {
    let mut tables = Tables::new(LIMITS);
    let (oldest, _) = put(&mut tables, handshake("198.51.100.7:1", 1));
    let (kept, _) = put(&mut tables, handshake("198.51.100.7:2", 2));
    let (newest, _) = put(&mut tables, handshake("198.51.100.7:3", 3));
    assert_eq!(tables.half_open.len(), LIMITS.half_open);
    assert!(!tables.half_open.contains_key(&oldest));
    assert!(tables.half_open.contains_key(&kept) && tables.half_open.contains_key(&newest));
}

#[test]
fn a_handshake_and_a_flow_give_way_by_the_last_packet_of_either_side() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 10));
    let (other, _) = handshake("198.51.100.8:1", 10);
    assert_eq!(tables.port(&reverse_key, &other, 11), Port::GivesWay(1));
    assert_eq!(tables.port(&reverse_key, &key, 11), Port::Free, "its own");
    tables.touch(&reverse_key, 13, &with(SYN | ACK), 40);
    assert_eq!(tables.port(&reverse_key, &other, 14), Port::GivesWay(1), "the client has not answered");
    tables.touch(&key, 14, &with(SYN), 40);
    assert_eq!(tables.port(&reverse_key, &other, 14), Port::GivesWay(0));
    let udp = |key: PacketKey| PacketKey { protocol: Protocol::Udp, ..key };
    for key in [key, reverse_key] {
        let entry = tables.half_open.remove(&key).unwrap();
        tables.connections.insert(udp(key), entry);
    }
    assert_eq!(tables.port(&udp(reverse_key), &udp(other), 16), Port::GivesWay(2));
}

#[test]
fn a_connection_that_has_ended_gives_way() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 10));
    tables.touch(&reverse_key, 10, &with(SYN | ACK), 40);
    let entry = tables.half_open[&key];
    tables.establish(&key, &entry, &with(ACK));
    let (other, _) = handshake("198.51.100.8:1", 10);
    tables.touch(&key, 20, &with(FIN | ACK), 40);
    assert_eq!(tables.port(&reverse_key, &other, 100), Port::Taken, "the backend may still send");
    assert!(!tables.forget_ended(&reverse_key));
    tables.touch(&reverse_key, 21, &with(FIN | ACK), 40);
    assert_eq!(tables.port(&reverse_key, &other, 22), Port::Taken, "packets may be repeated");
    assert_eq!(tables.port(&reverse_key, &other, 23), Port::GivesWay(2));
    assert!(tables.forget_ended(&reverse_key));
    assert_eq!(tables.connections.len(), 0);
}

#[test]
fn a_connection_that_its_client_has_reset_is_forgotten() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 10));
    tables.touch(&reverse_key, 10, &with(SYN | ACK), 40);
    let entry = tables.half_open[&key];
    tables.establish(&key, &entry, &with(ACK));
    tables.touch(&key, 20, &with(RST | ACK), 40);
    assert!(tables.forget_ended(&reverse_key));
    assert_eq!(tables.connections.len(), 0);
}

#[test]
fn flows_have_half_of_the_room() {
    let mut tables = Tables::new(LIMITS);
    for (client, is_udp) in [("198.51.100.7:1", true), ("198.51.100.7:2", true), ("198.51.100.7:3", false)] {
        let (mut key, entry) = handshake(client, 10);
        key.protocol = if is_udp { Protocol::Udp } else { Protocol::Tcp };
        let (key, reverse_key) = put(&mut tables, (key, entry));
        tables.touch(&reverse_key, 10, &with(SYN | ACK), 40);
        let entry = tables.half_open[&key];
        tables.establish(&key, &entry, &with(ACK));
    }
    let of = |protocol| tables.connections.keys().filter(|key| key.protocol == protocol).count();
    assert_eq!((of(Protocol::Udp), of(Protocol::Tcp)), (2, 2));
    assert!(tables.half_open.values().all(|entry| entry.flags.is_assured), "the second flow stays");
}

#[test]
fn the_node_itself_opens_a_connection_from_a_port() {
    let mut tables = Tables::new(LIMITS);
    let (key, mut entry) = handshake("198.51.100.7:1", 10);
    entry.flags.is_redirected = true;
    entry.acknowledgment = 78;
    let (key, reverse_key) = put(&mut tables, (key, entry));
    tables.give_port_up(&reverse_key, 77);
    assert_eq!(tables.half_open.len(), 2, "the SYN is the client's");
    let mut answered = tables.clone();
    answered.touch(&reverse_key, 10, &Ports { acknowledgment: 78, ..with(SYN | ACK) }, 40);
    answered.give_port_up(&reverse_key, 5);
    assert_eq!(answered.half_open.len(), 2);
    tables.give_port_up(&reverse_key, 5);
    assert!(tables.half_open.is_empty(), "{key:?}");
}

#[test]
fn only_a_client_that_has_the_answer_proves_its_address() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 0));
    let entry = tables.half_open[&key];
    let is_proof = |tables: &Tables, tcp_flags: u8, acknowledgment: u32| {
        let ports = Ports { tcp_flags, acknowledgment, ..Ports::default() };
        tables.has_proved_address(&key, &entry, &ports)
    };
    assert!(!is_proof(&tables, ACK, 1), "no answer yet");
    let answer = Ports { tcp_flags: SYN | ACK, sequence: u32::MAX, ..Ports::default() };
    tables.touch(&reverse_key, 1, &answer, 40);
    assert!(!is_proof(&tables, ACK, 0), "a number that the backend has not chosen");
    tables.touch(&reverse_key, 1, &Ports { sequence: u32::MAX - 1, ..answer }, 40);
    assert!(is_proof(&tables, ACK, u32::MAX) && is_proof(&tables, ACK | FIN, MOST_RECEIVED - 1));
    assert!(!is_proof(&tables, ACK, u32::MAX - 1) && !is_proof(&tables, ACK, MOST_RECEIVED));
    assert!([0, FIN, RST | ACK, SYN | ACK].iter().all(|flags| !is_proof(&tables, *flags, u32::MAX)));
}

#[test]
fn a_connection_closes_when_both_ends_have_closed_it_or_one_has_reset_it() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 0));
    let is_closing = |tables: &Tables| tables.is_closing(&key, &tables.half_open[&key]);
    tables.touch(&reverse_key, 1, &with(SYN | ACK), 40);
    tables.touch(&key, 1, &with(FIN | ACK), 40);
    assert!(!is_closing(&tables));
    let mut both = tables.clone();
    both.touch(&reverse_key, 1, &with(FIN | ACK), 40);
    assert!(is_closing(&both));
    tables.touch(&key, 1, &with(RST), 40);
    assert!(!is_closing(&tables), "the client's address may be false");
    tables.touch(&reverse_key, 1, &with(RST | ACK), 40);
    assert!(is_closing(&tables));
}

#[test]
fn what_begins_again_takes_no_other_connection_with_it() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 0));
    let entry = tables.half_open[&key];
    let another = Tuple { source: end("203.0.113.2:80"), target: end("198.51.100.9:9") };
    tables.half_open[&reverse_key].to = another;
    tables.remove_pair(&key, &entry);
    assert!(!tables.half_open.contains_key(&key));
    assert!(tables.half_open.contains_key(&reverse_key));
}

#[test]
fn a_displaced_entry_is_restored() {
    let mut tables = Tables::new(LIMITS);
    let (key, reverse_key) = put(&mut tables, handshake("198.51.100.7:1", 0));
    let reverse = tables.half_open.remove(&reverse_key).unwrap();
    tables.touch(&key, 0, &with(FIN), 40);
    let entry = tables.half_open[&key];
    assert!(tables.has_both(&key, &entry));
    assert_eq!(tables.half_open[&reverse_key], reverse);
    tables.half_open[&reverse_key].to.source = end("203.0.113.2:80");
    assert!(!tables.has_both(&key, &entry));
}

#[test]
fn the_ports_of_a_datagram_are_known_for_a_while() {
    let mut tables = Tables::new(LIMITS);
    let key = |id: u32| {
        let (source, target) = (end("198.51.100.7:0").addr, end("203.0.113.1:0").addr);
        FragmentKey { source, target, id, protocol: Protocol::Udp, side: Side::Arriving }
    };
    let ports = |seen: u16| FragmentPorts { source: 1, target: 2, seen, id: 0 };
    tables.put_fragment(key(1), ports(10));
    assert_eq!(tables.fragment(&key(1), 39), Some(ports(10)));
    assert_eq!(tables.fragment(&key(1), 40), None);
    tables.put_fragment(key(2), ports(11));
    tables.put_fragment(key(3), ports(12));
    assert_eq!(tables.fragments.len(), LIMITS.fragments);
    assert_eq!(tables.fragment(&key(1), 12), None);
}
