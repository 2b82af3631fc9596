//! Floods of strangers, while connections of outside clients exchange data and other clients connect. The strangers and the
//! clients use the same two services: one has a backend on this node, the other one on another node.
//! `FLOOD_PACKETS=1000000` is the full run.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapHandle};
use nodelb_prober::{SetAtEnd, Transport};

use crate::flood::{self, Kind, MARK, NETWORKS, Open};
use crate::flood_counts::{Counted, kernel_count, lost};
use crate::host::{Daemon, Host, say, socket};
use crate::lab::{CLIENT, Lab, NODE_A, POD_A1, POD_B};
use crate::lab_services::{ON_A1, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, start};
use crate::outside_network::nft;
use crate::sandbox;
use crate::talk::{Server, TIMEOUT, Talk};

/// Long-lived connections of each transport to each service.
const TALKS: usize = 25;
/// Connections that each client begins during the flood and keeps, and the pause between two.
const KEPT: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// How long a UDP client waits for an answer, and how often it repeats, as resolvers do. The machine may be busy.
const REPEAT: Duration = Duration::from_secs(3);
const MOST_TRIES: u32 = 5;
/// Datagrams that wait for an answer of the backends: more do not fit into their sockets.
const UNANSWERED: u64 = 128;
/// Fragmented datagrams that are redirected to one address in a second.
const FRAGMENTS_A_SECOND: u64 = 2_048;
/// How much the resident memory of the daemon may grow, in KiB: the requests of this test.
const GROWTH: u64 = 8_192;

/// The number of packets of each flood.
fn count() -> u32 {
    std::env::var("FLOOD_PACKETS").map_or(20_000, |text| text.parse().expect("FLOOD_PACKETS is a number"))
}

/// The node, the network around it, and the backends.
struct Parties<'a> {
    host: &'a Host,
    lab: &'a Lab,
    daemon: &'a Daemon,
    servers: &'a [Server],
    services: [Service; 2],
}

/// `xdp` is the value of `packets.xdp`.
fn in_lab(test: &str, xdp: &str, body: impl FnOnce(&Parties<'_>)) {
    sandbox::run(&format!("outside_flood::{test}"), |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        // Answers to strangers are lost, as in a network that does not know them.
        NETWORKS.iter().for_each(|network| lab.router.ip(&format!("route add blackhole {network}")));
        host.configure(&format!("{PACKETS_ON}xdp = {xdp:?}\n"));
        let near = lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001));
        let far = lab.pod_b.run(|| Server::start("b", &POD_B, 8_002));
        let services = [Service::new(1, &[ON_A1]), Service::new(2, &[ON_B])];
        let daemon = start(&host, &[&services[0], &services[1]]);
        body(&Parties { host: &host, lab: &lab, daemon: &daemon, servers: &[near, far], services });
    });
}

fn timeout(transport: Transport) -> Duration {
    if transport == Transport::Tcp { TIMEOUT } else { REPEAT }
}

/// What clients saw during a flood.
#[derive(Debug, Default)]
struct Seen {
    exchanges: u64,
    begun: u64,
    refused: u64,
    /// Connections that were reset before the first answer.
    reset: u64,
    /// Datagrams without an answer: a flow that was idle has lost its port, or has found none.
    repeated: u64,
    /// Answers to strangers.
    foreign: u64,
    slowest: Duration,
    /// Failures other than those of `refused`.
    failed: Vec<String>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.exchanges += other.exchanges;
        self.begun += other.begun;
        self.refused += other.refused;
        self.reset += other.reset;
        self.repeated += other.repeated;
        self.foreign += other.foreign;
        self.slowest = self.slowest.max(other.slowest);
        self.failed.extend(other.failed);
    }

    fn exchange(&mut self, talk: &mut Talk, text: &str, asked: &AtomicU64) {
        let begun = Instant::now();
        let answer = if matches!(talk, Talk::Udp(_)) { self.ask_udp(talk, text, asked) } else { talk.send(text) };
        match answer {
            Ok(answer) if answer.trim_end().ends_with(text) => {
                self.exchanges += 1;
                self.slowest = self.slowest.max(begun.elapsed());
            }
            other => self.failed.push(format!("port {}: {text} got {other:?}", talk.port())),
        }
    }

    /// The first exchange on a connection; false if the connection is reset: the node may have lost its handshake.
    fn exchange_first(&mut self, talk: &mut Talk, asked: &AtomicU64) -> bool {
        if matches!(talk, Talk::Tcp(_)) && talk.ask() == Err(ErrorKind::ConnectionReset) {
            return false;
        }
        self.exchange(talk, "first", asked);
        true
    }

    /// Repeats the question until its answer arrives.
    fn ask_udp(&mut self, talk: &mut Talk, text: &str, asked: &AtomicU64) -> Result<String, ErrorKind> {
        for _ in 0..MOST_TRIES {
            let mut answer = talk.send(text);
            while let Ok(other) = &answer
                && !other.ends_with(text)
            {
                // Otherwise, it is the answer to an earlier question that was repeated.
                self.foreign += u64::from(other.ends_with(char::from(MARK)));
                answer = talk.receive();
            }
            if answer.is_ok() {
                asked.fetch_add(1, Ordering::Relaxed);
                return answer;
            }
            self.repeated += 1;
        }
        Err(ErrorKind::TimedOut)
    }
}

