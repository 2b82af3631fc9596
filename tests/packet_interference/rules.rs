//! The test of the test: without any one of the rules of `bpf/rule.h`, a sequence shows what strangers then change.

use nodelb_programs::headers::tcp_flags::{ACK, FIN, RST, SYN};
use nodelb_programs::programs::Rule;

use crate::honest::Act::{Ask, AskMuch, Connect};
use crate::property::{interference, trace, unanswered};
use crate::regressions::plain;
use crate::sequence::Flood::{First, Guests, Refused, Twice};
use crate::sequence::Step::{self, Do, Flood, Replace, Stranger, Tunnel, Wait};
use crate::strangers::By::{Eth0, Eth1, Tap1};
use crate::strangers::Who::{Backend, Node, Own, Service, User};
use crate::strangers::{Forged, Sends};
use crate::tag::Label;

/// The rules without which a client alone gets no answer.
const ALONE: [&str; 4] = ["client_gets_other_port", "priority_tags", "process_gets_answers", "direct_keeps_port"];

/// The rules that are not about what strangers change for honest parties, and the file with the packet
/// case that shows each of them.
const ELSEWHERE: [(&str, &str); 10] = [
    ("flows_give_way_last", "limits.txt"),
    ("tunnel_sources", "direct.txt"),
    ("flow_admitted_again", "evidence.txt"),
    ("reverse_path", "reverse-path.txt"),
    ("reverse_path_of_flows", "reverse-path.txt"),
    ("stack_takes_port", "ports.txt"),
    ("sockets_keep_ports", "software.txt"),
    ("answer_of_ended_connection", "ports.txt"),
    ("unwrapped_stays", "direct.txt"),
    ("only_own_tunnels", "direct.txt"),
];

/// The sequence that fails without the rule.
fn sequence_without(rule: &str) -> Option<Vec<Step>> {
    // A connection to a backend on another node cannot continue when its entries are removed.
    let from_client = |flags, numbers| plain(Eth0, (User(1), Service(1)), flags, numbers);
    let from_backend =
        |flags, numbers| (0..8).map(|port| plain(Eth0, (Backend(1), Node(port)), flags, numbers)).collect::<Vec<_>>();
    let open = [Do(1, Ask), Wait(100)];
    let then = |steps: &[&[Step]]| Some([&open[..], &steps.concat()].concat());
    match rule {
        "client_reset_in_window" => then(&[&[from_client(RST, (12_345, 0)), Wait(30_000)]]),
        "backend_reset_in_window" => then(&[&from_backend(RST, (12_345, 0)), &[Wait(30_000)]]),
        "fin_in_window" => {
            then(&[&[from_client(FIN | ACK, (7, 7))], &from_backend(FIN | ACK, (7, 7)), &[Wait(100_000)]])
        }
        // A guess that hits the window, but not the number.
        "reset_taken_back" => {
            let near = Label { user: 1, connection: 1 }.first_number() + 1_000;
            then(&[&[from_client(RST, (near, 0)), Wait(1_500), Do(1, Ask), Wait(30_000)]])
        }
        // The stranger first chooses the number that is then expected.
        "acknowledgment_in_window" => {
            then(&[&from_backend(ACK, (1, 5_000)), &[from_client(RST, (5_000, 0)), Wait(30_000)]])
        }
        "answer_by_acknowledgment" => {
            Some([vec![Do(1, Connect)], from_backend(SYN | ACK, (7, 7)), vec![Wait(60_000)]].concat())
        }
        // False connections take the entries, and true ones remain among the handshakes.
        "proof_by_acknowledgment" => {
            Some(vec![Flood(Twice, 0, 20, 0), Flood(Twice, 0, 20, 1), Do(4, Ask), Wait(1_000), Flood(First, 5, 50, 0)])
        }
        "stack_gets_other_port" => Some(vec![Flood(Guests, 10, 8, 0), Do(16, Ask)]),
        // The client's answer to a false SYN needs no answer itself.
        "silence_after_question" => Some(vec![
            Do(1, Connect),
            Wait(1_998),
            plain(Eth0, (Service(1), User(1)), SYN, (0, 0)),
            Wait(1_999),
            Replace(1),
            from_client(SYN, (0, 0)),
        ]),
        "client_gets_other_port" => Some(vec![Do(18, Ask)]),
        "syn_of_answered_connection" => then(&[&[Replace(1), from_client(SYN, (0, 0))]]),
        // The flood evicts the handshake, and the client's acknowledgement belongs to no connection.
        "unknown_is_owned" => Some(vec![Do(3, Ask), Flood(First, 3, 60, 0)]),
        "answers_by_service" => Some(vec![Do(1, Connect), Wait(100), Flood(Refused, 8, 0, 0), Do(1, AskMuch)]),
        "fragment_ids" => {
            let sends = Sends::First { id: 1, bytes: 1_192, has_sum: false };
            Some(vec![Stranger(Forged { by: Eth0, from: Own(1), to: Service(10), sends }), Do(10, AskMuch)])
        }
        "pods_share_nothing" => Some(vec![plain(Tap1, (User(10), Service(10)), 0, (0, 0)), Do(10, Ask)]),
        "udp_has_half" => {
            Some(vec![Flood(Twice, 9, 20, 0), Flood(Twice, 9, 20, 1), Do(1, Ask), Wait(1_000), Flood(First, 5, 50, 0)])
        }
        "active_flow_keeps_port" => Some(vec![Do(11, Connect), Do(11, Connect), Flood(First, 10, 11, 0)]),
        "flows_give_way" => Some(vec![Flood(First, 10, 8, 0), Do(10, Ask)]),
        "syn_of_forwarded_connection" => {
            Some(vec![Do(19, Ask), Wait(100), Replace(19), plain(Eth0, (User(19), Service(19)), SYN, (0, 0))])
        }
        // The stranger begins the entry here, before the client's packets come this way.
        "far_number_is_doubted" => {
            let forged = |flags, seq| plain(Eth0, (User(19), Service(19)), flags, (seq, 0));
            let planted = [forged(ACK, 7), Do(19, Ask), Wait(1_100), forged(FIN | ACK, 8)];
            Some([&planted[..], &[Replace(19), Wait(3_000), forged(SYN, 1), Do(19, Ask)]].concat())
        }
        // Afterwards, the entry would be a handshake that does not come about.
        "idle_connection_stays" => {
            let syn = plain(Eth0, (User(19), Service(19)), SYN, (0, 0));
            Some(vec![Do(19, Ask), Wait(62_000), syn, Wait(45_000), Replace(19), Wait(1_000), Do(19, Ask)])
        }
        // The connection is idle, and the ring still has its backend.
        "sent_on_by_ring" => {
            let sends = Sends::Plain { flags: ACK, seq: 7, ack: 7, data: 0 };
            let forged = Forged { by: Eth1, from: User(25), to: Service(25), sends };
            Some(vec![Do(25, Ask), Wait(62_000), Tunnel(forged, 5), Wait(1_000), Do(25, Ask)])
        }
        // The flood evicts the only entry.
        "forwarded_by_ring" => Some(vec![Do(19, Ask), Wait(1_500), Flood(First, 19, 60, 0)]),
        _ => sequence_of_one_packet(rule),
    }
}

