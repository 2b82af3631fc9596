use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::lb_health::Bounds;
use crate::lb_health::tests::{HERE, ask, free, raw};

type Wanted = BTreeMap<SocketAddr, &'static str>;

/// Every socket answers with the name of its user.
async fn want(listeners: &mut Listeners<&'static str>, wanted: &Wanted) {
    let reply = |_: SocketAddr, label: &&'static str| -> Reply {
        let label = *label;
        Arc::new(move |_| HealthAnswer::json(true, label.to_owned(), SystemTime::UNIX_EPOCH))
    };
    listeners.want(wanted, reply).await;
}

fn listeners(retry: Duration) -> Listeners<&'static str> {
    Listeners::new(Slots::new(Bounds::within(1024).limits()), 3, retry, Arc::new(|_| Ok(())))
}

async fn said(at: SocketAddr) -> Option<String> {
    let answer = ask(at, "/").await.ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

#[tokio::test]
async fn what_is_wanted_is_open_and_nothing_else() {
    let mut listeners = listeners(Duration::from_secs(60));
    let [a, b] = [free().await, free().await];
    want(&mut listeners, &Wanted::from([(a, "a"), (b, "b")])).await;
    assert_eq!((said(a).await.as_deref(), said(b).await.as_deref()), (Some("a"), Some("b")));
    want(&mut listeners, &Wanted::from([(a, "another")])).await;
    assert_eq!((said(a).await.as_deref(), said(b).await), (Some("another"), None));
    want(&mut listeners, &Wanted::new()).await;
    assert_eq!((said(a).await, listeners.failed().count()), (None, 0));
}

#[tokio::test]
async fn what_fails_is_tried_again_when_its_time_has_come() {
    let taken = TcpListener::bind((HERE, 0)).await.expect("a port");
    let (bad, good) = (taken.local_addr().expect("an address"), free().await);
    let mut listeners = listeners(Duration::from_secs(3_600));
    let wanted = Wanted::from([(bad, "bad"), (good, "good")]);
    want(&mut listeners, &wanted).await;
    assert_eq!(said(good).await.as_deref(), Some("good"), "the others go on");
    assert_eq!(listeners.failed().map(|(at, label, _)| (at, *label)).collect::<Vec<_>>(), [(bad, "bad")]);
    drop(taken);
    want(&mut listeners, &wanted).await;
    assert_eq!(listeners.failed().count(), 1, "not with every change");
    tokio::time::pause();
    listeners.retry_is_due().await;
    tokio::time::resume();
    want(&mut listeners, &wanted).await;
    assert_eq!((listeners.failed().count(), said(bad).await.as_deref()), (0, Some("bad")));
}

#[tokio::test]
async fn what_failed_and_is_not_wanted_any_more_is_forgotten() {
    let taken = TcpListener::bind((HERE, 0)).await.expect("a port");
    let mut listeners = listeners(Duration::from_millis(1));
    want(&mut listeners, &Wanted::from([(taken.local_addr().expect("an address"), "bad")])).await;
    want(&mut listeners, &Wanted::new()).await;
    assert_eq!((listeners.failed().count(), listeners.retry_at), (0, None));
}

#[tokio::test]
async fn every_address_is_for_both_families_unless_they_are_wanted_apart() {
    let port = free().await.port();
    let (v4, v6) = (SocketAddr::from((HERE, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    let (any_v4, any_v6) =
        (SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    let mut listeners = listeners(Duration::from_secs(60));
    want(&mut listeners, &Wanted::from([(any_v6, "both")])).await;
    assert_eq!(listeners.failed().count(), 0);
    assert_eq!(said(v4).await.as_deref(), Some("both"));
    let has_v6 = said(v6).await.is_some();
    want(&mut listeners, &Wanted::from([(any_v4, "v4")])).await;
    assert_eq!((said(v4).await.as_deref(), said(v6).await), (Some("v4"), None));
    if has_v6 {
        want(&mut listeners, &Wanted::from([(any_v4, "v4"), (any_v6, "v6")])).await;
        // The second socket was opened while the first served both families: the first is closed and opened again for
        // its family.
        assert_eq!((said(v4).await.as_deref(), said(v6).await.as_deref()), (Some("v4"), Some("v6")));
    }
}

#[tokio::test]
async fn there_are_no_more_than_there_may_be() {
    let mut listeners = listeners(Duration::from_millis(1));
    let mut wanted = Wanted::new();
    for _ in 0..5 {
        wanted.insert(free().await, "server");
    }
    want(&mut listeners, &wanted).await;
    let failed: Vec<String> = listeners.failed().map(|(_, _, error)| error.to_string()).collect();
    assert_eq!(failed, ["the limit of 3 listening sockets is reached; raise LimitNOFILE of nodelb.service"; 2]);
    let closed: Vec<SocketAddr> = wanted.keys().take(2).copied().collect();
    wanted.retain(|at, _| !closed.contains(at));
    listeners.retry_is_due().await;
    want(&mut listeners, &wanted).await;
    assert_eq!(listeners.failed().count(), 0);
}

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: lb\r\n\r\n";
const LAST: &str = "GET / HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n";

fn reply() -> Reply {
    Arc::new(|path| HealthAnswer::json(true, path.to_owned(), SystemTime::UNIX_EPOCH))
}

fn open(bounds: Bounds) -> (SocketAddr, ServerTask, Arc<Slots>) {
    let slots = Slots::new(bounds.limits());
    let (at, server) = open_at(&slots);
    (at, server, slots)
}

fn open_at(slots: &Arc<Slots>) -> (SocketAddr, ServerTask) {
    let listener = listen((HERE, 0).into());
    let at = listener.local_addr().expect("an address");
    (at, ServerTask::open(listener, slots, reply()))
}

fn listen(at: SocketAddr) -> TcpListener {
    let register: Register = Arc::new(|_| Ok(()));
    TcpListener::from_std(bind(at, Binding::default(), &register).expect("an address that is free")).expect("a runtime")
}

fn roomy() -> Bounds {
    Bounds { per_listener: 8, overall: 12, listeners: 8, idle: Duration::from_secs(20) }
}

/// Sends a request over a persistent connection.
async fn exchange(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(REQUEST.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n/") {
        let read = async { stream.read_u8().await };
        answer.push(timeout(Duration::from_secs(20), read).await.map_err(io::Error::other)??);
    }
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Whether the server has closed the connection.
async fn is_cut(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    matches!(timeout(Duration::from_secs(20), stream.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn a_connection_stays_as_go_keeps_it() {
    let (at, _door, _) = open(roomy());
    let mut stream = TcpStream::connect(at).await.expect("connected");
    let expected = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
                    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 1\r\n\r\n/";
    for _ in 0..3 {
        assert_eq!(exchange(&mut stream).await.expect("answered"), expected);
    }
    let last = raw(at, LAST).await.expect("answered");
    assert_eq!(last, expected.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    let old = raw(at, "GET / HTTP/1.0\r\n\r\n").await.expect("answered");
    assert_eq!(old, expected.replace("HTTP/1.1", "HTTP/1.0"));
}

#[tokio::test]
async fn a_new_client_gets_a_slot() {
    let (at, _door, _) = open(roomy());
    let mut idlers = Vec::new();
    for _ in 0..40 {
        let mut idler = TcpStream::connect(at).await.expect("connected");
        idler.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").await.expect("written");
        idlers.push(idler);
    }
    let mut stream = TcpStream::connect(at).await.expect("connected");
    exchange(&mut stream).await.expect("answered, however many others are waiting");
    for idler in &mut idlers[..40 - 7] {
        assert!(is_cut(idler).await, "those that came first made room");
    }
    for idler in &mut idlers[40 - 7..] {
        idler.write_all(b"no\r\nHost: lb\r\nConnection: close\r\n\r\n").await.expect("written");
        let mut answer = String::new();
        idler.read_to_string(&mut answer).await.expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "the others are served: {answer}");
    }
}

#[tokio::test]
async fn all_listeners_together_are_bounded_too() {
    let slots = Slots::new(roomy().limits());
    let listeners: Vec<_> = (0..4).map(|_| open_at(&slots)).collect();
    let mut streams = Vec::new();
    for round in 0..4 {
        for (at, _) in &listeners {
            let mut stream = TcpStream::connect(at).await.expect("connected");
            exchange(&mut stream).await.expect("answered");
            streams.push(stream);
        }
        assert!(slots.taken() <= 12, "round {round}");
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let is_served = exchange(stream).await.is_ok();
        assert_eq!(is_served, number >= 4, "the first four made room for the last four: {number}");
    }
    drop(streams);
    let empty = async {
        while slots.taken() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), empty).await.expect("no place is lost");
}

#[tokio::test]
async fn headers_are_bounded_in_size_and_time() {
    let (at, _door, _) = open(Bounds { idle: Duration::from_millis(200), ..roomy() });
    for (line, count) in [("X-Long: ", 1), ("X: ", 65)] {
        let value = "x".repeat(if count == 1 { 9_000 } else { 1 });
        let lines = format!("{line}{value}\r\n").repeat(count);
        let answer = raw(at, &format!("GET / HTTP/1.1\r\nHost: lb\r\n{lines}\r\n")).await.unwrap_or_default();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    let mut silent = TcpStream::connect(at).await.expect("connected");
    assert!(is_cut(&mut silent).await);
    let mut slow = TcpStream::connect(at).await.expect("connected");
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").await.expect("written");
    assert!(is_cut(&mut slow).await);
    let (at, _door, _) = open(roomy());
    assert!(raw(at, "\u{0}\u{1}garbage\r\n\r\n").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 400")));
}

#[tokio::test]
async fn a_closed_door_frees_its_address_and_cuts_its_connections() {
    let (at, server, slots) = open(roomy());
    let mut stream = TcpStream::connect(at).await.expect("connected");
    exchange(&mut stream).await.expect("answered");
    server.close().await;
    assert!(is_cut(&mut stream).await);
    // The address is free at once, whatever connections there were.
    let _door = ServerTask::open(listen(at), &slots, reply());
    assert!(raw(at, LAST).await.is_ok());
}

#[test]
fn most_files_are_left_to_the_rest_where_there_are_few() {
    let of = |files| {
        let Bounds { overall, listeners, .. } = Bounds::within(files);
        (overall, listeners)
    };
    assert_eq!((of(65_536), of(1_024), of(256)), ((512, 64_768), (256, 512), (64, 0)));
}