/// Exchanges data on each connection in turn until the flood ends, and then once more.
fn talk(talks: &mut [Talk], is_done: &AtomicBool, asked: &AtomicU64) -> Seen {
    let mut seen = Seen::default();
    let mut is_last = false;
    for round in 0.. {
        for talk in &mut *talks {
            seen.exchange(talk, &format!("round {round}"), asked);
        }
        if is_last || !seen.failed.is_empty() {
            break;
        }
        is_last = is_done.load(Ordering::Relaxed);
    }
    seen
}

/// Connects again and again until the flood ends. Connections that are kept must live until then.
fn connect(address: &str, transport: Transport, is_done: &AtomicBool, asked: &AtomicU64) -> Seen {
    let (mut seen, mut kept) = (Seen::default(), Vec::new());
    while !is_done.load(Ordering::Relaxed) && seen.failed.is_empty() {
        let began = Instant::now();
        match Talk::open(address, transport, timeout(transport)) {
            Ok(mut talk) => {
                seen.begun += 1;
                seen.slowest = seen.slowest.max(began.elapsed());
                if !seen.exchange_first(&mut talk, asked) {
                    seen.reset += 1;
                } else if kept.len() < KEPT {
                    kept.push(talk);
                }
            }
            Err(ErrorKind::ConnectionRefused) => seen.refused += 1,
            Err(ErrorKind::ConnectionReset) => seen.reset += 1,
            Err(error) => seen.failed.push(format!("{address}: {error:?}")),
        }
        thread::sleep(PAUSE);
    }
    for mut talk in kept {
        seen.exchange(&mut talk, "afterwards", asked);
    }
    seen
}

/// What others than nodelb have counted.
#[derive(Clone, Copy, Debug)]
struct Elsewhere {
    /// Datagrams that the backends have answered.
    answered: u64,
    /// Datagrams that did not fit into the sockets of the backends.
    overflowed: u64,
    /// ICMP errors that the TCP sockets of the backends have ignored.
    ignored: u64,
    /// Packets with a time to live that has ended at the router.
    ended: u64,
    /// Packets that the router has lost.
    lost: u64,
}

impl Elsewhere {
    fn since(self, before: Self) -> Self {
        let Self { answered, overflowed, ignored, ended, lost } = before;
        Self {
            answered: self.answered - answered,
            overflowed: self.overflowed - overflowed,
            ignored: self.ignored - ignored,
            ended: self.ended - ended,
            lost: self.lost - lost,
        }
    }
}

