//! Sequences that the property has found, as short as they become. Each shows how strangers once changed what honest
//! parties observe.

use nodelb_programs::headers::tcp_flags::{ACK, FIN, RST, SYN};

use crate::honest::Act::{Ask, AskMuch, Close, Connect};
use crate::property::{interference, trace};
use crate::sequence::Flood::{First, Fragments, Guests, Refused, Twice};
use crate::sequence::Step::{self, Do, Flood, Replace, Stranger, Tunnel, Wait};
use crate::strangers::By::{Eth0, Eth1, Eth2, Tap1};
use crate::strangers::Who::{Backend, Node, Own, PortOfService, Service, User};
use crate::strangers::{By, Forged, KINDS_OF_ERRORS, Sends, Who};

/// A TCP packet with these flags and numbers; a datagram to a UDP service.
pub(crate) const fn plain(by: By, (from, to): (Who, Who), flags: u8, (seq, ack): (u32, u32)) -> Step {
    Stranger(Forged { by, from, to, sends: Sends::Plain { flags, seq, ack, data: 0 } })
}

fn changes_nothing(steps: &[Step]) {
    let difference = interference(steps, None);
    assert!(difference.is_empty(), "{difference}\n{steps:#?}\n{}", trace(steps, None));
}

#[test]
fn a_false_rst_of_a_remote_backend_ends_no_connection() {
    let resets = (0..8).map(|port| plain(Eth0, (Backend(1), Node(port)), RST, (12_345, 0)));
    let steps: Vec<Step> = [Do(1, Ask), Wait(100)].into_iter().chain(resets).chain([Wait(30_000)]).collect();
    changes_nothing(&steps);
}

#[test]
fn a_false_rst_of_a_local_backend_ends_no_connection() {
    changes_nothing(&[Do(0, Ask), Wait(100), plain(Eth0, (Backend(0), User(0)), RST, (12_345, 0)), Wait(30_000)]);
}

#[test]
fn a_false_rst_of_a_client_ends_no_connection() {
    changes_nothing(&[Do(0, Ask), Wait(100), plain(Eth0, (User(0), Service(0)), RST, (12_345, 0)), Wait(30_000)]);
}

#[test]
fn the_answer_to_a_false_syn_does_not_make_the_backend_silent() {
    changes_nothing(&[
        Do(15, Connect),
        Wait(1_998),
        plain(Eth0, (Service(15), User(15)), SYN, (0, 0)),
        Wait(1_999),
        Replace(15),
        plain(Eth0, (User(15), Service(15)), SYN, (0, 0)),
    ]);
}

#[test]
fn a_syn_that_the_backend_does_not_get_does_not_make_it_silent() {
    let too_large = Sends::Plain { flags: SYN, seq: 0, ack: 0, data: 1_440 };
    changes_nothing(&[
        Do(4, Connect),
        Wait(1_998),
        Stranger(Forged { by: Eth0, from: User(4), to: Service(4), sends: too_large }),
        Wait(1_999),
        plain(Tap1, (User(4), Service(4)), SYN, (0, 0)),
    ]);
}

#[test]
fn false_packets_do_not_make_a_silent_backend() {
    let ack = || plain(Eth0, (User(1), Service(1)), ACK, (7, 7));
    changes_nothing(&[
        Do(1, Ask),
        Wait(2_500),
        ack(),
        Wait(2_500),
        ack(),
        Wait(2_500),
        Replace(1),
        plain(Eth0, (User(1), Service(1)), SYN, (0, 0)),
    ]);
}

/// It has no other entry with numbers for a FIN to be compared with. Without its entry, the ring leads elsewhere.
#[test]
fn a_false_fin_or_rst_ends_no_idle_connection_with_direct_return() {
    for (user, flags) in [(19, FIN | ACK), (19, RST), (21, FIN | ACK), (25, RST)] {
        let forged = plain(Eth0, (User(user), Service(user)), flags, (12_345, 0));
        changes_nothing(&[Do(user, Ask), Wait(100), forged, Replace(user), Wait(80_000), Do(user, Ask)]);
    }
}

