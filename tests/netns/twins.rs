//! The twin test: each service of nodelb has a twin with the same backends, which the network stack serves by
//! the rules of a kube-proxy. The host around both changes at random: its addresses, routes, switches, policies, devices
//! and rules. What clients outside get from nodelb is what they get from the twin, but for the differences that the
//! documentation has.
//!
//! The twin is on the same host, so that both have the same neighbours, caches and timers. Its rules match only its own
//! addresses and ports.

#[path = "twins/changes.rs"]
mod changes;

use std::io::ErrorKind;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use nodelb_prober::Transport;

use crate::diagnose::problems;
use crate::host::{Daemon, Host, say};
use crate::lab::{CLIENT, Lab, NODE_A, NODE_B, POD_A1, POD_A2, POD_B, Place};
use crate::lab_services::{HOST_A, HOST_B, ON_A1, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, start};
use crate::outside_network::nft;
use crate::sandbox;
use crate::seeded::{Random, number};
use crate::talk::{Server, ask};
use changes::{Change, Excuse, Only};

/// The number of hosts.
const HOSTS: &str = "TWIN_HOSTS";
const SEED: &str = "TWIN_SEED";
/// The changes of a host.
const STEPS: usize = 12;
/// The most changes that are in effect at a time.
const AT_ONCE: usize = 3;

/// A client has repeated its SYN within this time.
const TIMEOUT: Duration = Duration::from_millis(1_200);
/// nodelb follows a change of the host within this time, also on a busy machine.
const FOLLOWED: Duration = Duration::from_secs(20);

/// The services by their numbers: the name and addresses of the backend, and whether it is on the node.
const BACKENDS: [(u16, &str, [&str; 2], bool); 4] =
    [(1, "a1", POD_A1, true), (2, "b", POD_B, false), (3, "host-b", NODE_B, false), (4, "host-a", NODE_A, true)];

/// Which client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Client,
    NodeB,
    /// A pod of the node, which has programs at its device.
    Pod,
}

impl From {
    const ALL: [Self; 3] = [Self::Client, Self::NodeB, Self::Pod];

    fn place(self, lab: &Lab) -> &Place {
        match self {
            Self::Client => &lab.client,
            Self::NodeB => &lab.node_b,
            Self::Pod => &lab.pod_a2,
        }
    }

    fn addresses(self) -> [&'static str; 2] {
        match self {
            Self::Client => CLIENT,
            Self::NodeB => NODE_B,
            Self::Pod => POD_A2,
        }
    }
}

/// What a client asks both for.
#[derive(Clone, Debug)]
struct Case {
    number: u16,
    transport: Transport,
    from: From,
    /// The address at nodelb, and the twin's.
    to: [String; 2],
    is_local: bool,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for (number, _, _, is_local) in BACKENDS {
            let service = Service::new(number, &[]);
            let own = [service.load_balancer(), service.node_ports()];
            for (addresses, twins) in own.into_iter().zip(twins_of(number)) {
                for (to, twin) in addresses.into_iter().zip(twins) {
                    for transport in TRANSPORTS {
                        for from in From::ALL {
                            let to = [to.clone(), twin.clone()];
                            cases.push(Self { number, transport, from, to, is_local });
                        }
                    }
                }
            }
        }
        cases
    }

    fn name(&self) -> String {
        let Self { number, transport, from, to, .. } = self;
        format!("{from:?} to {} {transport:?} (service {number})", to[0])
    }
}

/// The addresses of a service's twin, in the order of [`Service::load_balancer`] and [`Service::node_ports`].
fn twins_of(number: u16) -> [[String; 2]; 2] {
    let port = 31_000 + number;
    [
        [format!("198.51.100.{}:80", 200 + number), format!("[2001:db8:f:2::{number}]:80")],
        [format!("{}:{port}", NODE_A[0]), format!("[{}]:{port}", NODE_A[1])],
    ]
}