impl Parties<'_> {
    fn entries(&self, map: &str) -> usize {
        let directory = fs::read_dir(self.host.pins.join("v1")).unwrap().map(|entry| entry.unwrap().path());
        let mut places: Vec<_> = directory.flat_map(|path| [path.join(map), path.join("packets").join(map)]).collect();
        places.push(self.host.pins.join("v1").join(map));
        let pinned =
            places.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{:?}", self.host.pinned()));
        MapHandle::from_pinned_path(pinned).unwrap().keys().count()
    }

    /// Resident memory of the daemon in KiB.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn answered(&self) -> u64 {
        self.servers.iter().map(Server::answered).sum()
    }

    fn elsewhere(&self) -> Elsewhere {
        let lab = self.lab;
        let of_pods =
            |table, name| [&lab.pod_a1, &lab.pod_b].iter().map(|pod| kernel_count(pod, table, name)).sum::<u64>();
        Elsewhere {
            answered: self.answered(),
            overflowed: of_pods("snmp", "RcvbufErrors") + of_pods("snmp6", "Udp6RcvbufErrors"),
            ignored: of_pods("netstat", "OutOfWindowIcmps"),
            ended: kernel_count(&lab.router, "snmp", "InHdrErrors")
                + kernel_count(&lab.router, "snmp6", "Ip6InHdrErrors"),
            lost: lost(lab),
        }
    }

    /// Floods both services over IPv4, and then over IPv6.
    fn flood(&self, kind: Kind) {
        for family in [0, 1] {
            let what = format!("{kind:?} over {}", ["IPv4", "IPv6"][family]);
            let addresses =
                [&self.services[0], &self.services[1]].map(|service| service.load_balancer()[family].clone());
            let open = |address: &String, transport| {
                self.lab.client.run(|| Talk::open(address, transport, timeout(transport))).unwrap()
            };
            let mut talks: Vec<Talk> = Vec::new();
            let mut known: Vec<Open> = Vec::new();
            for (address, transport) in addresses.iter().flat_map(|it| TRANSPORTS.map(|transport| (it, transport))) {
                for _ in 0..TALKS {
                    // The second question moves a connection out of the table of handshakes.
                    let mut talk = open(address, transport);
                    assert!(talk.ask().is_ok() && talk.ask().is_ok(), "{what}");
                    if transport == Transport::Tcp {
                        let client = SocketAddr::new(CLIENT[family].parse().unwrap(), talk.port());
                        known.push((client, socket(address)));
                    }
                    talks.push(talk);
                }
            }
            let targets = [socket(&addresses[0]), socket(&addresses[1])];
            let packets = kind.packets(count(), targets, &known);
            self.flood_with(kind, (&what, &addresses), &packets, talks);
        }
    }

    fn flood_with(
        &self,
        kind: Kind,
        (what, addresses): (&str, &[String; 2]),
        packets: &[Vec<u8>],
        mut talks: Vec<Talk>,
    ) {
        let sent = u64::try_from(packets.len()).unwrap();
        let (before, resident, elsewhere) = (Counted::now(), self.resident(), self.elsewhere());
        let (is_done, asked, mut seen) = (AtomicBool::new(false), AtomicU64::new(0), Seen::default());
        let (begun, mut seconds) = (Instant::now(), 0);
        // Waits until the backends have answered enough, or answer no more: some packets find no port.
        let (mut dropped, answered) = (0, || self.answered() - elsewhere.answered);
        let mut wait = |sent: usize| {
            let since = Instant::now();
            let waiting = || (sent as u64 + asked.load(Ordering::Relaxed)).saturating_sub(answered());
            while waiting() > dropped + UNANSWERED {
                if since.elapsed() > 10 * PAUSE {
                    dropped = waiting();
                }
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let end = SetAtEnd(&is_done);
            let (is_done, asked) = (&is_done, &asked);
            let wait = &mut wait;
            let mut threads: Vec<_> =
                talks.chunks_mut(TALKS).map(|part| scope.spawn(move || talk(part, is_done, asked))).collect();
            for (address, transport) in addresses.iter().flat_map(|it| TRANSPORTS.map(|transport| (it, transport))) {
                let client = &self.lab.client;
                threads.push(scope.spawn(move || client.run(|| connect(address, transport, is_done, asked))));
            }
            self.lab.router.run(|| {
                let node = NODE_A[usize::from(addresses[0].starts_with('['))].parse().unwrap();
                flood::send(packets, node, |count| {
                    if kind == Kind::Answered {
                        wait(count);
                    }
                });
            });
            seconds = begun.elapsed().as_secs();
            drop(end);
            threads.into_iter().for_each(|thread| seen.add(thread.join().unwrap_or_else(|_| panic!("{what}"))));
        });
        let counted = Counted::now().since(&before);
        let mut elsewhere = self.elsewhere().since(elsewhere);
        let [connections, handshakes] = ["connections", "half_open"].map(|map| self.entries(map));
        let grown = self.resident().saturating_sub(resident);
        say(&format!(
            "{what}: {sent} packets in {seconds} s, {} lost on the way; {} exchanges, {} connections begun, {} refused, \
             {} reset, {} datagrams repeated, the slowest after {:?}; {connections} connections, {handshakes} handshakes, {grown} KiB more; {:?}",
            elsewhere.lost,
            seen.exchanges,
            seen.begun,
            seen.refused,
            seen.reset,
            seen.repeated,
            seen.slowest,
            counted.0
        ));
        assert!(seen.failed.is_empty(), "{what}: {:#?}", seen.failed);
        assert!(seen.begun > 0 && seen.exchanges > 8 * TALKS as u64, "{what}: {seen:?}");
        assert!(connections <= 2 * 131_072 && handshakes <= 2 * 32_768, "{what}: {connections}, {handshakes} entries");
        assert!(grown <= GROWTH, "{what}: the daemon has {grown} KiB more");
        elsewhere.answered -= asked.load(Ordering::Relaxed);
        assert_counted(kind, what, (sent, seconds), (&seen, &counted, elsewhere));
    }
}

