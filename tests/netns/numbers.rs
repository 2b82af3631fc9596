//! Known traffic through known faults: every number that nodelb shows is the one that the clients have counted.

#[path = "numbers/client.rs"]
mod client;
#[path = "numbers/views.rs"]
mod views;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nodelb_prober::Transport;
use serde_json::json;

use crate::host::{Daemon, Host, eventually, frontend, get};
use crate::lab::{CLIENT, Lab, POD_A1, POD_B};
use crate::lab_services::{Endpoint, ON_A1, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, wait_for_programs};
use crate::sandbox;
use crate::seeded::{Random, number};
use crate::talk::{SHORT, Server, TIMEOUT, ask};
use crate::without_daemon::nodelb;

use client::ClientOfNode;
use views::port_name;

const TEST: &str = "numbers::every_number_is_what_clients_counted";
const SEED: &str = "NUMBERS_SEED";
const SEQUENCES: &str = "NUMBERS_SEQUENCES";
const STEPS: usize = 24;

/// The services, by their numbers, and where their backends are.
const SERVICES: [(u16, &[Endpoint]); 4] = [(1, &[ON_A1]), (2, &[ON_B]), (3, &[]), (4, &[ON_A1, ON_B])];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    Node,
    Outside,
}

impl From {
    /// As nodelb calls it.
    fn place(self) -> &'static str {
        match self {
            Self::Node => "inside",
            Self::Outside => "outside",
        }
    }
}

const PROTOCOLS: [&str; 2] = ["TCP", "UDP"];
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// The name of each service that has been removed begins so.
const DELETED: &str = "(deleted service";

/// The port of a service: its number, protocol and family.
type Port = (u16, usize, usize);

#[derive(Clone, Debug)]
enum Step {
    /// So many connections, each with a question.
    Ask(From, Port, u16),
    /// Datagrams from outside to a port that the service does not have.
    Unserved(Port, u16),
    /// The service loses its backends, or gets them back.
    Turn(u16),
    /// The service is removed, and made again.
    Remake(u16),
    /// Clients outside reach only backends on the node, or all again.
    Policy(u16),
    /// Clients outside are not in the source ranges of the service, or are again.
    Ranges(u16),
    /// The backend on the other node is drained from service 4, or no longer.
    Drain,
    /// The daemon ends in this way, and starts again.
    Restart(Signal),
}

