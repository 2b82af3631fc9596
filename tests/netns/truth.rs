//! The truth test: clients outside nodelb connect to every service from the node, a pod and outside all the time, while
//! random faults come and go and the daemon is killed and restarted. What history, frontends, status and trace show must be
//! what the clients got.

#[path = "truth/compare.rs"]
mod compare;
#[path = "truth/node.rs"]
mod node;
#[path = "truth/observer.rs"]
mod observer;
#[path = "truth/outside.rs"]
mod outside;
#[path = "truth/outside_clients.rs"]
mod outside_clients;
#[path = "truth/outside_kinds.rs"]
mod outside_kinds;
#[path = "truth/outside_net.rs"]
mod outside_net;
#[path = "truth/outside_node.rs"]
mod outside_node;
#[path = "truth/silence.rs"]
mod silence;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nodelb_prober::SetAtEnd;
use serde_json::Value;

use crate::host::{Host, answer, get, say};
use crate::lab::Lab;
use crate::sandbox;
use crate::seeded::{Random, number};
use crate::without_daemon::nodelb;

use compare::{Observed, Shown, Traced, lies, stalls};
use node::{Node, address};
use observer::{From, Observer, now};

const TEST: &str = "truth::the_tools_show_what_clients_get";

/// Services at a time: each is one sequence of faults.
const SERVICES: usize = 25;
/// The changes of each service in a round.
const CHANGES: usize = 6;
/// After which time the tools are asked again.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// The number of sequences, rounded up to whole rounds.
const SEQUENCES: &str = "TRUTH_SEQUENCES";
const SEED: &str = "TRUTH_SEED";

#[test]
fn the_tools_show_what_clients_get() {
    Observer::run_if_requested();
    sandbox::run(TEST, |sandbox| {
        let rounds = number(SEQUENCES, 25_u64).div_ceil(SERVICES as u64);
        let seed = number(SEED, 1);
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        let cgroup = sandbox.cgroup.join("node");
        let mut wrong = 0;
        for round in 0..rounds {
            let found = play(&host, &lab, &cgroup, seed + round);
            say(&format!("round {}: {} lies", seed + round, found.len()));
            found.iter().take(40).for_each(|lie| say(lie));
            wrong += found.len();
        }
        assert_eq!(wrong, 0, "what the tools showed was not so; {SEED} repeats a round");
    });
}

/// Clients outside the node begin connections at every kind of service for them, while ways are broken and restored. None
/// fails for long without a problem with the name of its service, and no such problem stands while all are answered.
#[test]
fn no_client_outside_is_lost_in_silence() {
    sandbox::run("truth::no_client_outside_is_lost_in_silence", |sandbox| {
        let services = outside::SERVICES as u64;
        let (rounds, seed) = (number(SEQUENCES, services).div_ceil(services), number(SEED, 1));
        let net = outside_net::Net::new(sandbox);
        let host = Host::another(sandbox, "truth");
        let mut wrong = 0;
        for round in 0..rounds {
            let found = outside::play(&host, &net, seed + round);
            say(&format!("round {}: {} lies", seed + round, found.len()));
            found.iter().for_each(|lie| say(lie));
            wrong += found.len();
        }
        assert_eq!(wrong, 0, "what the status showed was not so; {SEED} repeats a round");
    });
}

/// One round: what the tools showed that was not so.
fn play(host: &Host, lab: &Lab, cgroup: &std::path::Path, seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut node = Node::new(host, lab, SERVICES);
    let addresses: Vec<String> = (0..SERVICES).map(address).collect();
    let observers = From::ALL.map(|from| {
        let output = host.path(&format!("observed-{from:?}"));
        (from, Observer::start(TEST, from, &addresses, (cgroup, output)))
    });
    let (is_over, shown, traced) = (AtomicBool::new(false), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::sleep(Duration::from_secs(3));
    let begin = now();
    thread::scope(|scope| {
        let _end = SetAtEnd(&is_over);
        scope.spawn(|| {
            let mut random = Random(seed | 1);
            while !is_over.load(Ordering::Relaxed) {
                shown.lock().unwrap().extend(show());
                traced.lock().unwrap().extend(trace(host, &mut random));
                thread::sleep(ASK_EVERY);
            }
        });
        for _ in 0..CHANGES {
            for number in 0..SERVICES {
                node.change(number, &mut random);
                thread::sleep(Duration::from_millis(random.below(100)));
            }
            if random.below(2) == 0 {
                node.disturb(&mut random);
            }
            thread::sleep(Duration::from_millis(1_500));
        }
        thread::sleep(Duration::from_secs(2));
    });
    let end = now();
    let connections = observers.map(|(from, observer)| (from, observer.finish())).into_iter().collect();
    let stalls = stalls(&connections);
    // The recorder collects events for a moment.
    thread::sleep(Duration::from_millis(350));
    let history = get("/history").unwrap_or_default()["history"].as_array().cloned().unwrap_or_default();
    let (shown, traced) = (shown.into_inner().unwrap(), traced.into_inner().unwrap());
    let observed = Observed { connections, shown, traced, history, during: (begin, end), stalls };
    assert!(!observed.shown.is_empty(), "nothing is compared");
    let numbers = (observed.stalls.len(), node.dead.len(), observed.shown.len());
    say(&format!("the machine stood still, nodelb ended, and the tools were asked so many times: {numbers:?}"));
    let found = lies(&node, &observed);
    node.finish();
    found
}

/// `None` if the answers are not of one time: something changed while they were read.
fn show() -> Option<Shown> {
    let begin = now();
    let (status, rows) = (get("/status")?, get("/frontends")?);
    let end = now();
    let metrics = answer("/metrics", "text/plain")?;
    // The times in them differ by what lies between two requests.
    let timeless = |rows: &Value| -> Vec<Value> {
        let mut rows = rows.as_array().cloned().unwrap_or_default();
        rows.iter_mut().filter_map(Value::as_object_mut).for_each(|row| drop(row.remove("since")));
        rows
    };
    let is_same = timeless(&get("/status")?["problems"]) == timeless(&status["problems"])
        && timeless(&get("/frontends")?["frontends"]) == timeless(&rows["frontends"]);
    is_same.then_some(Shown {
        begin,
        end,
        problems: status["problems"].as_array()?.clone(),
        frontends: rows["frontends"].as_array()?.clone(),
        metrics,
    })
}

/// What the daemon answers, or the command without the daemon.
fn trace(host: &Host, random: &mut Random) -> Option<Traced> {
    let number = usize::try_from(random.below(SERVICES as u64)).unwrap();
    let from = From::ALL[usize::try_from(random.below(3)).unwrap()];
    let begin = now();
    let of_daemon = get(&format!("/trace?to={}&from={}", address(number), from.parameter()));
    let answer = of_daemon.or_else(|| {
        let output = nodelb(host, &["trace", &address(number), "--from", from.parameter(), "-o", "json"]);
        serde_json::from_slice(&output.stdout).ok()
    })?;
    Some(Traced { begin, end: now(), number, from, answer })
}
