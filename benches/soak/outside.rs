//! Clients outside the node: a process in another cgroup, so that no hook of a socket concerns it, with a network around
//! the node and backends in pods on two nodes. It runs the same binary; an environment variable selects this mode. It
//! reads commands from its standard input and answers each with lines.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nodelb_prober::{Backend, Kept, Plan, Probe, Tally, Transport};

use crate::cluster::{KEPT_PORT, LINES, OUTSIDE, OUTSIDE_NODE_PORT, OUTSIDE_NODE_PORT_LINES};
use crate::figures::Figures;
use crate::lab::{Lab, NODE_A, POD_A1, POD_A2, POD_B};

/// The cgroup of the process that has the clients, set in it.
const VARIABLE: &str = "NODELB_SOAK_OUTSIDE";

/// The last line of an answer.
const END: &str = ".";

/// Number of long-lived connections of each kind.
const KEPT: u32 = 20;

/// The number of long-lived connections.
pub(crate) const CONNECTIONS: u64 = 4 * KEPT as u64;

/// The interval between two questions on a long-lived connection.
const PACE: Duration = Duration::from_millis(100);

/// New connections in a second, of each kind.
const RATE: u32 = 100;

/// The process with the clients, as the soak sees it.
pub(crate) struct Outside {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Outside {
    /// Runs the clients until the standard input ends if the environment selects it; otherwise returns false.
    pub(crate) fn serve_if_asked() -> bool {
        let Ok(cgroup) = std::env::var(VARIABLE) else { return false };
        fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
        serve(&Clients::new());
        true
    }

    /// Starts the process, which builds the network and the backends.
    pub(crate) fn start(cgroup: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(VARIABLE, cgroup).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut outside = Self { child, answers };
        outside.read();
        outside
    }

    /// Opens the long-lived connections, which last until the end.
    pub(crate) fn keep(&mut self) {
        self.ask("keep");
    }

    /// Begins to open new connections.
    pub(crate) fn connect(&mut self) {
        self.ask("connect");
    }

    /// Opens no new connections until [`Self::connect`].
    pub(crate) fn pause(&mut self) {
        self.ask("pause");
    }

    pub(crate) fn figures(&mut self) -> Vec<Figures> {
        self.ask("figures").iter().map(|line| Figures::parse(line)).collect()
    }

    fn ask(&mut self, command: &str) -> Vec<String> {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.read()
    }

    fn read(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the process with the clients has ended");
            if line.trim_end() == END {
                return lines;
            }
            lines.push(line);
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn serve(clients: &Clients) {
    println!("{END}");
    let mut probes: Vec<(String, Probe)> = Vec::new();
    let mut ended: Vec<(String, Tally)> = Vec::new();
    let mut kept = Vec::new();
    for command in std::io::stdin().lines().map_while(Result::ok) {
        match command.as_str() {
            "keep" => kept = clients.keep(),
            "connect" => probes = clients.connect(),
            "pause" => ended.extend(probes.drain(..).map(|(name, probe)| (name, probe.finish()))),
            _ => {
                let running = probes.iter().map(|(name, probe)| (name.clone(), probe.tally()));
                let lasting = kept.iter().map(|(name, kept): &(String, Held)| (name.clone(), kept.tally()));
                print(ended.iter().cloned().chain(running).chain(lasting));
            }
        }
        println!("{END}");
    }
}

/// Prints the tallies, those of the same name together.
fn print(tallies: impl Iterator<Item = (String, Tally)>) {
    let mut sums: Vec<(String, Tally)> = Vec::new();
    for (name, tally) in tallies {
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => sum.merge(&tally),
            None => sums.push((name, tally)),
        }
    }
    sums.iter().for_each(|(name, tally)| println!("{}", Figures::of(name, tally).line()));
}

/// The clients and what they reach.
struct Clients {
    lab: Lab,
    _backends: Vec<Backend>,
}

impl Clients {
    fn new() -> Self {
        let lab = Lab::new();
        let start = |name, pod: [&str; 2]| {
            let ip: IpAddr = pod[0].parse().unwrap();
            let [answers, lines] = [KEPT_PORT, LINES].map(|port| SocketAddr::new(ip, port));
            let listen = [(Transport::Tcp, answers), (Transport::Udp, answers), (Transport::TcpLines, lines)];
            Backend::start(name, &listen).unwrap()
        };
        let backends = vec![
            lab.pod_a1.run(|| start("a1", POD_A1)),
            lab.pod_a2.run(|| start("a2", POD_A2)),
            lab.pod_b.run(|| start("b", POD_B)),
        ];
        Self { lab, _backends: backends }
    }

    fn connect(&self) -> Vec<(String, Probe)> {
        let kinds = [("TCP", Transport::Tcp), ("UDP", Transport::Udp)];
        let addresses = [SocketAddr::new(OUTSIDE.into(), 80), node(OUTSIDE_NODE_PORT)];
        let both = kinds.into_iter().flat_map(|kind| addresses.map(|address| (kind, address)));
        both.map(|((name, transport), to)| {
            let plan = Plan { rate: RATE, ..Plan::new(to, transport) };
            (format!("outside: {name}"), self.lab.client.run(|| Probe::start(plan)))
        })
        .collect()
    }

    fn keep(&self) -> Vec<(String, Held)> {
        let tcp = [SocketAddr::new(OUTSIDE.into(), 81), node(OUTSIDE_NODE_PORT_LINES)];
        let udp = [SocketAddr::new(OUTSIDE.into(), 80), node(OUTSIDE_NODE_PORT)];
        let kinds = [("TCP", Transport::TcpLines, tcp), ("UDP", Transport::Udp, udp)];
        let each = kinds.into_iter().flat_map(|(name, transport, to)| to.map(|to| (name, transport, to)));
        each.map(|(name, transport, to)| {
            let kept = self.lab.client.run(|| Kept::open(to, transport, KEPT).unwrap());
            (format!("outside: {name}, {} connections all the time", 2 * KEPT), Held::start(kept))
        })
        .collect()
    }
}

fn node(port: u16) -> SocketAddr {
    SocketAddr::new(NODE_A[0].parse().unwrap(), port)
}

/// Long-lived connections with a thread that asks on them all the time.
struct Held {
    tally: Arc<Mutex<Tally>>,
    is_done: Arc<AtomicBool>,
}

impl Held {
    fn start(mut kept: Kept) -> Self {
        let held = Self { tally: Arc::default(), is_done: Arc::default() };
        let (tally, is_done) = (Arc::clone(&held.tally), Arc::clone(&held.is_done));
        thread::spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                kept.ask();
                tally.lock().unwrap().clone_from(kept.tally());
                thread::sleep(PACE);
            }
        });
        held
    }

    fn tally(&self) -> Tally {
        self.tally.lock().unwrap().clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
}
