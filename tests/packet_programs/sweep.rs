//! The deletion of connections that have ended.

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};
use nodelb_core::packets::outcomes::{Outcome, Outcomes};
use nodelb_datapath::packets::{Interval, Sweep, SweepReason, SweepTimeouts, Swept};

use super::frames::{ACK, FIN, Frame, RST, SYN, TCP, UDP, first, frame};
use super::translation::at;
use super::{Node, SERVICE, V4, with_node};

const TIMEOUTS: SweepTimeouts =
    SweepTimeouts { handshake: 30, closed: 60, reset: 10, tcp_idle: 86_400, udp_idle: 120, forwarded_idle: 86_400 };

/// A connection from this port to the pod that has moved to `connections`.
fn establish(node: &Node, protocol: u8, port: u16) {
    let client = format!("203.0.113.2:{port}");
    node.arrives(&first(protocol, &client, V4.service));
    node.leaves(&frame(protocol, V4.pod, &client));
    node.arrives(&frame(protocol, &client, V4.service));
}

/// Makes all entries this many seconds older.
fn age(node: &Node, seconds: u32) {
    for map in ["connections", "half_open"] {
        node.change(map, |value| {
            let last = u32::from_ne_bytes(value[52..56].try_into().unwrap());
            value[52..56].copy_from_slice(&last.wrapping_sub(seconds).to_ne_bytes());
        });
    }
}

fn swept(sweep: &mut Sweep) -> Vec<Swept> {
    let mut all = Vec::new();
    sweep.run(&TIMEOUTS, Interval::default(), &mut |swept| all.push(swept)).unwrap();
    all
}

fn reasons(sweep: &mut Sweep) -> Vec<SweepReason> {
    let mut reasons: Vec<_> = swept(sweep).iter().map(|swept| swept.reason).collect();
    reasons.sort();
    reasons
}

/// What is due when no entry was used for this many seconds. The programs count the seconds that have begun: if one does
/// meanwhile, it begins again with the same entries.
fn swept_after(node: &Node, sweep: &mut Sweep, seconds: u32) -> Vec<Swept> {
    let second = || u32::try_from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().tv_sec()).unwrap();
    let maps = ["connections", "half_open"].map(|name| node.map(name));
    let read = |map: &MapHandle| -> Vec<_> {
        map.keys().map(|key| (map.lookup(&key, MapFlags::ANY).unwrap().unwrap(), key)).collect()
    };
    let before = maps.map(read);
    loop {
        let now = second();
        for (map, entries) in maps.iter().zip(&before) {
            for (value, key) in entries {
                let mut value = value.clone();
                value[52..56].copy_from_slice(&now.wrapping_sub(seconds).to_ne_bytes());
                map.update(key, &value, MapFlags::ANY).unwrap();
            }
        }
        let swept = swept(sweep);
        if second() == now {
            return swept;
        }
    }
}

/// The reasons of [`swept_after`], and the entries that are left in both maps.
fn left_after(node: &Node, sweep: &mut Sweep, seconds: u32) -> (Vec<SweepReason>, (usize, usize)) {
    let mut reasons: Vec<_> = swept_after(node, sweep, seconds).iter().map(|swept| swept.reason).collect();
    reasons.sort();
    let (connections, half_open) = node.entries();
    (reasons, (connections.len(), half_open.len()))
}

/// Connections of all states: a UDP flow, and TCP connections that are open, have been reset, closed by both sides, closed by
/// the client, and not answered.
fn begin_all(node: &Node) {
    node.serve_one(V4, UDP, V4.pod);
    establish(node, UDP, 50000);
    node.serve_one(V4, TCP, V4.pod);
    for port in 50001..=50004 {
        establish(node, TCP, port);
    }
    node.arrives(&frame(TCP, "203.0.113.2:50002", V4.service).flags(RST));
    node.arrives(&frame(TCP, "203.0.113.2:50003", V4.service).flags(FIN | ACK));
    node.leaves(&frame(TCP, V4.pod, "203.0.113.2:50003").flags(FIN | ACK));
    node.arrives(&frame(TCP, "203.0.113.2:50004", V4.service).flags(FIN | ACK));
    node.arrives(&first(TCP, "203.0.113.2:50005", V4.service));
}

/// [`begin_all`], with a connection that is answered and not acknowledged by the client, and one that is refused.
fn begin_with_unfinished(node: &Node) {
    begin_all(node);
    for (client, flags) in [("203.0.113.2:50006", SYN | ACK), ("203.0.113.2:50007", RST | ACK)] {
        node.arrives(&first(TCP, client, V4.service));
        node.leaves(&frame(TCP, V4.pod, client).flags(flags));
    }
}

