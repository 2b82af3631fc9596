//! The scenarios of `scenarios/outside/` with the BPF programs: single packets, and clients behind a router that
//! reach a cluster of two nodes. `SCENARIO=name` runs a single one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;
use nodelb_core::compile::guard::Guard;
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::snapshot::Snapshot;
use nodelb_datapath::packets::{Packet, PacketHook, PacketMaps, PacketOptions, PacketPrograms, PacketSettings};
use nodelb_datapath::{Attach, DeviceSide, HookedDevice, OpenedPackets, Options, XdpFit};
use nodelb_prober::Transport;

use crate::environment::{Client, Environment, Outcome};
use crate::health_check_server::{self, HealthCheckServer};
use crate::host::Host;
use crate::lab::{Lab, NODE_A, NODE_B, POD_A1, POD_A2, POD_B, Place, UPLINK};
use crate::maps::{KernelMaps, options};
use crate::network::ip;
use crate::outside_model::{Affinities, Attempt, Frame, Machine, Met};
use crate::run::{difference, run, scenarios};
use crate::sandbox;
use crate::script::Script;
use crate::talk::{Answer, Server, TIMEOUT, Talk};

/// Maximum number of connections until every expected backend has answered.
const TRIES: usize = 200;

/// The addresses that node A has besides those of the lab.
const OTHER_ADDRESSES: [&str; 2] = ["203.0.113.3/29", "2001:db8:1::3/64"];

/// How long a client waits where the programs drop or pass on its packets.
const SILENCE: Duration = Duration::from_millis(200);

/// The return value of a program that drops a packet.
const DROPPED: i32 = 2;

/// The maps of services that the programs at devices and those for single packets share.
const MAPS: [&str; 16] = [
    "outside",
    "outside_addrs",
    "source_ranges",
    "uplinks",
    "services",
    "slots",
    "frontends",
    "node_addrs",
    "affinity",
    "connections",
    "half_open",
    "fragments",
    "snat_cursors",
    "packet_settings",
    "packet_counts",
    "service_counters",
];

/// State shared by all scenarios: the lab, and the listening backends.
struct Net {
    lab: Lab,
    cgroup: PathBuf,
    pins: PathBuf,
    /// The devices where packets arrive, and their Ethernet addresses.
    uplink: (HookedDevice, [u8; 6]),
    vm: (HookedDevice, [u8; 6]),
    servers: BTreeMap<SocketAddr, Server>,
}

/// The environment of one scenario.
struct Cluster<'net> {
    net: &'net mut Net,
    packets: Option<(OpenedPackets, PacketPrograms)>,
    /// Whether the first pod on the node has a device with programs.
    has_pod_device: bool,
    always_masquerades: bool,
    talks: BTreeMap<String, Talk>,
    affinities: Affinities,
    began: Instant,
    health_checks: Option<HealthCheckServer>,
}

impl Net {
    fn new(lab: Lab, cgroup: PathBuf, pins: PathBuf) -> Self {
        for address in OTHER_ADDRESSES {
            let mut words = vec!["address", "add", address, "dev", UPLINK];
            if address.contains("::") {
                // The source address of the node stays that of the lab.
                words.extend(["nodad", "preferred_lft", "0"]);
            }
            ip(&words);
        }
        let [uplink, vm] =
            [(Machine::Outside, DeviceSide::Uplink), (Machine::Vm, DeviceSide::Pod)].map(|(who, side)| {
                let ifindex = nix::net::if_::if_nametoindex(who.device()).unwrap();
                (HookedDevice { ifindex, side, l2_length: 14, xdp: XdpFit::Fits }, mac(who.device()))
            });
        Self { lab, cgroup, pins, uplink, vm, servers: BTreeMap::new() }
    }

