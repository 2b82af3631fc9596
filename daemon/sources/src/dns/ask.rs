//! One question to one DNS server, over sockets that are nodelb's own. A question over UDP has its own socket, so that
//! the kernel chooses an unpredictable port for it; a truncated answer is repeated over TCP.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{self, Name};
use nodelb_core::durations;
use nodelb_core::model::named::{DnsName, Question, RecordType};
use nodelb_host::clock::{Late, by};
use nodelb_host::register::Register;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::Instant;

use super::answer::{self, Answer, MAX_ALIASES};

/// The largest datagram that a server may send: it is not fragmented on usual networks (DNS flag day 2020).
const MAX_DATAGRAM: u16 = 1_232;

/// The largest datagram that is received whole, in bytes. The kernel cuts a longer one, which counts as truncated.
const MAX_RECEIVED: usize = 4_096;

#[derive(Clone, Copy, Debug)]
pub(super) struct AskTimeouts {
    /// The time limit of an answer over UDP.
    pub(super) udp: Duration,
    /// The time limit of an answer over TCP, with the connection.
    pub(super) tcp: Duration,
    /// The time limit of all queries to the server together, with those about aliases.
    pub(super) total: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) is_timeout: bool,
    /// Whether the time limit had passed long ago when that was noticed: this process did not run meanwhile.
    is_late: bool,
    /// Whether the server has responded, with an error code or something else than an answer.
    pub(super) has_responded: bool,
    /// The reason, to follow the server's address.
    pub(super) text: String,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self { is_timeout: false, is_late: false, has_responded: true, text: text.into() }
    }

    fn after(limit: Duration) -> Self {
        let text = format!("does not respond within {}", durations::exact(limit));
        Self { is_timeout: true, is_late: false, has_responded: false, text }
    }

    fn from_io(error: &io::Error) -> Self {
        let text = match error.kind() {
            ErrorKind::ConnectionRefused => "refuses connections".into(),
            _ => format!("cannot be reached: {error}"),
        };
        Self { has_responded: false, ..Self::new(text) }
    }
}

/// Asks the server, and follows aliases that its answer does not resolve. Asks again if this process did not run while the
/// server had to answer, which says nothing about the server.
pub(super) async fn ask(
    question: &Question,
    server: SocketAddr,
    register: &Register,
    limits: AskTimeouts,
) -> Result<Answer, Failure> {
    loop {
        match ask_once(question, server, register, limits).await {
            Err(failure) if failure.is_late => {}
            asked => return asked,
        }
    }
}

/// Works within the time limit.
async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let worked = by(Instant::now() + limit, work).await;
    worked.unwrap_or_else(|late| Err(Failure { is_late: late == Late::Process, ..Failure::after(limit) }))
}

async fn ask_once(
    question: &Question,
    server: SocketAddr,
    register: &Register,
    limits: AskTimeouts,
) -> Result<Answer, Failure> {
    let server = Asked { address: server, register, limits, has_responded: AtomicBool::new(false) };
    let failed = within(limits.total, ask_with_aliases(question, &server)).await;
    // A server that responds to this question over UDP can be asked about others, whatever became of this one.
    failed.map_err(|failure| {
        let has_responded = failure.has_responded || server.has_responded.load(Ordering::Relaxed);
        Failure { has_responded, ..failure }
    })
}

/// A server, and what it did since it is asked.
struct Asked<'a> {
    address: SocketAddr,
    register: &'a Register,
    limits: AskTimeouts,
    has_responded: AtomicBool,
}

async fn ask_with_aliases(question: &Question, server: &Asked<'_>) -> Result<Answer, Failure> {
    let (mut asked, mut shortest) = (question.clone(), answer::Ttl::MAX);
    for _ in 0..MAX_ALIASES {
        let message = exchange(&asked, server).await?;
        match answer::read(&asked, &message).map_err(Failure::new)? {
            Answer::Alias(name, ttl) => {
                shortest = shortest.min(ttl);
                asked.name = name;
            }
            Answer::Records(records, ttl) => return Ok(Answer::Records(records, ttl.min(shortest))),
            Answer::Empty(ttl) => return Ok(Answer::Empty(ttl.map(|ttl| ttl.min(shortest)))),
            Answer::NoSuchName(ttl) => return Ok(Answer::NoSuchName(ttl.map(|ttl| ttl.min(shortest)))),
        }
    }
    Err(Failure::new(format!("answers with more than {MAX_ALIASES} aliases (CNAME), or with a loop of them")))
}

async fn exchange(question: &Question, server: &Asked<'_>) -> Result<Message, Failure> {
    let mut query = query(question, true)?;
    let mut answer = over_udp(&query, server).await?;
    let is_refused = |message: &Message| {
        matches!(message.metadata.response_code, ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS)
    };
    if answer.as_ref().is_some_and(is_refused) {
        // A server from before EDNS (RFC 6891, section 7).
        query = self::query(question, false)?;
        answer = over_udp(&query, server).await?;
    }
    if let Some(message) = answer {
        return Ok(message);
    }
    let limit = server.limits.tcp;
    within(limit, over_tcp(&query, server.address, server.register))
        .await
        .map_err(|failure| Failure { text: format!("truncates its answer, and over TCP: {}", failure.text), ..failure })
}