/// The same for rules that one packet shows.
fn sequence_of_one_packet(rule: &str) -> Option<Vec<Step>> {
    match rule {
        "credible_errors" => {
            let sends = Sends::Error { kind: 2, seq: 0 };
            let error = |port| Stranger(Forged { by: Eth0, from: Backend(10), to: Node(port), sends });
            Some([vec![Do(10, Ask)], (0..8).map(error).collect()].concat())
        }
        "errors_fit" => {
            let sends = Sends::Error { kind: 0, seq: 0 };
            let error = |port| Stranger(Forged { by: Eth0, from: Backend(10), to: Node(port), sends });
            Some([vec![Do(10, Ask)], (0..8).map(error).collect()].concat())
        }
        "priority_tags" => Some(vec![Do(2, Ask)]),
        "process_gets_answers" => Some(vec![Do(28, Ask)]),
        "direct_keeps_port" => Some(vec![Do(26, Ask), Do(27, Ask), Do(26, Ask)]),
        "owned_addresses" => {
            let sends = Sends::Odd(4);
            Some(vec![Stranger(Forged { by: Eth0, from: Own(1), to: Service(0), sends })])
        }
        "served_source" => Some(vec![plain(Eth0, (Service(10), Service(9)), 0, (0, 0))]),
        _ => None,
    }
}

#[test]
fn every_rule_is_needed() {
    let mut wrong = Vec::new();
    for rule in Rule::all() {
        let (name, rule) = (rule.name, *rule);
        if ELSEWHERE.iter().any(|(elsewhere, _)| *elsewhere == name) {
            continue;
        }
        let Some(steps) = sequence_without(name) else {
            wrong.push(format!("{name} has no sequence"));
            continue;
        };
        let fault = if ALONE.contains(&name) { unanswered } else { interference };
        if fault(&steps, Some(rule)).is_empty() {
            wrong.push(format!("without {name}, nothing differs:\n{steps:?}\n{}", trace(&steps, Some(rule))));
        }
        let with = fault(&steps, None);
        if !with.is_empty() {
            wrong.push(format!("with {name}:\n{with}\n{steps:?}\n{}", trace(&steps, None)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