    /// Runs `work` where the address is.
    fn at<T: Send>(&self, address: SocketAddr, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        let host = address.ip().to_string();
        let is_of = |addresses: [&str; 2]| addresses.contains(&host.as_str());
        let pods = [(POD_A1, &self.lab.pod_a1), (POD_A2, &self.lab.pod_a2), (POD_B, &self.lab.pod_b)];
        match pods.into_iter().chain([(NODE_B, &self.lab.node_b)]).find(|(addresses, _)| is_of(*addresses)) {
            Some((_, place)) => Ok(place.run(work)),
            None if is_of(NODE_A) => Ok(work()),
            None => Err(format!("{host} is no address for a backend; see tests/netns/lab.rs")),
        }
    }

    fn place(&self, machine: Machine) -> &Place {
        match machine {
            Machine::Outside => &self.lab.client,
            Machine::OtherNode => &self.lab.node_b,
            Machine::Vm => &self.lab.pod_a1,
        }
    }

    /// What connections from real sockets of the machine experience.
    fn connect(&self, machine: Machine, to: L4Addr, expected: &Met) -> Result<Met, String> {
        let place = self.place(machine);
        let wanted = if let Met::Reaches(all) = expected { all.len() } else { 1 };
        let mut reached = BTreeSet::new();
        for tries in 1..=TRIES {
            let answer = place.run(|| open(to, expected)?.ask());
            match answer {
                Ok(answer) => reached.insert(seen(&answer, to.protocol)?),
                Err(kind) if tries == 1 => return failed(kind),
                Err(kind) => return Err(format!("reaches {reached:?}, then fails: {kind}")),
            };
            // A few more, to detect unexpected backends.
            if reached.len() == wanted && tries >= 4 * wanted + 4 {
                break;
            }
        }
        Ok(Met::Reaches(reached))
    }

    /// Whether the network stack of the node gets the packets of connections that are not translated.
    fn passes(&self, machine: Machine, to: L4Addr) -> Result<Met, String> {
        let at = SocketAddr::new(to.addr.ip(), to.port);
        let own = NODE_A.into_iter().chain(OTHER_ADDRESSES.map(|address| address.split('/').next().unwrap()));
        let is_own = own.into_iter().any(|own| own == at.ip().to_string());
        let address = at.ip().to_string();
        let _server = is_own.then(|| Server::start("node", &[&address], at.port()));
        let expected = if is_own { Met::PassesThrough } else { Met::Silence };
        let answer = self.place(machine).run(|| open(to, &expected)?.ask());
        match answer {
            Ok(answer) if is_own && answer.name == "node" => Ok(Met::PassesThrough),
            // The packets circle between the node and the router until their hop limit ends.
            Err(ErrorKind::TimedOut | ErrorKind::HostUnreachable) if !is_own => Ok(Met::PassesThrough),
            other => Err(format!("does not pass through: {other:?}")),
        }
    }
}

/// The Ethernet address of a device.
fn mac(device: &str) -> [u8; 6] {
    let output = sandbox::program("ip").args(["-o", "link", "show", "dev", device]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rest) = text.split_once("link/ether ").unwrap();
    let bytes = rest.split(' ').next().unwrap().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    bytes.collect::<Vec<_>>().try_into().unwrap()
}

/// Opens a connection, with a short timeout if no answer is expected. Every UDP socket has a port that none had before:
/// a flow that the node still knows would continue with its backend.
fn open(to: L4Addr, expected: &Met) -> Result<Talk, ErrorKind> {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(33_000);
    let timeout = if *expected == Met::Silence { SILENCE } else { TIMEOUT };
    let at = SocketAddr::new(to.addr.ip(), to.port);
    if to.protocol != Protocol::Udp {
        return Talk::open(&at.to_string(), Transport::Tcp, timeout);
    }
    let any = if at.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) };
    let datagrams = UdpSocket::bind((any, NEXT_PORT.fetch_add(1, Ordering::Relaxed))).unwrap();
    datagrams.connect(at).map_err(|error| error.kind())?;
    datagrams.set_read_timeout(Some(timeout)).unwrap();
    Ok(Talk::Udp(datagrams))
}

/// The backend that answered, and the address that it sees.
fn seen(answer: &Answer, protocol: Protocol) -> Result<(L4Addr, nodelb_core::model::addr::Addr), String> {
    let at: SocketAddr = answer.name.parse().map_err(|error| format!("{}: {error}", answer.name))?;
    Ok((L4Addr::new(at.ip().into(), at.port(), protocol), answer.seen.into()))
}

