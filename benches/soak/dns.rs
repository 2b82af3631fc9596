//! Two DNS servers for names that change all the time. One always answers; the other one, which nodelb asks first, fails
//! in one way after the other.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::cluster::{BACKENDS, backend};

/// The servers in the order in which nodelb asks them.
pub(crate) const SERVERS: [SocketAddr; 2] = [server(54), server(53)];

/// Number of names with addresses, and of those with SRV records.
const WEBS: u8 = 20;
const APIS: u8 = 5;

/// The first services of both kinds.
pub(crate) const WEB: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(198, 51, 100, 20)), 80);
pub(crate) const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(198, 51, 100, 40)), 80);

/// The time for which the records of a name stay the same, and for which the server fails in one way.
const ROTATION: Duration = Duration::from_secs(5);
const TURN: Duration = Duration::from_secs(3);

/// The ways of the server that fails; it also works for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Records,
    Silence,
    Code(ResponseCode),
    NoRecords,
    Nonsense,
    /// The answer to another query.
    WrongId,
    /// A truncated answer, and nothing listens over TCP.
    Truncated,
}

const WAYS: [Way; 10] = [
    Way::Silence,
    Way::Records,
    Way::Code(ResponseCode::ServFail),
    Way::Nonsense,
    Way::Records,
    Way::Code(ResponseCode::NXDomain),
    Way::Truncated,
    Way::NoRecords,
    Way::WrongId,
    Way::Code(ResponseCode::Refused),
];

const fn server(last: u8) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), 53)
}

/// The running servers.
pub(crate) struct Dns {
    shared: Arc<Shared>,
}

struct Shared {
    begun: Instant,
    is_calm: AtomicBool,
    /// Answers of the server that works, and questions to the one that fails.
    counts: [AtomicU64; 2],
}

impl Dns {
    /// Starts the servers, which end with the process.
    pub(crate) fn start() -> Self {
        let counts = [AtomicU64::new(0), AtomicU64::new(0)];
        let shared = Arc::new(Shared { begun: Instant::now(), is_calm: AtomicBool::new(false), counts });
        for (index, address) in SERVERS.into_iter().enumerate() {
            let (shared, socket) = (Arc::clone(&shared), UdpSocket::bind(address).unwrap());
            thread::spawn(move || shared.serve(&socket, index));
        }
        Self { shared }
    }

    /// If calm, both servers answer, and always the same.
    pub(crate) fn calm(&self, is_calm: bool) {
        self.shared.is_calm.store(is_calm, Ordering::Relaxed);
    }

    /// The number of questions to the server that fails, and to the other one.
    pub(crate) fn questions(&self) -> [u64; 2] {
        self.shared.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn serve(&self, socket: &UdpSocket, index: usize) {
        let mut query = [0; 4096];
        loop {
            // An error is that of an earlier answer whose client has ended.
            let Ok((length, client)) = socket.recv_from(&mut query) else { continue };
            self.counts[index].fetch_add(1, Ordering::Relaxed);
            let is_calm = self.is_calm.load(Ordering::Relaxed);
            let turn = self.begun.elapsed().as_millis() / TURN.as_millis();
            let fails = index == 0 && !is_calm;
            let way = if fails { WAYS[usize::try_from(turn).unwrap() % WAYS.len()] } else { Way::Records };
            let rotation = if is_calm { 0 } else { self.begun.elapsed().as_secs() / ROTATION.as_secs() };
            if let Some(answer) = answer(&query[..length], way, rotation) {
                drop(socket.send_to(&answer, client));
            }
        }
    }
}

fn answer(query: &[u8], way: Way, rotation: u64) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).unwrap();
    let asked = query.queries.first().unwrap().clone();
    let id = if way == Way::WrongId { !query.metadata.id } else { query.metadata.id };
    let mut answer = Message::new(id, MessageType::Response, OpCode::Query);
    answer.edns.clone_from(&query.edns);
    match way {
        Way::Silence => return None,
        Way::Nonsense => {
            return Some([&query.metadata.id.to_be_bytes()[..], &[0x81, 0x80, 0xff, 0xff, 3, 1, 4, 1]].concat());
        }
        Way::Code(code) => answer.metadata.response_code = code,
        Way::Truncated => answer.metadata.truncation = true,
        Way::NoRecords => {}
        Way::Records | Way::WrongId => {
            answer.add_answers(records(asked.name(), asked.query_type(), rotation));
        }
    }
    answer.add_query(asked);
    Some(answer.to_vec().unwrap())
}

/// `web-07.soak.example` has four of the backends, different ones in each rotation; `_http._tcp.api-3.soak.example` has
/// four of the names `node-1.soak.example` and so on, each with the address of one backend.
fn records(name: &Name, kind: RecordType, rotation: u64) -> Vec<Record> {
    let text = name.to_ascii().to_ascii_lowercase();
    let number: u64 = text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
    let four = (0..4).map(|place| u8::try_from((number + rotation + place) % u64::from(BACKENDS)).unwrap() + 1);
    let address = |number| match backend(number).ip() {
        std::net::IpAddr::V4(ip) => Record::from_rdata(name.clone(), 1, RData::A(A(ip))),
        std::net::IpAddr::V6(ip) => panic!("a backend with the address {ip}"),
    };
    let target = |number| {
        let target = Name::from_ascii(format!("node-{number}.soak.example.")).unwrap();
        Record::from_rdata(name.clone(), 1, RData::SRV(SRV::new(1, 1, 8080, target)))
    };
    match kind {
        RecordType::A if text.starts_with("node-") => vec![address(u8::try_from(number).unwrap())],
        RecordType::A => four.map(address).collect(),
        RecordType::SRV => four.map(target).collect(),
        _ => Vec::new(),
    }
}

/// The service file with the names.
pub(crate) fn services() -> String {
    let mut text = String::new();
    let mut add = |name: String, first: SocketAddr, number: u8, backends: String| {
        let std::net::IpAddr::V4(ip) = first.ip() else { return };
        let [a, b, c, d] = ip.octets();
        let address = Ipv4Addr::new(a, b, c, d + number);
        let frontends = format!("[\"{address}:80/TCP\", \"{address}:80/UDP\"]");
        write!(text, "[[service]]\nname = \"dns/{name}\"\nfrontends = {frontends}\n{backends}\n").unwrap();
    };
    for number in 0..WEBS {
        let name = format!("web-{number}");
        add(name.clone(), WEB, number, format!("backends = [\"{name}.soak.example:8080\"]"));
    }
    for number in 0..APIS {
        let name = format!("api-{number}");
        add(name.clone(), API, number, format!("backends-from = \"srv:_http._tcp.{name}.soak.example\""));
    }
    text
}