#[test]
fn a_number_that_a_stranger_has_chosen_ends_no_connection_with_direct_return() {
    for user in [19, 21] {
        let forged = |flags, number| plain(Eth0, (User(user), Service(user)), flags, (number, 0));
        let moved = |begun: &[Step], fin: Step| {
            let then = [Do(user, Ask), Wait(1_100), fin, Replace(user), Wait(4_000), forged(SYN, 77), Do(user, Ask)];
            changes_nothing(&[begun, &then].concat());
        };
        moved(&[Do(user, Ask), Wait(62_000), forged(SYN, 1)], forged(FIN | ACK, 2));
        moved(&[forged(ACK, 7)], forged(FIN | ACK, 8));
        moved(&[forged(RST, 7)], forged(RST, 8));
        moved(&[forged(SYN, 7), forged(ACK, 8)], forged(FIN | ACK, 8));
        moved(&[Do(user, Ask), Do(user, Close), Wait(3_000), forged(SYN, 7), Wait(100)], forged(FIN | ACK, 8));
    }
}

#[test]
fn a_false_syn_does_not_make_a_handshake_of_an_idle_connection_with_direct_return() {
    for user in [19, 21] {
        let syn = plain(Eth0, (User(user), Service(user)), SYN, (1, 0));
        changes_nothing(&[Do(user, Ask), Wait(62_000), syn, Wait(50_000), Replace(user), Wait(1_000), Do(user, Ask)]);
    }
}

#[test]
fn a_datagram_of_a_pod_with_the_address_of_a_client_outside_does_not_end_its_flow() {
    for user in [10, 13] {
        let forged = plain(Tap1, (User(user), Service(user)), 0, (0, 0));
        changes_nothing(&[Do(user, Connect), Do(user, Connect), forged, Do(user, Connect)]);
    }
}

#[test]
fn a_pod_that_sends_first_with_the_address_of_a_client_does_not_take_its_flow() {
    for user in [1, 7, 9, 10, 11, 12, 13] {
        let forged = |flags| plain(Tap1, (User(user), Service(user)), flags, (0, 0));
        changes_nothing(&[forged(SYN), Do(user, Ask), forged(SYN), Do(user, AskMuch)]);
        changes_nothing(&[forged(0), forged(0), Do(user, Connect), forged(0), Do(user, Ask)]);
    }
}

#[test]
fn a_tunnel_of_a_stranger_takes_no_idle_connection_to_a_backend_here() {
    for flags in [SYN, ACK] {
        let sends = Sends::Plain { flags, seq: 7, ack: 7, data: 0 };
        let tunnel = || Tunnel(Forged { by: Eth1, from: User(25), to: Service(25), sends }, 5);
        changes_nothing(&[Do(25, Ask), Wait(62_000), tunnel(), Wait(30_000), tunnel(), Do(25, Ask)]);
        changes_nothing(&[Do(25, Connect), tunnel(), Do(25, Ask)]);
    }
}

#[test]
fn datagrams_of_false_clients_take_no_room_of_tcp() {
    changes_nothing(&[Flood(Twice, 9, 20, 0), Flood(Twice, 9, 20, 1), Do(0, Ask), Wait(1_000), Flood(First, 5, 50, 0)]);
}

#[test]
fn single_datagrams_hold_no_source_port() {
    changes_nothing(&[Flood(First, 10, 8, 0), Do(10, Ask)]);
}

#[test]
fn a_datagram_by_another_device_does_not_turn_the_answers() {
    changes_nothing(&[plain(Eth2, (User(10), Service(10)), SYN, (0, 0)), Do(10, Ask)]);
}

#[test]
fn a_syn_by_another_device_does_not_turn_the_answers() {
    changes_nothing(&[plain(Eth2, (User(1), Service(1)), SYN, (0, 0)), Do(1, Ask)]);
}