fn failed(kind: ErrorKind) -> Result<Met, String> {
    match kind {
        ErrorKind::ConnectionRefused => Ok(Met::Refused),
        ErrorKind::TimedOut => Ok(Met::Silence),
        other => Err(format!("fails: {other}")),
    }
}

impl Cluster<'_> {
    /// What a program makes of the bytes of a packet of this machine; `None` if it drops it.
    fn run(&self, machine: Machine, sent: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let Some((_, programs)) = &self.packets else { return Err("packets are off".into()) };
        let (device, hook) = match machine {
            Machine::Outside | Machine::OtherNode => (self.net.uplink.0, PacketHook::UplinkIn),
            Machine::Vm => (self.net.vm.0, PacketHook::PodIn),
        };
        let packet = Packet { bytes: sent.to_vec(), ifindex: device.ifindex, came_by: 0, gso_size: 0 };
        let ran = programs.run(hook, &packet);
        let ran = ran.map_err(|error| format!("BPF_PROG_TEST_RUN: {error}"))?;
        Ok((ran.code != DROPPED).then_some(ran.bytes))
    }
}

fn agreed(what: &str, met: Met, expected: &Met) -> Result<Met, String> {
    if met == *expected { Ok(met) } else { Err(format!("by {what} it {met}, by the state it {expected}")) }
}

