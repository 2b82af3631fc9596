use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hickory_proto::op::{MessageType, OpCode};
use hickory_proto::rr::Record;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::dns::answer::Records;
use crate::dns::server::{address, alias};

fn question(name: &str) -> Question {
    Question { name: DnsName::of_labels(name).unwrap(), record: RecordType::A }
}

fn limits() -> AskTimeouts {
    let [udp, tcp, total] = [500, 1_000, 1_500].map(Duration::from_millis);
    AskTimeouts { udp, tcp, total }
}

async fn asked(server: SocketAddr) -> Result<Answer, Failure> {
    let register: Register = Arc::new(|_| Ok(()));
    ask(&question("web.example"), server, &register, limits()).await
}

/// The answer to a query with these records.
fn answer(query: &[u8], records: Vec<Record>) -> Message {
    let query = Message::from_vec(query).unwrap();
    let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    answer.add_queries(query.queries.clone());
    answer.add_answers(records);
    answer
}

fn bytes(query: &[u8], records: Vec<Record>) -> Vec<u8> {
    answer(query, records).to_vec().unwrap()
}

fn truncated(query: &[u8]) -> Vec<u8> {
    let mut answer = answer(query, Vec::new());
    answer.metadata.truncation = true;
    answer.to_vec().unwrap()
}

/// A server over UDP: each query gets these datagrams, after a pause.
async fn over_udp_with(
    pause: Duration,
    reply: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    (address, tokio::spawn(answer_with(socket, pause, reply)))
}

async fn answer_with(socket: UdpSocket, pause: Duration, reply: impl Fn(&[u8]) -> Vec<Vec<u8>>) {
    let mut query = [0; 4_096];
    loop {
        let (len, client) = socket.recv_from(&mut query).await.unwrap();
        tokio::time::sleep(pause).await;
        for datagram in reply(&query[..len]) {
            drop(socket.send_to(&datagram, client).await);
        }
    }
}

/// A server that sends this datagram over UDP, and these chunks over TCP with a pause before each.
async fn over_tcp_with(
    pause: Duration,
    datagram: fn(&[u8]) -> Vec<u8>,
    reply: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let (udp, listener) = loop {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        if let Ok(listener) = TcpListener::bind(udp.local_addr().unwrap()).await {
            break (udp, listener);
        }
    };
    let address = udp.local_addr().unwrap();
    let over_tcp = async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
            stream.read_exact(&mut query).await.unwrap();
            for chunk in reply(&query) {
                tokio::time::sleep(pause).await;
                if stream.write_all(&chunk).await.is_err() {
                    break;
                }
            }
        }
    };
    let both = async move {
        tokio::join!(answer_with(udp, Duration::ZERO, move |query| vec![datagram(query)]), over_tcp);
    };
    (address, tokio::spawn(both))
}

fn with_length(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn one_address() -> Vec<Record> {
    vec![address("web.example", 5, "192.0.2.1")]
}

fn is_one_address(answer: &Result<Answer, Failure>) -> bool {
    let addresses = vec!["192.0.2.1".parse().unwrap()];
    *answer == Ok(Answer::Records(Records::Addresses(addresses), 5))
}

#[tokio::test]
async fn datagrams_that_do_not_answer_the_query_are_ignored() {
    let (server, task) = over_udp_with(Duration::ZERO, |query| {
        let forged = vec![address("web.example", 5, "203.0.113.66")];
        let with_id = |id: u16| {
            let mut message = answer(query, forged.clone());
            message.metadata.id = id;
            message.to_vec().unwrap()
        };
        let id = u16::from_be_bytes([query[0], query[1]]);
        let mut other = answer(query, forged.clone());
        other.queries[0].set_name(Name::from_ascii("other.example.").unwrap());
        let mut no_answer = bytes(query, forged.clone());
        no_answer[2] &= !IS_ANSWER;
        let mut without_question = answer(query, forged.clone());
        without_question.queries.clear();
        // The name of the question points at itself.
        let mut looping = bytes(query, forged.clone());
        looping.splice(12..14, [0xc0, 12]);
        let right = bytes(query, one_address());
        let cut = right[..right.len() - 1].to_vec();
        let (other, without_question) = (other.to_vec().unwrap(), without_question.to_vec().unwrap());
        let wrong_ids = [with_id(id ^ 1), with_id(id.swap_bytes() ^ 0x0100)];
        let [first, second] = wrong_ids;
        vec![first, second, other, no_answer, without_question, looping, cut, Vec::new(), vec![0xff; 3], right]
    })
    .await;
    let answer = asked(server).await;
    assert!(is_one_address(&answer), "{answer:?}");
    task.abort();
}

#[tokio::test]
async fn a_response_that_says_nothing_is_reported_as_such_and_the_server_has_responded() {
    let cut = |query: &[u8]| {
        let right = bytes(query, one_address());
        vec![right[..right.len() - 1].to_vec()]
    };
    let other = |query: &[u8]| {
        let mut other = answer(query, one_address());
        other.queries[0].set_name(Name::from_ascii("other.example.").unwrap());
        vec![other.to_vec().unwrap()]
    };
    type Replies = fn(&[u8]) -> Vec<Vec<u8>>;
    let replies: [(Replies, &str); 2] = [
        (cut, "sends an answer that cannot be decoded"),
        (other, "sends something else than an answer to the question"),
    ];
    for (reply, text) in replies {
        let (server, task) = over_udp_with(Duration::ZERO, reply).await;
        let failure = asked(server).await.unwrap_err();
        assert_eq!((&*failure.text, failure.has_responded), (text, true));
        task.abort();
    }
}

#[tokio::test]
async fn an_answer_from_another_port_is_none() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut query, other) = ([0; 4_096], UdpSocket::bind("127.0.0.1:0").await.unwrap());
        loop {
            let (len, client) = socket.recv_from(&mut query).await.unwrap();
            drop(other.send_to(&bytes(&query[..len], one_address()), client).await);
        }
    });
    let failure = asked(server).await.unwrap_err();
    assert!(failure.is_timeout && !failure.has_responded, "{failure:?}");
    task.abort();
}