/// A query with a random id.
fn query(question: &Question, has_edns: bool) -> Result<Message, Failure> {
    let name = absolute(&question.name)?;
    let kind = match question.record {
        RecordType::A => rr::RecordType::A,
        RecordType::Aaaa => rr::RecordType::AAAA,
        RecordType::Srv => rr::RecordType::SRV,
    };
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    if has_edns {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_DATAGRAM);
        message.set_edns(edns);
    }
    Ok(message)
}

fn absolute(name: &DnsName) -> Result<Name, Failure> {
    Name::from_ascii(format!("{name}.")).map_err(|error| Failure::new(format!("was not asked: {error}")))
}

/// The answer over UDP; `None` if it is truncated. Datagrams that an attacker may have sent do not count; other responses
/// count at the end of the time limit.
async fn over_udp(query: &Message, server: &Asked<'_>) -> Result<Option<Message>, Failure> {
    let (bytes, limit) = (encode(query)?, server.limits.udp);
    let mut unusable = None;
    let asking = async {
        let socket = udp_socket(server.address, server.register)?;
        socket.send(&bytes).await?;
        let mut datagram = vec![0_u8; MAX_RECEIVED];
        loop {
            let len = socket.recv(&mut datagram).await?;
            let read = read_answer(query, &datagram[..len]);
            let is_response = !matches!(read, Read::Other);
            server.has_responded.fetch_or(is_response, Ordering::Relaxed);
            match read {
                Read::Answer(message) => return Ok(Some(*message)),
                Read::Truncated => return Ok(None),
                Read::Unusable(why) => unusable = Some(why),
                Read::Other => {}
            }
        }
    };
    let asking = async { asking.await.map_err(|error: io::Error| Failure::from_io(&error)) };
    within(limit, asking).await.map_err(|failure| match unusable {
        Some(why) if failure.is_timeout => Failure::new(why),
        _ => failure,
    })
}

fn udp_socket(server: SocketAddr, register: &Register) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(server), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    register(socket.as_fd())?;
    socket.connect(&server.into())?;
    UdpSocket::from_std(socket.into())
}

async fn over_tcp(query: &Message, server: SocketAddr, register: &Register) -> Result<Message, Failure> {
    let bytes = encode(query)?;
    let asking = async {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        register(socket.as_fd())?;
        let mut stream = TcpSocket::from_std_stream(socket.into()).connect(server).await?;
        let len = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        stream.write_all(&[&len.to_be_bytes()[..], &bytes].concat()).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    };
    let answer: Vec<u8> = asking.await.map_err(|error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => Failure::new("closes the TCP connection without an answer"),
        _ => Failure::from_io(&error),
    })?;
    match read_answer(query, &answer) {
        Read::Answer(message) => Ok(*message),
        Read::Truncated => Err(Failure::new("truncates its answer over TCP, too")),
        Read::Unusable(why) => Err(Failure::new(why)),
        Read::Other => Err(Failure::new(NO_ANSWER)),
    }
}

fn encode(query: &Message) -> Result<Vec<u8>, Failure> {
    query.to_vec().map_err(|error| Failure::new(format!("was not asked: {error}")))
}

enum Read {
    Answer(Box<Message>),
    Truncated,
    /// A response to the query that says nothing, and why.
    Unusable(&'static str),
    /// No response to the query.
    Other,
}

/// What a server sends that answers another question.
const NO_ANSWER: &str = "sends something else than an answer to the question";

/// The flag TC in the third byte of a message (RFC 1035, section 4.1.1).
const TRUNCATED: u8 = 0x02;
/// The flag QR in the same byte: the message is an answer.
const IS_ANSWER: u8 = 0x80;

fn read_answer(query: &Message, bytes: &[u8]) -> Read {
    let [high, low, flags, ..] = *bytes else { return Read::Other };
    if u16::from_be_bytes([high, low]) != query.metadata.id || flags & IS_ANSWER == 0 {
        return Read::Other;
    }
    if flags & TRUNCATED != 0 {
        // Some servers cut a truncated message within a record.
        return Read::Truncated;
    }
    let Ok(message) = Message::from_vec(bytes) else {
        let is_cut = bytes.len() == MAX_RECEIVED;
        return if is_cut { Read::Truncated } else { Read::Unusable("sends an answer that cannot be decoded") };
    };
    // A server that cannot read the query may leave the question out.
    let is_empty = message.queries.is_empty() && message.metadata.response_code != ResponseCode::NoError;
    let is_same = |asked: &Query, echoed: &Query| {
        (asked.query_type(), asked.query_class()) == (echoed.query_type(), echoed.query_class())
            && asked.name().to_ascii().eq_ignore_ascii_case(&echoed.name().to_ascii())
    };
    let is_echoed = query.queries.iter().zip(&message.queries).all(|(asked, echoed)| is_same(asked, echoed));
    let has_question = message.queries.len() == query.queries.len() && is_echoed;
    if is_empty || has_question { Read::Answer(Box::new(message)) } else { Read::Unusable(NO_ANSWER) }
}

#[cfg(test)]
#[path = "tests/ask.rs"]
mod tests;