fn step(random: &mut Random) -> Step {
    let mut below = |limit: u16| u16::try_from(random.below(limit.into())).unwrap();
    let port = (1 + below(4), usize::from(below(2)), usize::from(below(2)));
    match below(20) {
        0..=4 => Step::Ask(From::Node, port, 1 + below(5)),
        5..=11 => Step::Ask(From::Outside, port, 1 + below(5)),
        12 => Step::Unserved(port, 1 + below(5)),
        13 => Step::Turn(port.0),
        14 => Step::Remake(port.0),
        15 => Step::Policy(port.0),
        16 => Step::Ranges(port.0),
        17 => Step::Drain,
        18 => Step::Restart(Signal::SIGTERM),
        _ => Step::Restart(Signal::SIGKILL),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    translated: u64,
    refused: u64,
}

/// What the clients have counted.
#[derive(Debug, Default)]
struct Truth {
    /// Since the daemon started, or the service was made.
    counts: BTreeMap<(Port, From), Counted>,
    /// The same for the two families of a port together. A service that is made again before the next look goes on with what
    /// the last one has seen.
    series: BTreeMap<(u16, usize, From), Counted>,
    seen: BTreeMap<(u16, usize, From), Counted>,
    /// The packets by reason and service.
    drops: BTreeMap<(&'static str, String), u64>,
    resets: u64,
    icmp: u64,
    created: u64,
    /// Connections of clients outside, by port.
    begun: BTreeMap<Port, u64>,
}

/// What a service is like.
#[derive(Clone, Copy, Debug, Default)]
struct Now {
    has_backends: bool,
    is_local: bool,
    is_closed: bool,
}

struct Play<'a> {
    host: &'a Host,
    lab: &'a Lab,
    client_of_node: ClientOfNode,
    daemon: Option<Daemon>,
    services: BTreeMap<u16, Now>,
    is_drained: bool,
    /// The next port of the client.
    from_port: u16,
    since: Instant,
    truth: Truth,
}

impl<'a> Play<'a> {
    fn new(host: &'a Host, lab: &'a Lab, cgroup: &Path) -> Self {
        let now = |endpoints: &[Endpoint]| Now { has_backends: !endpoints.is_empty(), ..Now::default() };
        let services: BTreeMap<u16, Now> =
            SERVICES.iter().map(|(number, endpoints)| (*number, now(endpoints))).collect();
        services.iter().for_each(|(number, now)| described(*number, *now).apply(host));
        let daemon = Some(host.start());
        wait_for_programs("uplink");
        let client_of_node = ClientOfNode::start(cgroup);
        let (since, truth) = (Instant::now(), Truth::default());
        Self { host, lab, client_of_node, daemon, services, is_drained: false, from_port: 20_000, since, truth }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Ask(from, port, count) => (0..count).for_each(|place| self.ask(from, port, place)),
            Step::Unserved(port, count) => (0..count).for_each(|_| self.ask_unserved(port)),
            Step::Turn(service) => self.change(service, |now| now.has_backends ^= true),
            Step::Policy(service) => self.change(service, |now| now.is_local ^= true),
            Step::Ranges(service) => self.change(service, |now| now.is_closed ^= true),
            Step::Drain => {
                self.is_drained ^= true;
                let command = if self.is_drained { "drain" } else { "undrain" };
                let output = nodelb(self.host, &[command, "lab/s4", POD_B[0]]);
                // A service without another backend keeps this one.
                self.is_drained &= output.status.success();
            }
            Step::Remake(service) => {
                self.host.withdraw(&format!("s{service}.yaml"));
                let [address, _] = described(service, Now::default()).cluster_ips();
                eventually("the service is gone", || frontend(&format!("{address}/TCP")).is_none());
                self.describe(service);
                let truth = &mut self.truth;
                let removed = format!("lab/s{service}:");
                for ((reason, of), packets) in std::mem::take(&mut truth.drops) {
                    let of = if of.starts_with(&removed) { DELETED.to_owned() } else { of };
                    *truth.drops.entry((reason, of)).or_default() += packets;
                }
                truth.counts.retain(|((of, ..), _), _| *of != service);
                truth.begun.retain(|(of, ..), _| *of != service);
                truth.series.retain(|(of, ..), _| *of != service);
                truth.series.extend(truth.seen.iter().filter(|((of, ..), _)| *of == service));
            }
            Step::Restart(signal) => {
                let daemon = self.daemon.take().unwrap();
                match signal {
                    Signal::SIGKILL => daemon.kill(),
                    _ => daemon.stop(),
                }
                self.daemon = Some(self.host.start());
                wait_for_programs("uplink");
                self.truth = Truth { begun: std::mem::take(&mut self.truth.begun), ..Truth::default() };
            }
        }
    }

    fn change(&mut self, service: u16, change: impl FnOnce(&mut Now)) {
        change(self.services.get_mut(&service).unwrap());
        self.describe(service);
    }

    /// Writes the service, and waits until all its ports are so.
    fn describe(&self, number: u16) {
        let now = self.services[&number];
        described(number, now).apply(self.host);
        for (from, place) in [(From::Node, 0), (From::Outside, 0), (From::Outside, 1)] {
            for (family, protocol) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let to = address(number, (from, place, family));
                let expected = match refusal(number, now, (from, place)) {
                    None => "Forwarded",
                    Some("no-backend") => "Refused",
                    Some(_) => "Dropped",
                };
                let of = if from == From::Node { "host" } else { CLIENT[family] };
                let path = format!("/trace?to={to}/{}&from={of}", PROTOCOLS[protocol]);
                eventually(&format!("{path} {expected}"), || {
                    let answer = get(&path).unwrap_or_default();
                    answer["verdict"]["verdict"] == expected
                });
            }
        }
    }

    fn ask(&mut self, from: From, port: Port, place: u16) {
        let (number, transport, family) = port;
        let now = self.services[&number];
        let refusal = refusal(number, now, (from, place));
        let is_silent = refusal.is_some_and(|reason| reason != "no-backend");
        // A SYN would be repeated.
        let transport = if is_silent { 1 } else { transport };
        let to = &address(number, (from, place, family));
        let got = match from {
            From::Node => self.client_of_node.ask(transport, to),
            From::Outside => {
                self.from_port += 1;
                let timeout = if is_silent { SHORT } else { TIMEOUT };
                let got = self.lab.client.run(|| ask_from(self.from_port, TRANSPORTS[transport], to, timeout));
                format!("{got:?}")
            }
        };
        let expected = match refusal {
            None => "Ok(())",
            Some("no-backend") => "Err(ConnectionRefused)",
            Some(_) => "Err(WouldBlock)",
        };
        assert_eq!(got, expected, "{from:?} {to} {transport} {now:?}");
        let (port, truth) = ((number, transport, family), &mut self.truth);
        let counts = truth.counts.entry((port, from)).or_default();
        let series = truth.series.entry((number, transport, from)).or_default();
        for it in [counts, series] {
            *(if refusal.is_none() { &mut it.translated } else { &mut it.refused }) += 1;
        }
        if from == From::Node {
            return;
        }
        match refusal {
            None => {
                truth.created += 1;
                *truth.begun.entry(port).or_default() += 1;
            }
            Some(reason) => {
                *truth.drops.entry((reason, port_name(port))).or_default() += 1;
                *(if transport == 0 { &mut truth.resets } else { &mut truth.icmp }) += u64::from(!is_silent);
            }
        }
    }

    fn ask_unserved(&mut self, (number, _, family): Port) {
        self.from_port += 1;
        let address = described(number, Now::default()).load_balancer()[family].replace(":80", ":81");
        let got = self.lab.client.run(|| ask_from(self.from_port, Transport::Udp, &address, TIMEOUT));
        assert_eq!(got, Err(ErrorKind::ConnectionRefused), "{address}");
        *self.truth.drops.entry(("not-served", "-".into())).or_default() += 1;
        self.truth.icmp += 1;
    }
}

