//! The cost of 1,000 names with a TTL of 5 s for the daemon: `make bench`. The daemon runs as a process against a DNS
//! server of this process; CPU time and memory are those that the kernel accounts to it.

#![expect(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark stops where it cannot go on, and prints; it shares its daemon with another"
)]

#[path = "kubernetes/daemon.rs"]
mod daemon;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};

use daemon::Daemon;

const NAMES: usize = 1_000;

/// The TTL of each answer, in seconds.
const TTL: u32 = 5;

/// Duration of the measurement: several times the TTL.
const LOAD: Duration = Duration::from_secs(22);

/// Time in which everything that a start causes ends.
const SETTLE: Duration = Duration::from_secs(8);

const SERVER: &str = "192.0.2.53:53";

/// Number of questions that the server has answered.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// Answers each question with one address.
fn serve(socket: &UdpSocket) {
    let mut datagram = [0; 4_096];
    loop {
        let (len, client) = socket.recv_from(&mut datagram).unwrap();
        let query = Message::from_vec(&datagram[..len]).unwrap();
        let asked = query.queries.first().unwrap().clone();
        let number = ANSWERED.fetch_add(1, Ordering::Relaxed);
        let host = asked.name().to_ascii().bytes().fold(0, |sum: u8, byte| sum.wrapping_mul(7).wrapping_add(byte));
        let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
        answer.add_answer(Record::from_rdata(asked.name().clone(), TTL, RData::A(A(Ipv4Addr::new(192, 0, 2, host)))));
        answer.add_query(asked);
        socket.send_to(&answer.to_vec().unwrap(), client).unwrap_or_else(|error| panic!("answer {number}: {error}"));
    }
}

/// The services, each with the backend that `backend` returns for its number.
fn services(backend: impl Fn(usize) -> String) -> String {
    let service = |number: usize| {
        let frontend = format!("198.51.{}.{}:80", 100 + number / 250, 1 + number % 250);
        let backend = backend(number);
        format!("[[service]]\nname = \"shop/web-{number}\"\nfrontends = [{frontend:?}]\nbackends = [{backend:?}]\n")
    };
    (0..NAMES).map(service).collect()
}

/// The metrics of the daemon; `None` before it listens.
fn metrics() -> Option<String> {
    let mut stream = TcpStream::connect("127.0.0.1:9890").ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    Some(answer)
}

/// Waits until each name has an answer since the start.
fn until_answered() {
    let (begun, expected) = (Instant::now(), format!("nodelb_dns_names{{state=\"Ok\"}} {NAMES}\n"));
    while !metrics().is_some_and(|metrics| metrics.contains(&expected)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "not every name has an answer");
        sleep(Duration::from_millis(200));
    }
}

fn main() {
    sandbox::run("names", |sandbox| {
        let socket = UdpSocket::bind(SERVER).unwrap();
        std::thread::spawn(move || serve(&socket));
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("services.d")).unwrap();
        let file = directory.path().join("services.d/web.toml");
        let start = || Daemon::start(sandbox, directory.path(), &format!("[dns]\nservers = [{SERVER:?}]\n"));
        fs::write(&file, services(|number| format!("192.0.2.{}:8080", 1 + number % 250))).unwrap();
        // The first start fills the maps, so that the next two begin alike.
        start().until_ready();
        let with_addresses = {
            let daemon = start();
            daemon.until_ready();
            sleep(SETTLE);
            daemon.memory().resident
        };
        fs::write(&file, services(|number| format!("web-{number}.example:8080"))).unwrap();
        let daemon = start();
        until_answered();
        sleep(SETTLE);
        let (begun, cpu, answered) = (Instant::now(), daemon.cpu(), ANSWERED.load(Ordering::Relaxed));
        sleep(LOAD);
        let seconds = begun.elapsed().as_secs_f64();
        let load = (daemon.cpu() - cpu).as_secs_f64() / seconds;
        let queries = (ANSWERED.load(Ordering::Relaxed) - answered) as f64 / seconds;
        let memory = daemon.memory().resident - with_addresses;
        println!("\n## Backends with DNS names\n");
        println!(
            "1,000 services in a file, each with a name of its own; a server on this host answers each question with"
        );
        println!("one address and a TTL of {TTL} s: {queries:.0} questions per second.\n");
        println!("| | | limit |\n|---|---|---|");
        println!("| CPU | {:.2} % of a core | 2 % |", load * 100.0);
        println!("| resident, more than with addresses | {memory:.1} MB | 10 MB |");
        let is_asked = queries >= NAMES as f64 / f64::from(TTL) / 2.0;
        let is_within = load <= 0.02 && memory <= 10.0 && is_asked;
        println!("\nWithin all limits: {}.", if is_within { "yes" } else { "**no**" });
    });
}
