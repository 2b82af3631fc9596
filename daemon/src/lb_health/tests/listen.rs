use std::time::SystemTime;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::*;
use crate::lb_health::tests::{HERE, raw};

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: lb\r\n\r\n";
const LAST: &str = "GET / HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n";

fn reply() -> Reply {
    Arc::new(|path| Answer::json(true, path.to_owned(), SystemTime::UNIX_EPOCH))
}

fn open(bounds: Bounds) -> (SocketAddr, Door, Places) {
    let places = Places::new(bounds);
    let (at, door) = open_at(&places);
    (at, door, places)
}

fn open_at(places: &Places) -> (SocketAddr, Door) {
    let listener = bind((HERE, 0).into(), true, &unregistered()).expect("a port");
    let at = listener.local_addr().expect("an address");
    (at, Door::open(listener, places, reply()))
}

fn unregistered() -> Register {
    Arc::new(|_| Ok(()))
}

fn roomy() -> Bounds {
    Bounds { per_door: 8, overall: 12, doors: 8, idle: Duration::from_secs(20) }
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
async fn all_doors_together_are_bounded_too() {
    let places = Places::new(roomy());
    let doors: Vec<_> = (0..4).map(|_| open_at(&places)).collect();
    let mut streams = Vec::new();
    for round in 0..4 {
        for (at, _) in &doors {
            let mut stream = TcpStream::connect(at).await.expect("connected");
            exchange(&mut stream).await.expect("answered");
            streams.push(stream);
        }
        assert!(lock(&places.taken).guests.len() <= 12, "round {round}");
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let is_served = exchange(stream).await.is_ok();
        assert_eq!(is_served, number >= 4, "the first four made room for the last four: {number}");
    }
    drop(streams);
    let empty = async {
        while !lock(&places.taken).guests.is_empty() {
            sleep(Duration::from_millis(5)).await;
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
    assert!(raw(at, "\u{0}\u{1}garbage\r\n\r\n").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 400")));
}

#[tokio::test]
async fn a_closed_door_frees_its_address_and_cuts_its_connections() {
    let (at, door, places) = open(roomy());
    let mut stream = TcpStream::connect(at).await.expect("connected");
    exchange(&mut stream).await.expect("answered");
    door.close().await;
    assert!(is_cut(&mut stream).await);
    let listener = bind(at, true, &unregistered()).expect("free at once, whatever connections there were");
    let _door = Door::open(listener, &places, reply());
    assert!(raw(at, LAST).await.is_ok());
}

#[test]
fn most_files_are_left_to_the_rest_where_there_are_few() {
    let of = |files| {
        let Bounds { overall, doors, .. } = Bounds::within(files);
        (overall, doors)
    };
    assert_eq!((of(65_536), of(1_024), of(256)), ((512, 64_768), (256, 512), (64, 0)));
}
