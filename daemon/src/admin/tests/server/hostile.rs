//! Readers that are hostile, or behave like hostile ones. Whatever they do, the server answers requests of others, and
//! changes are applied meanwhile. The timeouts are long: no test here measures speed.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::service::FrontendKind;
use nodelb_core::state::entries::{FrontendEntry, MapState, ServiceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::rig::{Served, backends, limited, served, service, status, synced};
use crate::admin::server::{LIMITS, STREAMS};
use crate::http::ServerLimits;

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than `TIMEOUT`: a time limit of this length ends no connection during a test.
const NEVER: Duration = Duration::from_secs(3_600);

/// Without time limits in effect, only the slots can help.
const TIMELESS: ServerLimits = ServerLimits { header: NEVER, total: None, stuck: NEVER, ..LIMITS };

/// A change is applied, and both kinds of clients see it.
async fn is_alive(server: &mut Served, round: usize) {
    let address = format!("10.96.0.{round}:80");
    let name = format!("shop/alive-{round}");
    server.apply([service(&name, &address, FrontendKind::ClusterIP), backends(&name, &["10.1.0.1:80"]), synced()]);
    let target = format!("/frontends?service={name}");
    for answer in [
        timeout(TIMEOUT, server.get(&target)).await.expect("an answer over TCP"),
        timeout(TIMEOUT, server.get_unix(&target)).await.expect("an answer over the socket"),
    ] {
        assert!(status(&answer) == "200" && answer.contains(&address), "{answer}");
    }
}

async fn sent(server: &Served, bytes: &[u8]) -> TcpStream {
    let mut stream = server.connect().await;
    let _ = stream.write_all(bytes).await;
    stream
}

#[tokio::test]
async fn silence_and_half_headers_do_not_block_other_clients() {
    let mut server = limited(ServerLimits { per_listener: 4, ..TIMELESS }, STREAMS).await;
    let mut held = Vec::new();
    for n in 0..40 {
        let bytes: &[u8] = if n % 2 == 0 { b"" } else { b"GET / HTTP/1.1\r\nHost: loc" };
        held.push(sent(&server, bytes).await);
    }
    is_alive(&mut server, 1).await;
    // The first connections had to end.
    let mut byte = [0];
    let first = timeout(TIMEOUT, held[0].read(&mut byte)).await.expect("an end");
    assert!(!first.is_ok_and(|read| read > 0));
    server.stop().await;
}

#[tokio::test]
async fn a_thousand_connections_do_not_block_other_clients() {
    let mut server = limited(TIMELESS, STREAMS).await;
    let flood = {
        let address = server.address;
        tokio::spawn(async move {
            let mut held = std::collections::VecDeque::new();
            for _ in 0..1_000 {
                // A full queue makes some connections wait.
                if let Ok(Ok(stream)) = timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
                    held.push_back(stream);
                }
                if held.len() > 300 {
                    held.pop_front();
                }
            }
            held.len()
        })
    };
    for round in 1..5 {
        is_alive(&mut server, round).await;
    }
    assert!(flood.await.unwrap() > 0);
    is_alive(&mut server, 6).await;
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_drips_its_header_is_cut() {
    let server = limited(ServerLimits { header: Duration::from_millis(300), ..TIMELESS }, STREAMS).await;
    let mut stream = server.connect().await;
    let dripping = async {
        while stream.write_all(b"G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, dripping).await.expect("a cut");
    server.stop().await;
}

#[tokio::test]
async fn many_clients_at_once_are_all_answered() {
    // On a busy machine, a request may take longer than a connection otherwise keeps its slot.
    let server = limited(ServerLimits { per_listener: 16, waiting: TIMEOUT, ..TIMELESS }, STREAMS).await;
    let clients = (0..200).map(|_| server.get("/frontends"));
    let answers = timeout(TIMEOUT, futures_util::future::join_all(clients)).await.expect("answers");
    assert!(answers.iter().all(|answer| status(answer) == "200"));
    server.stop().await;
}

/// This number of frontends, each of which is some 50 bytes of the answer.
fn large(count: u32) -> MapState {
    let entry = FrontendEntry { service: ServiceId(0), inside_local: false, outside_local: false };
    let address = |n: u32| L4Addr::new(Addr::from(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n))), 80, Protocol::Tcp);
    let frontends = (0..count).map(|n| (address(n), entry)).collect();
    MapState { frontends, ..Default::default() }
}

/// Requests for 4 MB each without reading the answer: neither the slots nor the memory for unread answers keep others
/// out.
#[tokio::test]
async fn unread_answers_do_not_block_other_clients() {
    let mut server =
        limited(ServerLimits { per_listener: 4, answering: Duration::from_millis(100), ..TIMELESS }, STREAMS).await;
    let _ = server.maps.send_replace(Ok(large(80_000)));
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(sent(&server, b"GET /maps HTTP/1.1\r\nHost: localhost\r\n\r\n").await);
    }
    is_alive(&mut server, 1).await;
    let narrow = timeout(TIMEOUT, server.get("/frontends?address=10.96.0.1")).await.expect("an answer");
    assert!(narrow.contains("10.96.0.1:80/TCP"), "{narrow}");
    drop(held);
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_not_taken_is_cut() {
    let server = limited(ServerLimits { stuck: Duration::from_millis(300), ..TIMELESS }, STREAMS).await;
    // More than the kernel keeps for a client that does not read.
    let _ = server.maps.send_replace(Ok(large(200_000)));
    let mut stream = sent(&server, b"GET /maps HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    timeout(TIMEOUT, stream.readable()).await.expect("an answer").unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut answer = Vec::new();
    let ended = timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("an end");
    assert!(ended.is_err() || answer.len() < 9_000_000, "{} bytes came", answer.len());
    server.stop().await;
}

/// The connection frees its slot, and has delayed no other client.
#[tokio::test]
async fn a_stream_that_is_not_read_is_cut() {
    let mut server = limited(ServerLimits { stuck: Duration::from_millis(300), ..TIMELESS }, 1).await;
    let names: Vec<String> = (0..4_000).map(|n| format!("shop/service-{n}")).collect();
    let address = |n: usize| format!("10.96.{}.{}:80", 10 + n / 250, n % 250);
    let all = names.iter().enumerate();
    server.apply(all.map(|(n, name)| service(name, &address(n), FrontendKind::ClusterIP)).chain([synced()]));
    let request = b"GET /frontends?watch HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let _unread = sent(&server, request).await;
    let ends = async {
        for round in 0.. {
            server.apply(names.iter().map(|name| backends(name, &[&format!("10.1.0.{}:80", round % 250)])));
            let mut other = sent(&server, request).await;
            let mut head = [0; 12];
            if other.read_exact(&mut head).await.is_ok() && head.ends_with(b"200") {
                break;
            }
        }
    };
    timeout(TIMEOUT, ends).await.expect("its place is given back");
    server.stop().await;
}

/// One request is served per connection, however many are sent.
#[tokio::test]
async fn endless_requests_on_one_connection_are_one_request() {
    let mut server = limited(TIMELESS, STREAMS).await;
    let stream = server.connect().await;
    let (mut reading, mut writing) = stream.into_split();
    let writer = tokio::spawn(async move {
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
        while writing.write_all(&request).await.is_ok() {}
    });
    let mut answers = Vec::new();
    let _ = timeout(TIMEOUT, reading.read_to_end(&mut answers)).await.expect("an end");
    drop(reading);
    timeout(TIMEOUT, writer).await.expect("no client reads more").unwrap();
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.matches("HTTP/1.1 ").count() <= 1, "{answers}");
    is_alive(&mut server, 1).await;
    server.stop().await;
}

/// The server never reads a body, however long or slow it is.
#[tokio::test]
async fn a_body_is_not_waited_for() {
    let mut server = limited(TIMELESS, STREAMS).await;
    for head in [
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nslow",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nslow",
    ] {
        let mut stream = sent(&server, head.as_bytes()).await;
        let mut start = [0; 12];
        timeout(TIMEOUT, stream.read_exact(&mut start)).await.expect("an answer").unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
    }
    is_alive(&mut server, 1).await;
    server.stop().await;
}

#[tokio::test]
async fn garbage_and_half_open_connections_are_dropped() {
    let mut server = limited(TIMELESS, STREAMS).await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\0\0\0\0",
        b"SSH-2.0-OpenSSH\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = sent(&server, garbage).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("an end");
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
    // A client that shuts down its sending side before a request gets the end of the connection.
    let mut silent = server.connect().await;
    silent.shutdown().await.unwrap();
    let mut nothing = Vec::new();
    let _ = timeout(TIMEOUT, silent.read_to_end(&mut nothing)).await.expect("an end");
    is_alive(&mut server, 1).await;
    server.stop().await;
}

#[tokio::test]
async fn pages_are_refused_over_the_socket_and_hosts_are_not() {
    let server = served().await;
    assert_eq!(status(&server.get_unix("/healthz").await), "200");
    let mut page = server.connect_unix().await;
    page.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).await.unwrap();
    assert_eq!(status(&answer), "403");
    server.stop().await;
}
