//! A DNS server of a test: answers over UDP and TCP as its script says, and counts the questions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use nodelb_core::model::addr::Addr;
use nodelb_core::model::addr::Family;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// What the server answers to a question.
#[derive(Clone, Debug)]
pub(super) enum Script {
    /// These records in the answer section and in the additional section.
    Records(Vec<Record>, Vec<Record>),
    /// An error code.
    Code(ResponseCode),
    /// The name does not exist, with this negative TTL.
    NoSuchName(u32),
    /// Nothing at all.
    Silence,
}

#[derive(Default)]
struct State {
    scripts: BTreeMap<(String, RecordType), Script>,
    /// The answers over UDP that are truncated.
    is_truncating: bool,
    udp: usize,
    tcp: usize,
}

/// See the module's documentation. Ends when it is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

pub(super) fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).unwrap()
}

pub(super) fn address(owner: &str, ttl: u32, addr: &str) -> Record {
    let data = match addr.parse::<std::net::IpAddr>().unwrap() {
        std::net::IpAddr::V4(ip) => RData::A(A(ip)),
        std::net::IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    };
    Record::from_rdata(name(owner), ttl, data)
}

pub(super) fn alias(owner: &str, ttl: u32, target: &str) -> Record {
    Record::from_rdata(name(owner), ttl, RData::CNAME(CNAME(name(target))))
}

/// `fields` are priority, weight and port.
pub(super) fn srv(owner: &str, ttl: u32, fields: [u16; 3], target: &str) -> Record {
    let [priority, weight, port] = fields;
    let target = if target == "." { Name::root() } else { name(target) };
    Record::from_rdata(name(owner), ttl, RData::SRV(SRV::new(priority, weight, port, target)))
}

pub(super) fn soa(ttl: u32) -> Record {
    let soa = SOA::new(name("ns.example"), name("admin.example"), 1, 60, 60, 60, ttl);
    Record::from_rdata(name("example"), ttl, RData::SOA(soa))
}

impl Server {
    pub(super) async fn start() -> Self {
        // Another test may have the port for TCP.
        let (udp, address, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = udp.local_addr().unwrap();
            if let Ok(tcp) = TcpListener::bind(address).await {
                break (udp, address, tcp);
            }
        };
        let state = Arc::new(Mutex::new(State::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, Arc::clone(&state)));
        tasks.spawn(serve_tcp(tcp, Arc::clone(&state)));
        Self { address, state, _tasks: tasks }
    }

    pub(super) fn set(&self, owner: &str, kind: RecordType, script: Script) {
        self.state.lock().unwrap().scripts.insert((owner.to_owned(), kind), script);
    }

    /// Answers with these addresses; with none, without records.
    pub(super) fn set_addresses(&self, owner: &str, ttl: u32, addresses: &[&str]) {
        for kind in [Family::Ipv4, Family::Ipv6] {
            let is_of = |addr: &&&str| addr.parse::<Addr>().unwrap().family() == kind;
            let records = addresses.iter().filter(is_of).map(|addr| address(owner, ttl, addr)).collect();
            let kind = if kind == Family::Ipv4 { RecordType::A } else { RecordType::AAAA };
            self.set(owner, kind, Script::Records(records, Vec::new()));
        }
    }

    pub(super) fn truncate(&self) {
        self.state.lock().unwrap().is_truncating = true;
    }

    /// The number of questions over UDP and over TCP.
    pub(super) fn asked(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.udp, state.tcp)
    }
}

async fn serve_udp(socket: UdpSocket, state: Arc<Mutex<State>>) {
    let mut datagram = [0; 4_096];
    loop {
        let (len, client) = socket.recv_from(&mut datagram).await.unwrap();
        state.lock().unwrap().udp += 1;
        let Some(mut answer) = answer(&datagram[..len], &state) else { continue };
        let is_truncating = state.lock().unwrap().is_truncating;
        let limit = answer.max_payload().clamp(512, 1_232);
        let bytes = answer.to_vec().unwrap();
        let bytes = if is_truncating || bytes.len() > usize::from(limit) {
            answer.metadata.truncation = true;
            answer.answers.clear();
            answer.additionals.clear();
            answer.to_vec().unwrap()
        } else {
            bytes
        };
        drop(socket.send_to(&bytes, client).await);
    }
}

async fn serve_tcp(listener: TcpListener, state: Arc<Mutex<State>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        state.lock().unwrap().tcp += 1;
        let Ok(len) = stream.read_u16().await else { continue };
        let mut query = vec![0; usize::from(len)];
        if stream.read_exact(&mut query).await.is_err() {
            continue;
        }
        let Some(answer) = answer(&query, &state) else { continue };
        let bytes = answer.to_vec().unwrap();
        let len = u16::try_from(bytes.len()).unwrap();
        drop(stream.write_all(&[&len.to_be_bytes()[..], &bytes].concat()).await);
    }
}

fn answer(query: &[u8], state: &Mutex<State>) -> Option<Message> {
    let query = Message::from_vec(query).unwrap();
    let asked = query.queries.first().unwrap().clone();
    let owner = asked.name().to_ascii().to_ascii_lowercase();
    let key = (owner.strip_suffix('.').unwrap_or(&owner).to_owned(), asked.query_type());
    let script = state.lock().unwrap().scripts.get(&key).cloned().unwrap_or(Script::NoSuchName(1));
    let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    answer.add_query(asked);
    answer.edns.clone_from(&query.edns);
    match script {
        Script::Silence => return None,
        Script::Code(code) => answer.metadata.response_code = code,
        Script::NoSuchName(ttl) => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            answer.add_authority(soa(ttl));
        }
        Script::Records(answers, additionals) => {
            if answers.is_empty() {
                answer.add_authority(soa(1));
            }
            answer.add_answers(answers);
            answer.add_additionals(additionals);
        }
    }
    Some(answer)
}
