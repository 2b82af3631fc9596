use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::service::{FrontendKind, Source};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::time::timeout;

use super::rig::{Served, backends, limited, served, service, status, synced};
use crate::admin::server::{LIMITS, STREAMS};
use crate::http::ServerLimits;

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A reader of a stream, after the header of the answer.
struct Reader<S>(Lines<BufReader<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> Reader<S> {
    async fn new(mut stream: S, target: &str, headers: &str) -> Self {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reader = Self(BufReader::new(stream).lines());
        while !reader.line().await.is_empty() {}
        reader
    }

    /// Returns the next line, without the sizes of chunks.
    async fn line(&mut self) -> String {
        timeout(TIMEOUT, self.0.next_line()).await.expect("a line").unwrap().expect("more")
    }

    /// Returns the next line that contains this text.
    async fn line_with(&mut self, words: &str) -> String {
        loop {
            let line = self.line().await;
            if line.contains(words) {
                return line;
            }
        }
    }
}

fn web() -> [Change; 3] {
    [service("shop/web", "10.96.7.7:80", FrontendKind::ClusterIP), backends("shop/web", &["10.1.0.1:8080"]), synced()]
}

fn gone(name: &str) -> Change {
    Change::RemoveService(name.parse().unwrap(), Source::Files)
}

#[tokio::test]
async fn lines_tell_what_is_and_then_what_changes() {
    let mut server = served().await;
    server.apply(web());
    let mut reader = Reader::new(server.connect().await, "/frontends?watch", "").await;
    reader.line_with("Address").await;
    assert!(reader.line().await.starts_with("10.96.7.7:80/TCP  ClusterIP  shop/web"));
    server.apply([service("shop/cart", "10.96.7.8:80", FrontendKind::ClusterIP)]);
    let added = reader.line_with("shop/cart").await;
    assert!(added.starts_with("+ 2023-11-14T22:13:20Z  10.96.7.8:80/TCP  ClusterIP  shop/cart"), "{added}");
    server.apply([backends("shop/web", &["10.1.0.1:8080", "10.1.0.2:8080"])]);
    let changed = reader.line_with("shop/web").await;
    assert!(changed.starts_with("~ ") && changed.contains("10.1.0.1:8080/TCP, 10.1.0.2:8080/TCP"), "{changed}");
    server.apply([gone("shop/cart")]);
    let removed = reader.line_with("shop/cart").await;
    assert!(removed.starts_with("- ") && removed.contains("10.96.7.8:80/TCP"), "{removed}");
    server.stop().await;
}

#[tokio::test]
async fn events_have_ids_names_and_the_columns_of_the_table() {
    let mut server = served().await;
    server.apply(web());
    let mut reader = Reader::new(server.connect().await, "/frontends?watch", "Accept: text/event-stream\r\n").await;
    assert_eq!(reader.line_with("id: ").await, "id: 0");
    assert_eq!(reader.line().await, "event: table");
    let table: serde_json::Value = serde_json::from_str(&reader.line().await["data: ".len()..]).unwrap();
    assert_eq!(table["frontends"][0]["service"], "shop/web");
    server.apply([backends("shop/web", &[])]);
    assert_eq!(reader.line_with("id: ").await, "id: 1");
    assert_eq!(reader.line().await, "event: changed");
    let row: serde_json::Value = serde_json::from_str(&reader.line().await["data: ".len()..]).unwrap();
    assert_eq!((&row["address"], &row["backends"]), (&"10.96.7.7:80/TCP".into(), &serde_json::json!([])));
    assert_eq!(row.as_object().unwrap().len(), 10);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_over_the_socket_keeps_to_its_filter() {
    let mut server = served().await;
    server.apply(web());
    let target = "/frontends?watch&output=json&service=shop/web";
    let mut reader = Reader::new(server.connect_unix().await, target, "").await;
    reader.line_with("\"event\":\"table\"").await;
    server.apply([service("shop/cart", "10.96.7.8:80", FrontendKind::ClusterIP)]);
    server.apply([gone("shop/web")]);
    let line = reader.line_with("event").await;
    assert!(line.contains("\"event\":\"removed\"") && line.contains("shop/web"), "{line}");
    server.stop().await;
}

/// Many changes that happen while no client reads are one change for a later reader.
#[tokio::test]
async fn a_reader_that_was_away_sees_the_newest_state_only() {
    let mut server = served().await;
    server.apply(web());
    let mut reader = Reader::new(server.connect().await, "/frontends?watch", "").await;
    reader.line_with("shop/web").await;
    for n in 0..50 {
        server.apply([backends("shop/web", &[&format!("10.1.0.{n}:8080")])]);
    }
    server.apply([service("shop/last", "10.96.7.9:80", FrontendKind::ClusterIP)]);
    let mut changes = 0;
    loop {
        let line = reader.line().await;
        changes += usize::from(line.contains("shop/web"));
        if line.contains("shop/last") {
            break;
        }
    }
    assert!(changes < 50, "{changes}");
    server.stop().await;
}

/// However many streams there are, other requests are answered; and a stream that ends frees its slot.
#[tokio::test]
async fn streams_have_places_of_their_own() {
    let server = limited(ServerLimits { per_listener: 1, ..LIMITS }, 2).await;
    let first = Reader::new(server.connect().await, "/frontends?watch", "").await;
    let _second = Reader::new(server.connect().await, "/frontends?watch", "").await;
    assert_eq!(status(&server.get("/frontends").await), "200");
    let third = server.get("/frontends?watch").await;
    assert!(status(&third) == "503" && third.contains("has too many watchers"), "{third}");
    Reader::new(server.connect_unix().await, "/frontends?watch", "").await;
    drop(first);
    let mut again = Served::connect(&server).await;
    loop {
        again.write_all(b"GET /frontends?watch HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        again.read_exact(&mut head).await.unwrap();
        if head.ends_with(b"200") {
            break;
        }
        again = server.connect().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stream_ends_with_the_daemon_and_not_before() {
    let limits = ServerLimits { total: Some(Duration::from_millis(1)), ..LIMITS };
    let mut server = limited(limits, STREAMS).await;
    server.apply(web());
    let mut reader = Reader::new(server.connect().await, "/frontends?watch", "").await;
    reader.line_with("shop/web").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.apply([gone("shop/web")]);
    assert!(reader.line_with("shop/web").await.starts_with("- "));
    server.stop().await;
    while timeout(TIMEOUT, reader.0.next_line()).await.unwrap().is_ok_and(|line| line.is_some()) {}
}

#[tokio::test]
async fn only_what_can_be_followed_is() {
    let server = served().await;
    assert!(server.get("/services?watch").await.contains("unknown parameter `watch`"));
    assert!(server.get("/frontends?watch=maybe").await.contains("`maybe` is not a valid flag"));
    let sse = server.get("/services?output=sse").await;
    assert!(status(&sse) == "400" && sse.contains("`sse` is not a form (expected text, json)"), "{sse}");
    let mut sse = Reader::new(server.connect().await, "/frontends?output=sse", "").await;
    assert!(sse.line_with("event: table").await.starts_with("event: table"));
    assert_eq!(status(&server.get("/frontends?watch=false").await), "200");
    server.stop().await;
}

/// Packets contain what other users send.
#[tokio::test]
async fn packets_are_shown_over_the_socket_only() {
    let server = served().await;
    let refused = server.get("/packets?watch").await;
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("only over the Unix socket"), "{refused}");
    let mut reader = Reader::new(server.connect_unix().await, "/packets?watch&output=json", "").await;
    let first = reader.line_with("event").await;
    assert!(first.contains(r#""event":"table""#), "{first}");
    server.stop().await;
}