#[test]
fn refusals_take_no_answer_from_path_mtu_discovery() {
    changes_nothing(&[Do(1, Connect), Wait(100), Flood(Refused, 8, 0, 0), Do(1, AskMuch)]);
}

#[test]
fn a_syn_ends_no_connection_of_which_the_backend_has_left_the_list() {
    let syn = |user| plain(Eth0, (User(user), Service(user)), SYN, (0, 0));
    changes_nothing(&[Do(0, Ask), Wait(100), Replace(0), syn(0)]);
    changes_nothing(&[Do(1, Ask), Wait(100), Replace(1), syn(1)]);
}

#[test]
fn fragments_of_clients_are_not_mixed_at_a_remote_backend() {
    let first = |user| {
        let sends = Sends::First { id: 1, bytes: 1_192, has_sum: false };
        Stranger(Forged { by: Eth0, from: Own(1), to: Service(user), sends })
    };
    changes_nothing(&[first(10), Do(10, AskMuch)]);
    changes_nothing(&[first(12), Do(12, AskMuch)]);
    changes_nothing(&[Flood(Fragments, 10, 8, 0), Do(10, AskMuch)]);
}

#[test]
fn what_is_not_translated_is_not_sent_back_to_the_router() {
    let send = |from, to, sends| changes_nothing(&[Stranger(Forged { by: Eth0, from, to, sends })]);
    for user in [0, 1, 4, 9, 10, 12, 19, 22] {
        (0..8).for_each(|kind| send(Own(1), Service(user), Sends::Odd(kind)));
        send(Own(1), Service(user), Sends::Later { id: 1, offset: 150, bytes: 100, has_more: false });
        send(Own(1), Service(user), Sends::Error { kind: 2, seq: 0 });
        for port in [81, 10_001, 30_053] {
            send(Own(1), PortOfService(user, port), Sends::Plain { flags: SYN, seq: 1, ack: 0, data: 0 });
            send(Own(1), PortOfService(user, port), Sends::Plain { flags: ACK, seq: 1, ack: 1, data: 0 });
        }
    }
    // Of a datagram that is refused: the service has no backend.
    send(Own(1), Service(14), Sends::First { id: 1, bytes: 1_192, has_sum: false });
    send(Own(1), Service(14), Sends::Later { id: 1, offset: 150, bytes: 100, has_more: false });
}

#[test]
fn an_error_of_a_stranger_refuses_no_datagram() {
    for (user, kind) in [10, 11, 12].into_iter().flat_map(|user| (0..KINDS_OF_ERRORS).map(move |kind| (user, kind))) {
        let sends = Sends::Error { kind, seq: 0 };
        let error = |port| Stranger(Forged { by: Eth0, from: Backend(user), to: Node(port), sends });
        changes_nothing(&[vec![Do(user, Ask)], (0..8).map(error).collect()].concat());
    }
}

#[test]
fn a_packet_from_a_service_does_not_go_round() {
    let tunnelled = |from, to| {
        let sends = Sends::Plain { flags: 0, seq: 0, ack: 0, data: 0 };
        Tunnel(Forged { by: Eth0, from: Service(from), to: Service(to), sends }, 0)
    };
    for (from, to) in [(9, 9), (10, 10), (10, 9), (9, 10), (12, 12), (11, 9), (9, 20), (9, 22)] {
        changes_nothing(&[plain(Eth0, (Service(from), Service(to)), 0, (0, 0)), tunnelled(from, to)]);
    }
    for (from, to) in [(0, 0), (1, 1), (1, 0), (0, 1), (4, 4), (2, 0)] {
        for flags in [SYN, ACK, SYN | ACK, RST] {
            changes_nothing(&[plain(Eth0, (Service(from), Service(to)), flags, (0, 0))]);
        }
    }
}

#[test]
fn a_false_answer_of_the_backend_does_not_end_a_handshake() {
    let answer = |port| plain(Eth1, (Backend(1), Node(port)), SYN | ACK, (7, 7));
    changes_nothing(&[Do(1, Connect), answer(0), Wait(60_000)]);
    changes_nothing(&[Do(1, Connect), Do(3, Connect), answer(0), Wait(60_000)]);
}