/// Every packet of a stranger is counted, but for those that were lost on their way to the node.
fn assert_counted(
    kind: Kind,
    what: &str,
    (sent, seconds): (u64, u64),
    (seen, counted, elsewhere): (&Seen, &Counted, Elsewhere),
) {
    let is_all = |found: u64, expected: u64, honest: u64, thing: &str| {
        let expected = expected.saturating_sub(elsewhere.lost)..=expected + honest;
        assert!(expected.contains(&found), "{what}: {found} {thing}, expected {expected:?}");
    };
    // Each packet of a client may begin a connection: its flow may have been evicted.
    let honest = 4 * (seen.begun + seen.refused + seen.repeated) + seen.exchanges;
    let strangers = match kind {
        Kind::Syns | Kind::Silent | Kind::FirstFragments => sent,
        Kind::HalfHandshakes | Kind::Answered => sent / 2,
        Kind::LaterFragments | Kind::Errors => 0,
    };
    is_all(counted.begun() + counted.not_begun(), strangers, honest, "first packets");
    assert_eq!(counted.not_begun(), counted.of("refused"), "{what}: by reason, and by service");
    let without_port = counted.dropped("no-port");
    assert!(without_port >= seen.refused, "{what}: refused although a source port was free");
    assert_eq!(seen.foreign, 0, "{what}: clients got answers to strangers");
    let unknown = counted.dropped("unknown") + counted.passed("unknown");
    match kind {
        Kind::Syns => assert!(seen.reset <= unknown, "{what}: {seen:?}"),
        // Acknowledgements of handshakes that were refused or evicted are unknown.
        Kind::HalfHandshakes => is_all(unknown, 0, sent / 2 + honest, "unknown packets"),
        Kind::Silent | Kind::Answered | Kind::FirstFragments | Kind::LaterFragments | Kind::Errors => {
            assert_eq!((seen.refused, seen.reset, unknown), (0, 0, 0), "{what}");
        }
    }
    match kind {
        Kind::Answered => {
            let all = elsewhere.answered + elsewhere.overflowed + without_port;
            is_all(all, sent, 2 * seen.repeated, "answers");
        }
        Kind::Errors => is_all(elsewhere.ignored, sent, 0, "ignored errors"),
        // Without a port they belong to no service, and nothing else has the address.
        Kind::LaterFragments => {
            is_all(counted.dropped("fragment"), sent, 0, "later fragments that were dropped");
            assert_eq!(elsewhere.ended, 0, "{what}: later fragments went round until their time to live ended");
        }
        Kind::FirstFragments => {
            let most = FRAGMENTS_A_SECOND * (seconds + 2);
            let dropped = (sent / 2).saturating_sub(most + elsewhere.lost + without_port)..=sent / 2;
            assert!(dropped.contains(&counted.dropped("fragment-rate")), "{what}: expected {dropped:?}");
        }
        Kind::Syns | Kind::HalfHandshakes | Kind::Silent => {}
    }
}

#[test]
fn a_flood_of_syns_breaks_no_connection() {
    in_lab("a_flood_of_syns_breaks_no_connection", "off", |parties| parties.flood(Kind::Syns));
}

#[test]
fn a_flood_of_syns_breaks_no_connection_with_xdp() {
    in_lab("a_flood_of_syns_breaks_no_connection_with_xdp", "generic", |parties| parties.flood(Kind::Syns));
}

#[test]
fn a_flood_of_half_handshakes_breaks_no_connection() {
    in_lab("a_flood_of_half_handshakes_breaks_no_connection", "off", |parties| parties.flood(Kind::HalfHandshakes));
}

#[test]
fn a_flood_of_answered_datagrams_breaks_no_connection() {
    in_lab("a_flood_of_answered_datagrams_breaks_no_connection", "off", |parties| parties.flood(Kind::Answered));
}

#[test]
fn a_flood_of_answered_datagrams_breaks_no_connection_with_xdp() {
    let test = "a_flood_of_answered_datagrams_breaks_no_connection_with_xdp";
    in_lab(test, "generic", |parties| parties.flood(Kind::Answered));
}

#[test]
fn a_flood_of_datagrams_without_answers_breaks_no_connection() {
    in_lab("a_flood_of_datagrams_without_answers_breaks_no_connection", "off", |parties| {
        // A firewall in front of the backends.
        let rule = format!("udp length >= 9 @th,64,8 {MARK} drop");
        let rules = format!("table inet flood {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}\n");
        [&parties.lab.pod_a1, &parties.lab.pod_b].iter().for_each(|pod| pod.run(|| nft(&rules)));
        parties.flood(Kind::Silent);
    });
}

#[test]
fn a_flood_of_first_fragments_breaks_no_connection() {
    in_lab("a_flood_of_first_fragments_breaks_no_connection", "off", |parties| parties.flood(Kind::FirstFragments));
}

#[test]
fn a_flood_of_later_fragments_breaks_no_connection() {
    in_lab("a_flood_of_later_fragments_breaks_no_connection", "off", |parties| parties.flood(Kind::LaterFragments));
}

#[test]
fn a_flood_of_errors_breaks_no_connection() {
    in_lab("a_flood_of_errors_breaks_no_connection", "off", |parties| parties.flood(Kind::Errors));
}
