//! What the kernel of a case's node has or lacks, and what other software there has made: lines `kernel …`.

use nodelb_core::model::addr::{L4Addr, parse_net};
use nodelb_core::model::ipsec::{Policy, PolicyDirection, Selector};
use nodelb_core::model::source_range::SourceRange;
use nodelb_programs::programs::{Load, Programs, Tracked};

use crate::world::{Words, words};

/// How the programs are loaded, as the lines before the first packet say.
pub(crate) fn load(steps: &[String], mut load: Load) -> Load {
    for line in steps.iter().map_while(|step| step.strip_prefix("now ")) {
        match line {
            "kernel old" => load.is_new_kernel = false,
            "kernel without-route-flags" => load.has_route_flags = false,
            "kernel lists-tracked" => load.lists_tracked = true,
            _ => {}
        }
    }
    load
}

fn addr(words: &mut Words<'_>) -> L4Addr {
    words.next().and_then(|word| word.parse().ok()).expect("ADDRESS:PORT/PROTOCOL")
}

/// Numbers of the states of a socket: `TCP_ESTABLISHED`, `TCP_TIME_WAIT`, `TCP_LISTEN`.
fn state(name: Option<&str>) -> u32 {
    match name {
        Some("established") => 1,
        Some("time-wait") => 6,
        Some("listen") => 10,
        other => panic!("unknown state {other:?}"),
    }
}

/// `DIRECTION FROM TO protects|passes`, of each policy, the first one first.
fn policies(words: Words<'_>) -> Vec<Policy> {
    let words: Vec<&str> = words.collect();
    let policy = |words: &[&str]| {
        let &[direction, source, target, effect] = words else { panic!("DIRECTION FROM TO protects|passes") };
        let direction = match direction {
            "in" => PolicyDirection::In,
            "out" => PolicyDirection::Out,
            "forward" => PolicyDirection::Forward,
            other => panic!("unknown direction {other}"),
        };
        let [source, target] = [source, target].map(|net| SourceRange::from(parse_net(net).expect("a network")));
        let selector = Selector { source, target, ..Selector::everything(source.family()) };
        Policy { direction, priority: 0, selector, is_protected: effect == "protects" }
    };
    words.chunks(4).map(policy).collect()
}

/// Tells the machine what the line says.
pub(crate) fn apply(programs: &mut Programs, line: &str) {
    let mut words = words(line);
    match words.next().unwrap() {
        "old" | "without-route-flags" | "lists-tracked" => {}
        "socket" => {
            let (mut at, state) = (addr(&mut words), state(words.next()));
            if words.next() == Some("every-port") {
                at.port = 0;
            }
            programs.add_socket_in(None, at, state);
        }
        "connection" => {
            let (from, to) = (addr(&mut words), addr(&mut words));
            programs.add_socket_in(Some(from), to, state(words.next()));
        }
        "tracked" => {
            let (from, to) = (addr(&mut words), addr(&mut words));
            let mut tracked = Tracked { status: 0, is_answer: false, state: 3 };
            for word in words {
                match word {
                    "answered" => tracked.status |= 2,
                    "translated" => tracked.status |= 32,
                    "answer" => tracked.is_answer = true,
                    "time-wait" => tracked.state = 7,
                    "closed" => tracked.state = 8,
                    _ => panic!("unknown property of a tracked connection: {word}"),
                }
            }
            programs.add_tracked(from, to, tracked);
        }
        "foreign" => {
            let (from, to) = (addr(&mut words), addr(&mut words));
            programs.add_foreign(from, to);
        }
        "policies" => programs.set_policies(&policies(words)),
        "encapsulates" => {
            programs.encapsulate(parse_net(words.next().expect("NETWORK")).expect("a network").into());
        }
        "check" => {
            let to = addr(&mut words);
            programs.set_check(to, words.next() == Some("tunnel"));
        }
        word => panic!("unknown line of a kernel: {word}"),
    }
}