/// The rules of a kube-proxy for the twins: destination NAT, and the node's address towards the backend unless the client is
/// a pod of the node.
fn serve_twins() {
    let mut rules = String::new();
    for (number, _, backend, _) in BACKENDS {
        for addresses in twins_of(number) {
            for (family, address) in addresses.iter().enumerate() {
                let (addr, port) = address.rsplit_once(':').unwrap();
                let (addr, ip) = (addr.trim_matches(['[', ']']), ["ip", "ip6"][family]);
                let to = [format!("{}:{}", backend[0], 8_000 + number), format!("[{}]:{}", backend[1], 8_000 + number)];
                rules += &format!(
                    "{ip} daddr {addr} meta l4proto {{ tcp, udp }} th dport {port} dnat {ip} to {}\n",
                    to[family]
                );
            }
        }
    }
    nft(&format!(
        "table inet twin {{
            chain prerouting {{ type nat hook prerouting priority dstnat; {rules} }}
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                ip saddr {} accept;
                ip6 saddr {} accept;
                ct status dnat masquerade;
            }}
        }}",
        POD_A2[0], POD_A2[1]
    ));
}

/// What a client got: the name of the backend, and the address that it saw.
type Got = Result<(String, IpAddr), ErrorKind>;

/// Asks all cases of both at once.
fn ask_all(lab: &Lab, cases: &[Case]) -> Vec<[Got; 2]> {
    thread::scope(|scope| {
        let asked: Vec<_> = cases
            .iter()
            .map(|case| {
                let place = case.from.place(lab);
                let ask = move |to: String| {
                    scope.spawn(move || place.run(|| ask(&to, case.transport, TIMEOUT)).map(|it| (it.name, it.seen)))
                };
                case.to.clone().map(ask)
            })
            .collect();
        asked.into_iter().map(|both| both.map(|thread| thread.join().unwrap())).collect()
    })
}

/// What differs and is not in the documentation.
fn difference(case: &Case, [own, twin]: &[Got; 2], on: &[&Change]) -> Option<String> {
    let excused = |only| on.iter().any(|change| change.excuses(only, case));
    let is_same = match (own, twin) {
        (Ok((name, seen)), Ok((other, expected))) => {
            // Backends on this node see the client's address.
            let client = case.from.addresses()[usize::from(seen.is_ipv6())].parse::<IpAddr>().unwrap();
            let is_seen = if case.is_local { *seen == client } else { seen == expected };
            name == other && (is_seen || excused(Only::Source))
        }
        (Ok(_), Err(_)) => excused(Only::Nodelb),
        (Err(_), Ok(_)) => excused(Only::Stack),
        (Err(_), Err(_)) => true,
    };
    (!is_same).then(|| format!("{}: nodelb {own:?}, the stack {twin:?}", case.name()))
}

/// Whether a problem of the status has the service's name, or is about all.
fn is_said(number: u16) -> bool {
    let name = format!("lab/s{number}");
    problems().iter().any(|problem| {
        let text = problem.to_string();
        text.contains(&name) || !text.contains("lab/s")
    })
}

/// Compares until both agree, or for long enough. Returns what differs, and which services no client reaches in silence.
fn compare(lab: &Lab, cases: &[Case], on: &[&Change]) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let got = ask_all(lab, cases);
        let mut found: Vec<String> =
            cases.iter().zip(&got).filter_map(|(case, both)| difference(case, both, on)).collect();
        for (number, ..) in BACKENDS {
            let mut own = cases.iter().zip(&got).filter(|(case, _)| case.number == number).map(|(_, [own, _])| own);
            if own.all(Result::is_err) && !is_said(number) {
                found.push(format!("no client reaches lab/s{number}, and the status does not say so"));
            }
        }
        if found.is_empty() || begun.elapsed() > FOLLOWED {
            return found;
        }
    }
}