#[tokio::test]
async fn a_datagram_that_is_longer_than_permitted_is_asked_for_over_tcp() {
    // Without the flag that it is truncated.
    let long = |query: &[u8]| {
        let long = bytes(query, vec![address("web.example", 5, "192.0.2.9"); 400]);
        assert!(long.len() > MAX_RECEIVED);
        long
    };
    let reply = |query: &[u8]| vec![with_length(&bytes(query, one_address()))];
    let (server, task) = over_tcp_with(Duration::ZERO, long, reply).await;
    let answer = asked(server).await;
    assert!(is_one_address(&answer), "{answer:?}");
    task.abort();
}

#[tokio::test]
async fn a_server_that_sends_byte_after_byte_does_not_hold_the_question() {
    let (server, task) = over_tcp_with(Duration::from_millis(50), truncated, |_| vec![vec![0xff]; 1_000]).await;
    let begun = Instant::now();
    let failure = asked(server).await.unwrap_err();
    assert_eq!(failure.text, "truncates its answer, and over TCP: does not respond within 1s");
    assert!(failure.has_responded, "over UDP: it can be asked about other names");
    assert!(failure.is_timeout && begun.elapsed() < Duration::from_secs(5));
    task.abort();
}

#[tokio::test]
async fn aliases_that_never_end_have_one_time_limit_together() {
    let count = AtomicUsize::new(0);
    let (server, task) = over_udp_with(Duration::from_millis(200), move |query| {
        let asked = Message::from_vec(query).unwrap().queries[0].name().to_ascii();
        let next = format!("a{}.example", count.fetch_add(1, Ordering::Relaxed));
        vec![bytes(query, vec![alias(asked.trim_end_matches('.'), 5, &next)])]
    })
    .await;
    let failure = asked(server).await.unwrap_err();
    assert_eq!(failure.text, "does not respond within 1s500ms");
    task.abort();
}

#[tokio::test]
async fn the_longest_answer_with_aliases_alone_is_read_at_once() {
    let (server, task) = over_tcp_with(Duration::ZERO, truncated, |query| {
        // Aliases in the order in which following them takes longest: the last one is first.
        let mut aliases: Vec<Record> =
            (0..1_500).map(|n| alias(&format!("a{n}.example"), 5, &format!("a{}.example", n + 1))).collect();
        aliases.push(alias("web.example", 5, "a0.example"));
        aliases.reverse();
        vec![with_length(&bytes(query, aliases))]
    })
    .await;
    let failure = asked(server).await.unwrap_err();
    assert_eq!(failure.text, "answers with more than 16 aliases (CNAME), or with a loop of them");
    assert!(failure.has_responded && !failure.is_timeout);
    task.abort();
}

/// A daemon that was stopped once blamed the servers for its own pause.
#[tokio::test(start_paused = true)]
async fn a_query_that_ends_long_after_its_limit_says_nothing_about_the_server() {
    let limit = Duration::from_secs(2);
    let ends = |stopped: Duration| async move {
        let query = tokio::spawn(within(limit, std::future::pending::<Result<(), Failure>>()));
        tokio::task::yield_now().await;
        tokio::time::advance(stopped).await;
        query.await.unwrap().unwrap_err()
    };
    let silent = ends(limit).await;
    assert!(silent.is_timeout && !silent.is_late, "{silent:?}");
    assert!(ends(2 * limit).await.is_late);
}