/// The sum of the outcomes, all of the only service.
fn total(found: Vec<Outcome>) -> Outcomes {
    let mut all = Outcomes::default();
    for (service, _, outcomes) in found {
        assert_eq!(service.0, SERVICE);
        all += outcomes;
    }
    all
}

#[test]
fn connections_end_after_their_timeouts() {
    with_node("programs::sweep::connections_end_after_their_timeouts", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        begin_all(node);
        let mut left = |seconds| left_after(node, &mut sweep, seconds);
        assert_eq!(left(0), (vec![], (10, 2)));
        assert_eq!(left(9), (vec![], (10, 2)));
        // The program may know the second of the last tick only.
        assert_eq!(left(12), (vec![SweepReason::Reset], (8, 2)));
        assert_eq!(left(32), (vec![SweepReason::Handshake], (8, 0)));
        assert_eq!(left(62), (vec![SweepReason::Closed], (6, 0)));
        let idle = swept_after(node, &mut sweep, 122);
        assert_eq!((idle.len(), node.entries().0.len()), (1, 4));
        assert_eq!((idle[0].reason, idle[0].protocol.number()), (SweepReason::Idle, UDP));
        // Two requests and one answer of 27 bytes.
        assert_eq!((idle[0].forward_bytes, idle[0].reverse_bytes), (2 * 55, 55));
        assert_eq!(idle[0].service.0, SERVICE);
        assert_eq!(left_after(node, &mut sweep, 86_402), (vec![SweepReason::Idle; 2], (0, 0)));
    });
}

/// Of the seconds that have begun since the last packet, one may not have passed: the packet came at its end.
#[test]
fn no_connection_ends_before_its_timeout_has_passed() {
    with_node("programs::sweep::no_connection_ends_before_its_timeout_has_passed", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        begin_all(node);
        let mut entries = (10, 2);
        for (timeout, reason, more) in [
            (TIMEOUTS.reset, SweepReason::Reset, (2, 0)),
            (TIMEOUTS.handshake, SweepReason::Handshake, (0, 2)),
            (TIMEOUTS.closed, SweepReason::Closed, (2, 0)),
            (TIMEOUTS.udp_idle, SweepReason::Idle, (2, 0)),
        ] {
            assert_eq!(left_after(node, &mut sweep, timeout), (vec![], entries), "{reason:?}");
            entries = (entries.0 - more.0, entries.1 - more.1);
            assert_eq!(left_after(node, &mut sweep, timeout + 2), (vec![reason], entries));
        }
        assert_eq!(left_after(node, &mut sweep, TIMEOUTS.tcp_idle), (vec![], entries), "idle TCP");
    });
}

#[test]
fn packets_in_one_direction_keep_a_connection() {
    with_node("programs::sweep::packets_in_one_direction_keep_a_connection", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        node.serve_one(V4, UDP, V4.pod);
        establish(node, UDP, 50000);
        age(node, 200);
        node.leaves(&frame(UDP, V4.pod, "203.0.113.2:50000"));
        assert_eq!((reasons(&mut sweep), node.entries().0.len()), (Vec::new(), 2));
    });
}

/// A sender that does not see the packets of the connection does not know their numbers.
#[test]
fn a_blind_rst_does_not_shorten_the_life_of_an_idle_connection() {
    with_node("programs::sweep::a_blind_rst_does_not_shorten_the_life_of_an_idle_connection", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        node.serve_one(V4, TCP, V4.pod);
        let client = "203.0.113.2:50000";
        establish(node, TCP, 50000);
        let acknowledged = 9_000_000;
        node.leaves(&Frame { acknowledged, ..frame(TCP, V4.pod, client) });
        let reset = |sequence: u32| Frame { sequence, ..frame(TCP, client, V4.service).flags(RST) };
        for sequence in [0, 1000, acknowledged - 70_000, acknowledged + 70_000, u32::MAX] {
            node.arrives(&reset(sequence));
        }
        age(node, 1000);
        assert_eq!((reasons(&mut sweep), node.entries().0.len()), (vec![], 2), "blind");
        node.arrives(&reset(acknowledged + 5));
        age(node, 11);
        assert_eq!((reasons(&mut sweep), node.entries().0.len()), (vec![SweepReason::Reset], 0), "the client's");
    });
}