/// The address that the connection of this place goes to.
fn address(number: u16, (from, place, family): (From, u16, usize)) -> String {
    let service = described(number, Now::default());
    let addresses = match (from, place % 2) {
        (From::Node, 0) => service.cluster_ips(),
        (From::Outside, 0) => service.load_balancer(),
        _ => service.node_ports(),
    };
    addresses[family].clone()
}

/// Why the connection is refused or dropped.
fn refusal(number: u16, now: Now, (from, place): (From, u16)) -> Option<&'static str> {
    let is_here = now.has_backends && endpoints(number).contains(&ON_A1);
    match from {
        From::Outside if now.is_closed && place % 2 == 0 => Some("source-range"),
        _ if !now.has_backends => Some("no-backend"),
        From::Outside if now.is_local && !is_here => Some("no-local-backend"),
        _ => None,
    }
}

fn endpoints(number: u16) -> &'static [Endpoint] {
    match SERVICES.iter().find(|(service, _)| *service == number) {
        Some((_, [])) | None => &[ON_A1],
        Some((_, endpoints)) => endpoints,
    }
}

fn described(number: u16, now: Now) -> Service {
    let service = Service::new(number, if now.has_backends { endpoints(number) } else { &[] });
    let policy = if now.is_local { "Local" } else { "Cluster" };
    let ranges = if now.is_closed { json!(["192.0.2.0/24"]) } else { json!([]) };
    service.with("externalTrafficPolicy", policy.into()).with("loadBalancerSourceRanges", ranges)
}

/// Asks from this port, which no earlier question had.
fn ask_from(port: u16, transport: Transport, to: &str, timeout: Duration) -> Result<(), ErrorKind> {
    if transport == Transport::Tcp {
        return ask(to, transport, timeout).map(drop);
    }
    let any = if to.starts_with('[') { "[::]" } else { "0.0.0.0" };
    let socket = UdpSocket::bind(format!("{any}:{port}")).unwrap();
    socket.set_read_timeout(Some(timeout)).unwrap();
    let answer = socket.connect(to).and_then(|()| socket.send(b"?")).and_then(|_| socket.recv(&mut [0; 100]));
    answer.map(drop).map_err(|error| error.kind())
}

#[test]
fn every_number_is_what_clients_counted() {
    ClientOfNode::run_if_requested();
    sandbox::run(TEST, |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        host.configure(PACKETS_ON);
        let mut servers = Vec::new();
        for (number, _) in SERVICES {
            servers.push(lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_000 + number)));
            servers.push(lab.pod_b.run(|| Server::start("b", &POD_B, 8_000 + number)));
        }
        let (rounds, seed) = (number(SEQUENCES, 1_u64), number(SEED, 1_u64));
        for seed in seed..seed + rounds {
            let mut random = Random::new(seed);
            let mut play = Play::new(&host, &lab, &sandbox.cgroup.join("node"));
            let mut steps = Vec::new();
            for _ in 0..STEPS {
                steps.push(step(&mut random));
                play.take(&steps[steps.len() - 1]);
                if random.below(4) > 0 {
                    let wrong = play.look();
                    assert!(wrong.is_empty(), "{SEED}={seed}, after {steps:?}: counted and shown: {wrong:#?}");
                }
            }
            play.daemon.take().unwrap().stop();
            host.cleanup();
        }
    });
}