impl Environment for Cluster<'_> {
    type Maps = KernelMaps;

    fn maps(&mut self, limits: Limits, guard: &Guard) -> Result<KernelMaps, String> {
        let packets = PacketOptions {
            nodeport_range: guard.nodeport_range.clone(),
            source_ports: 10_000..=29_999,
            limits,
            max_connections: 10_000,
            max_handshakes: 10_000,
            max_fragments: 64,
            count_connections: true,
            has_pods: true,
            direct_return: true,
            tunnel_sources: Vec::new(),
            foreign_connections: None,
            xdp: None,
            settings: PacketSettings {
                answers: true,
                always_masquerades: self.always_masquerades,
                owns_addresses: true,
                ..PacketSettings::default()
            },
            policies: None,
        };
        let options =
            Options { packets: Some(packets.clone()), ..options((&self.net.pins, &self.net.cgroup), limits, guard) };
        let mut maps = KernelMaps::open(options)?;
        let mut opened = maps.datapath.as_mut().and_then(nodelb_datapath::KernelDatapath::take_packets).unwrap();
        opened.hooks.attach(self.net.uplink.0).map_err(|error| error.to_string())?;
        if self.has_pod_device {
            opened.hooks.attach(self.net.vm.0).map_err(|error| error.to_string())?;
        }
        let shared = MAPS.into_iter().filter_map(|name| {
            let map = opened.maps.get(name)?;
            Some((name.to_owned(), MapHandle::try_from(map).unwrap()))
        });
        let programs = PacketPrograms::load(&packets, PacketMaps::new(shared)).map_err(|error| error.to_string())?;
        self.packets = Some((opened, programs));
        Ok(maps)
    }

    fn uplink(&self) -> u32 {
        self.net.uplink.0.ifindex
    }

    fn connect(&mut self, _: L4Addr, _: Client, _: &Outcome) -> Result<String, String> {
        Err("clients on the node are in scenarios/conformance, which tests/conformance.rs runs".into())
    }

    fn connect_outside(&mut self, attempt: &Attempt, expected: &Met) -> Result<Met, String> {
        let began = Moment(u64::try_from(self.began.elapsed().as_millis()).unwrap());
        let (machine, to) = (attempt.machine, attempt.to);
        let mac = if machine == Machine::Vm { self.net.vm.1 } else { self.net.uplink.1 };
        let ran = Met::of(attempt, mac, &mut |sent| self.run(machine, sent))?;
        let ran = self.affinities.check(attempt, ran, expected, began)?;
        agreed("the programs", ran, expected)?;
        let met = match expected {
            // The kernel of the tests may not support SCTP.
            _ if to.protocol == Protocol::Sctp => expected.clone(),
            Met::PassesThrough => self.net.passes(machine, to)?,
            _ => self.affinities.check(attempt, self.net.connect(machine, to, expected)?, expected, began)?,
        };
        agreed("its sockets", met, expected)
    }

    fn talk(&mut self, name: &str, packet: &Frame, expected: &Met) -> Result<Met, String> {
        let to = packet.to;
        let ran = Met::by(packet, self.net.uplink.1, &mut |sent| self.run(Machine::Outside, sent))?;
        agreed("the programs", ran, expected)?;
        if packet.is_first {
            let opened = self.net.lab.client.run(|| open(to, expected));
            let opened = opened.map_err(|error| format!("{name}: {error}"))?;
            self.talks.insert(name.to_owned(), opened);
        }
        let client = self.talks.get_mut(name).ok_or("the client has no connection")?;
        let met = match client.ask() {
            Ok(answer) => Met::Reaches(BTreeSet::from([seen(&answer, to.protocol)?])),
            Err(kind) => failed(kind)?,
        };
        agreed("its socket", met, expected)
    }

    fn health_check(&mut self, at: L4Addr, snapshot: Snapshot, expected: &str) -> Result<String, String> {
        let server = self.health_checks.get_or_insert_with(HealthCheckServer::start);
        server.publish(snapshot);
        let to = SocketAddr::new(at.addr.ip(), at.port);
        let mut response = String::new();
        // The listeners follow the published state asynchronously.
        for _ in 0..500 {
            response = self.net.lab.client.run(|| health_check_server::get(to));
            if response == expected {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(response)
    }

    fn listen(&mut self, backends: &BTreeSet<L4Addr>) -> Result<(), String> {
        let sockets: BTreeSet<SocketAddr> = backends.iter().map(|at| SocketAddr::new(at.addr.ip(), at.port)).collect();
        for at in sockets {
            if self.net.servers.contains_key(&at) {
                continue;
            }
            let address = at.ip().to_string();
            let server = self.net.at(at, || Server::start(&at.to_string(), &[&address], at.port()))?;
            self.net.servers.insert(at, server);
        }
        Ok(())
    }

    fn wait(&mut self, seconds: u64) {
        thread::sleep(Duration::from_secs(seconds));
    }
}

/// Runs a scenario; returns an error if its output differs.
fn check(path: &Path, net: &mut Net) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let script = Script::parse(&text)?;
    let always_masquerades = script.steps.iter().any(|step| step.ends_with("snat-always"));
    let environment = Cluster {
        net,
        packets: None,
        has_pod_device: always_masquerades || script.steps.iter().any(|step| step.ends_with("from vm")),
        always_masquerades,
        talks: BTreeMap::new(),
        affinities: Affinities::default(),
        began: Instant::now(),
        health_checks: None,
    };
    let actual = run(&script, environment, &[])?;
    if actual.to_string() == text { Ok(()) } else { Err(difference(&text, &actual.to_string())) }
}

#[test]
fn every_scenario_holds_for_clients_outside() {
    sandbox::run("outside_scenarios::every_scenario_holds_for_clients_outside", |sandbox| {
        // Gives the lab its /run.
        let _host = Host::without_the_test(sandbox);
        // Without this test: a hook of the socket path translates none of its connections.
        let cgroup = sandbox.cgroup.join("scenarios");
        fs::create_dir(&cgroup).unwrap();
        let only = std::env::var("SCENARIO").ok();
        let is_wanted =
            |path: &Path| only.as_ref().is_none_or(|only| path.file_stem().is_some_and(|stem| stem == &**only));
        let mut net = Net::new(Lab::new(), cgroup, sandbox.bpffs.join("nodelb"));
        let wrong: Vec<String> = scenarios("outside")
            .iter()
            .filter(|path| is_wanted(path))
            .filter_map(|path| Some(format!("{}: {}", path.display(), check(path, &mut net).err()?)))
            .collect();
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
    });
}