/// Nothing in UDP proves that an address is not false.
#[test]
fn flows_leave_half_of_the_room_to_tcp() {
    with_node("programs::sweep::flows_leave_half_of_the_room_to_tcp", |node| {
        node.serve_one(V4, UDP, V4.pod);
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        let flow = |port: u16| {
            let client = format!("203.0.113.2:{port}");
            node.arrives(&first(UDP, &client, V4.service));
            node.leaves(&frame(UDP, V4.pod, &client));
            assert_eq!(node.arrives(&frame(UDP, &client, V4.service)).1.target, at(V4.pod));
        };
        (20_000..20_300).for_each(flow);
        assert_eq!(node.entries().0.len(), 512, "half of 1,024");
        // The sweep counts what is there.
        let connections = node.map("connections");
        connections.keys().collect::<Vec<_>>().iter().take(100).for_each(|key| connections.delete(key).unwrap());
        sweep.run(&TIMEOUTS, Interval::default(), &mut |_| {}).unwrap();
        let counted = node.map("udp_entries").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        assert_eq!(u32::from_ne_bytes(counted.try_into().unwrap()), 412);
        (21_000..21_100).for_each(flow);
        assert_eq!(node.entries().0.len(), 512);
    });
}

/// `connections` is full: clients that have answered stay in `half_open`.
#[test]
fn an_established_connection_that_finds_no_room_is_kept_as_long_as_others() {
    with_node("programs::sweep::an_established_connection_that_finds_no_room_is_kept_as_long_as_others", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        node.serve_one(V4, TCP, V4.pod);
        let mut ports = 20000..;
        while node.entries().1.is_empty() {
            establish(node, TCP, ports.next().unwrap());
        }
        let (client, answer) = ("203.0.113.2:50000", frame(TCP, V4.pod, "203.0.113.2:50000").flags(SYN | ACK));
        establish(node, TCP, 50000);
        node.arrives(&first(TCP, "203.0.113.2:50001", V4.service));
        node.leaves(&Frame { target: "203.0.113.2:50001".parse().unwrap(), ..answer });
        assert_eq!(node.entries().1.len(), 6, "two connections without room, and a handshake");
        assert_eq!(node.passed(10), 2, "counted once each");
        age(node, 31);
        assert_eq!((reasons(&mut sweep), node.entries().1.len()), (vec![SweepReason::Handshake], 4));
        node.arrives(&frame(TCP, client, V4.service));
        age(node, 10_000);
        assert_eq!((reasons(&mut sweep), node.entries().1.len()), (vec![], 4));
        let full = node.entries().0;
        node.map("connections").delete(&node.map("connections").keys().next().unwrap()).unwrap();
        node.map("connections").delete(&node.map("connections").keys().next().unwrap()).unwrap();
        node.arrives(&frame(TCP, client, V4.service));
        assert_eq!((node.entries().0.len(), node.entries().1.len()), (full.len(), 2), "moved when there is room");
        node.arrives(&frame(TCP, client, V4.service).flags(FIN | ACK));
        node.leaves(&frame(TCP, V4.pod, client).flags(FIN | ACK));
        age(node, 61);
        assert_eq!(reasons(&mut sweep), [SweepReason::Closed]);
    });
}

/// More records than fit into one read.
#[test]
fn a_sweep_reports_each_connection_once() {
    with_node("programs::sweep::a_sweep_reports_each_connection_once", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        node.serve_one(V4, TCP, V4.pod);
        for port in 20000..20400 {
            establish(node, TCP, port);
        }
        let connections = node.entries().0.len() / 2;
        assert!(connections > 300, "{connections}");
        age(node, 90_000);
        let all = swept(&mut sweep);
        assert_eq!(all.iter().filter(|swept| swept.reason == SweepReason::Idle).count(), connections);
        assert_eq!(node.entries(), (Vec::new(), Vec::new()));
    });
}

/// What became of connections: answered, refused by the backend, and without an answer; of an older one nothing counts.
#[test]
fn the_outcome_of_each_connection_is_counted_once() {
    with_node("programs::sweep::the_outcome_of_each_connection_is_counted_once", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        begin_with_unfinished(node);
        let mut outcomes = |after, until| total(sweep.run(&TIMEOUTS, Interval { after, until }, &mut |_| {}).unwrap());
        let now = u32::try_from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().tv_sec()).unwrap();
        let none = Outcomes::default();
        assert_eq!(outcomes(now - 60, now - 30), none, "they began later");
        // A datagram that is not repeated does not count.
        node.arrives(&first(UDP, "203.0.113.2:50008", V4.service));
        assert_eq!(outcomes(now - 30, now + 1), Outcomes { answered: 6, refused: 1, unanswered: 1 });
        assert_eq!(outcomes(now + 1, now + 9), none, "they have been counted");
        assert_eq!(outcomes(now, now), none, "nothing began in no time");
    });
}