#[test]
fn a_false_close_of_both_ends_ends_no_connection() {
    let fin = |ends| plain(Eth0, ends, 1 | ACK, (7, 7));
    let (client, backend) = (fin((User(0), Service(0))), fin((Backend(0), User(0))));
    changes_nothing(&[Do(0, Ask), Wait(100), client, backend, Wait(100_000)]);
    changes_nothing(&[Do(0, Ask), Wait(100), client, Do(0, Close)]);
}

#[test]
fn a_false_syn_chooses_no_backend_for_the_client() {
    changes_nothing(&[plain(Eth0, (User(1), Service(1)), SYN, (0, 0)), Replace(1), Do(1, Connect)]);
}

#[test]
fn a_false_syn_to_another_address_of_the_service_resets_no_connection() {
    let syn = plain(Eth0, (User(15), Service(15)), SYN, (0, 0));
    changes_nothing(&[syn, Do(0, Close), Do(15, Connect), Wait(708), Wait(1_289), Do(0, Connect)]);
}

#[test]
fn the_answer_to_a_datagram_reaches_no_stranger_that_needs_a_port() {
    changes_nothing(&[Do(11, Connect), Do(11, Connect), Flood(First, 10, 11, 0)]);
}

#[test]
fn a_half_handshake_of_another_only_delays_the_client_that_gets_its_port() {
    changes_nothing(&[plain(Eth0, (User(0), Service(0)), SYN, (0, 0)), Do(0, Connect), Replace(15)]);
    // Also where the client gets the source port of another one's handshake.
    changes_nothing(&[Do(10, Connect), Flood(First, 1, 7, 0), Do(1, Connect), Replace(1)]);
}

#[test]
fn a_pod_with_the_address_of_a_client_does_not_hide_the_mtu() {
    changes_nothing(&[plain(Tap1, (User(2), Service(2)), SYN, (0, 0)), Do(2, AskMuch)]);
}

#[test]
fn the_answer_to_a_process_of_the_node_reaches_no_client_that_has_its_port() {
    changes_nothing(&[Flood(Guests, 10, 8, 0), Do(16, Ask), Wait(1_000), Do(10, Ask), Do(16, Ask)]);
    changes_nothing(&[Do(12, Ask), Wait(100), Flood(First, 12, 8, 0), Do(17, Ask), Wait(1_000), Do(12, Ask)]);
}

#[test]
fn a_false_syn_or_tunnel_ends_no_connection_with_direct_return() {
    for user in [19, 21] {
        let from_client = |flags| Forged {
            by: Eth0,
            from: User(user),
            to: Service(user),
            sends: Sends::Plain { flags, seq: 7, ack: 7, data: 0 },
        };
        let open = [Do(user, Ask), Wait(50_000), Replace(user)];
        for flags in [SYN, ACK, RST, SYN | ACK] {
            changes_nothing(&[&open[..], &[Stranger(from_client(flags)), Wait(1_000)]].concat());
            // Also in a tunnel that ends at the node.
            changes_nothing(&[&open[..], &[Tunnel(from_client(flags), 3), Wait(1_000)]].concat());
        }
    }
}

#[test]
fn a_false_packet_in_a_tunnel_ends_no_connection_of_a_backend_here() {
    for end in 0..5 {
        for flags in [SYN, ACK, RST] {
            let sends = Sends::Plain { flags, seq: 7, ack: 7, data: 0 };
            let forged = Forged { by: Eth0, from: User(23), to: Service(23), sends };
            changes_nothing(&[Tunnel(forged, end), Do(23, Ask), Wait(100), Tunnel(forged, end), Replace(23)]);
            changes_nothing(&[Do(23, Ask), Wait(100), Replace(23), Tunnel(forged, end), Wait(3_000)]);
        }
    }
}