/// One host: random changes, and back. Returns what differed.
fn play(lab: &Lab, cases: &[Case], seed: u64) -> Vec<String> {
    let changes = Change::all();
    let mut random = Random::new(seed);
    let (mut on, mut found): (Vec<&Change>, Vec<String>) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let mut below = |limit: usize| usize::try_from(random.below(limit as u64)).unwrap();
        let drawn = &changes[below(changes.len())];
        if let Some(place) = on.iter().position(|change| change.excludes(drawn)) {
            on.remove(place).end();
        } else if on.len() == AT_ONCE {
            on.remove(below(AT_ONCE)).end();
        } else {
            drawn.begin();
            on.push(drawn);
        }
        let names: Vec<&str> = on.iter().map(|change| change.name).collect();
        let differs = compare(lab, cases, &on);
        found.extend(differs.into_iter().map(|it| format!("seed {seed}, step {step}, with {names:?}: {it}")));
        if !found.is_empty() {
            break;
        }
    }
    // The last one first: its commands may rely on those before.
    on.iter().rev().for_each(|change| change.end());
    found
}

fn in_lab(test: &str, body: impl FnOnce(&Lab)) {
    sandbox::run(&format!("twins::{test}"), |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        lab.add_second_uplink();
        host.configure(&format!("{PACKETS_ON}devices = [\"auto\", \"second\"]\npod-devices = [\"pod-a2\"]\n"));
        let _servers = BACKENDS.map(|(number, name, addresses, _)| {
            let serve = || Server::start(name, &addresses, 8_000 + number);
            match name {
                "a1" => lab.pod_a1.run(serve),
                "b" => lab.pod_b.run(serve),
                "host-b" => lab.node_b.run(serve),
                _ => serve(),
            }
        });
        let endpoints = [ON_A1, ON_B, HOST_B, HOST_A];
        let services: Vec<Service> =
            BACKENDS.iter().zip(endpoints).map(|((number, ..), at)| Service::new(*number, &[at])).collect();
        // It takes segment routing headers off.
        ["all", "uplink"].iter().for_each(|it| lab.node_b.set(&format!("net/ipv6/conf/{it}/seg6_enabled"), "1"));
        serve_twins();
        let _daemon: Daemon = start(&host, &services.iter().collect::<Vec<_>>());
        body(&lab);
    });
}

#[test]
fn nodelb_serves_clients_outside_as_the_network_stack_would() {
    in_lab("nodelb_serves_clients_outside_as_the_network_stack_would", |lab| {
        let cases = Case::all();
        assert_eq!(compare(lab, &cases, &[]), Vec::<String>::new(), "before the first change");
        let (hosts, seed) = (number(HOSTS, 15), number(SEED, 1));
        let mut wrong = Vec::new();
        for seed in seed..seed + hosts {
            let found = play(lab, &cases, seed);
            say(&format!("host {seed}: {} differences", found.len()));
            found.iter().take(8).for_each(|it| say(it));
            wrong.extend(found);
            let after = compare(lab, &cases, &[]);
            assert_eq!(after, Vec::<String>::new(), "after the changes of host {seed}, which are undone");
        }
        assert_eq!(wrong.len(), 0, "{SEED} repeats a host");
    });
}

/// Each change alone, so that a difference has one cause.
#[test]
fn each_change_of_the_host_is_followed() {
    in_lab("each_change_of_the_host_is_followed", |lab| {
        let cases = Case::all();
        let mut wrong = 0;
        for change in &Change::all() {
            change.begin();
            let found = compare(lab, &cases, &[change]);
            say(&format!("{}: {} differences", change.name, found.len()));
            found.iter().take(8).for_each(|it| say(it));
            wrong += found.len();
            change.end();
            let after = compare(lab, &cases, &[]);
            assert_eq!(after, Vec::<String>::new(), "after {}, which is undone", change.name);
        }
        assert_eq!(wrong, 0);
    });
}

/// A difference that is excused is in the documentation.
#[test]
fn every_excuse_is_documented() {
    let pages = [include_str!("../../docs/migration.md"), include_str!("../../docs/packets.md")];
    for Change { name, excuse, .. } in Change::all() {
        if let Some(Excuse { text, .. }) = excuse {
            assert!(pages.iter().any(|page| page.contains(text)), "{name}: no page contains {text:?}");
        }
    }
}