/// A connection that has just begun would wait for the next sweep.
#[test]
fn a_look_at_handshakes_deletes_nothing_and_counts_nothing_twice() {
    with_node("programs::sweep::a_look_at_handshakes_deletes_nothing_and_counts_nothing_twice", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        begin_with_unfinished(node);
        // Each entry is due, but for those of connections that are open.
        age(node, 200);
        let entries = node.entries();
        let now = u32::try_from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().tv_sec()).unwrap();
        let all = Interval { after: now - 30, until: now + 1 };
        for _ in 0..2 {
            let found = total(sweep.look(all).unwrap());
            assert_eq!(found, Outcomes { answered: 1, refused: 1, unanswered: 1 }, "handshakes only");
        }
        assert_eq!(sweep.look(Interval { after: now - 60, until: now - 30 }).unwrap(), [], "they began later");
        assert_eq!(sweep.look(Interval::default()).unwrap(), [], "nothing began in no time");
        assert_eq!(node.entries(), entries);
        let (mut deleted, mut of) = (Vec::new(), |interval, deleted: &mut Vec<SweepReason>| {
            total(sweep.run(&TIMEOUTS, interval, &mut |swept| deleted.push(swept.reason)).unwrap())
        });
        assert_eq!(of(all, &mut deleted), Outcomes { answered: 6, refused: 1, unanswered: 1 });
        deleted.sort();
        let due =
            [vec![SweepReason::Handshake; 3], vec![SweepReason::Closed, SweepReason::Reset], vec![SweepReason::Idle]];
        assert_eq!(deleted, due.concat(), "the timeouts are those of the sweep");
        assert_eq!(of(Interval { after: now + 1, until: now + 9 }, &mut deleted), Outcomes::default());
    });
}

/// What a daemon that was killed had counted was counted once more by the next one, which takes over its maps.
#[test]
fn outcomes_that_an_earlier_run_has_left_are_not_counted() {
    with_node("programs::sweep::outcomes_that_an_earlier_run_has_left_are_not_counted", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        let own = std::fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(|file| {
            let info = std::fs::read_to_string(file.unwrap().path()).ok()?;
            let id = info.lines().find_map(|line| line.strip_prefix("map_id:"))?;
            MapHandle::from_map_id(id.trim().parse().unwrap()).ok()
        });
        let left = own.into_iter().find(|map| map.name() == "sweep_outcomes").unwrap();
        left.update(&[SERVICE, 1].map(u32::to_ne_bytes).concat(), &[1; 12], MapFlags::ANY).unwrap();
        assert_eq!(sweep.run(&TIMEOUTS, Interval { after: 0, until: u32::MAX - 1 }, &mut |_| {}).unwrap(), []);
        assert_eq!(left.keys().count(), 0);
    });
}

/// With direct return, the client's packets show whether it was answered, and that it exists: most SYNs of a flood come once.
#[test]
fn the_outcome_with_direct_return_follows_from_the_client() {
    const FORWARDED: u32 = 512;
    const ASSURED: u32 = 64;
    with_node("programs::sweep::the_outcome_with_direct_return_follows_from_the_client", |node| {
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        node.serve_one(V4, TCP, V4.pod);
        node.arrives(&first(TCP, "203.0.113.2:50001", V4.service));
        let mut outcome = |seconds: u32, flags: u32| {
            node.change("half_open", |value| {
                let created = u32::from_ne_bytes(value[56..60].try_into().unwrap());
                value[52..56].copy_from_slice(&(created + seconds).to_ne_bytes());
                value[60..64].copy_from_slice(&flags.to_ne_bytes());
            });
            let found = sweep.run(&TIMEOUTS, Interval { after: 0, until: u32::MAX - 1 }, &mut |_| {}).unwrap();
            found.first().map(|(.., it)| (it.answered, it.unanswered))
        };
        assert_eq!(outcome(0, FORWARDED), None, "its client may not exist");
        assert_eq!(outcome(3, FORWARDED), Some((0, 2)), "both entries are the client's by their flags");
        assert_eq!(outcome(3, FORWARDED | ASSURED), Some((2, 0)));
    });
}

/// More connections are due than a run can report, so that several runs follow, and only one of them counts.
#[test]
fn outcomes_are_counted_once_where_several_runs_delete() {
    with_node("programs::sweep::outcomes_are_counted_once_where_several_runs_delete", |node| {
        const CONNECTIONS: u16 = 150;
        let mut sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        node.serve_one(V4, TCP, V4.pod);
        // In one of some 40 rounds, the entry that is deleted with its partner is the next one of the same bucket.
        for round in 0..40 {
            (0..CONNECTIONS).for_each(|number| establish(node, TCP, 20_000 + CONNECTIONS * round + number));
            age(node, 90_000);
            let mut deleted = 0;
            let interval = Interval { after: 0, until: u32::MAX - 1 };
            let found = sweep.run(&TIMEOUTS, interval, &mut |_| deleted += 1).unwrap();
            let answered: u64 = found.iter().map(|(.., outcomes)| outcomes.answered).sum();
            assert_eq!((deleted, answered), (CONNECTIONS, u64::from(CONNECTIONS)), "round {round}");
        }
    });
}
