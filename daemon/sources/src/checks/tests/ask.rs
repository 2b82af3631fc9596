use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use nodelb_core::model::health_check::HealthCheck;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

fn question(at: SocketAddr, method: Method, timeout: Duration) -> Question {
    Question { at, check: Arc::new(HealthCheck { method, timeout, ..HealthCheck::default() }), way: None }
}

fn http(path: &str, host: Option<&str>) -> Method {
    Method::Http { path: path.into(), host: host.map(Arc::from), status: 200..=399 }
}

fn own() -> Prepare {
    Arc::new(|_, _| Ok(()))
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Answers each connection with these bytes after a request has arrived, and returns the requests.
async fn server(answer: &'static [u8]) -> (SocketAddr, mpsc::Receiver<String>) {
    let (listener, at) = listener().await;
    let (asked_in, asked) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => request.extend_from_slice(&buffer[..length]),
                }
            }
            asked_in.send(String::from_utf8_lossy(&request).into_owned()).await.unwrap();
            drop(stream.write_all(answer).await);
        }
    });
    (at, asked)
}

/// Returns `Ok`, or the outcome and the text.
async fn answer(at: SocketAddr, method: Method) -> Result<(), (CheckOutcome, String)> {
    let asked = ask(&question(at, method, Duration::from_secs(20)), &own()).await;
    asked.map_err(|failure| (failure.outcome, failure.text.to_string()))
}

#[tokio::test]
async fn a_connection_is_enough_for_tcp() {
    let (listener, at) = listener().await;
    assert_eq!(answer(at, Method::Tcp).await, Ok(()));
    drop(listener);
    let refused = Err((CheckOutcome::Refused, "connection refused".to_owned()));
    assert_eq!(answer(at, Method::Tcp).await, refused);
    assert_eq!(answer(at, http("/", None)).await, refused);
}

#[tokio::test]
async fn the_request_is_as_the_check_says() {
    let (at, mut asked) = server(b"HTTP/1.1 200 OK\r\n\r\nbody").await;
    assert_eq!(answer(at, http("/healthz?full=1", Some("shop.example"))).await, Ok(()));
    let request = asked.recv().await.unwrap().to_lowercase();
    let agent = format!("user-agent: nodelb/{} (health check)\r\n", env!("CARGO_PKG_VERSION"));
    for part in ["get /healthz?full=1 http/1.1\r\n", "host: shop.example\r\n", &agent, "connection: close\r\n"] {
        assert!(request.contains(part), "{part} in {request}");
    }
    assert_eq!(answer(at, http("/", None)).await, Ok(()));
    assert!(asked.recv().await.unwrap().to_lowercase().contains(&format!("host: {at}\r\n")));
}

#[tokio::test]
async fn only_the_final_status_counts() {
    type Expected = Result<(), (CheckOutcome, &'static str)>;
    let cases: [(&'static [u8], Expected); 8] = [
        (b"HTTP/1.1 204 No Content\r\n\r\n", Ok(())),
        // The redirect is not followed: the backend has answered.
        (b"HTTP/1.1 302 Found\r\nlocation: http://192.0.2.1/\r\n\r\n", Ok(())),
        (b"HTTP/1.0 200\r\n\r\n", Ok(())),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Ok(())),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Err((CheckOutcome::Status, "status 503, expected 200-399"))),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Err((CheckOutcome::Protocol, "invalid HTTP version parsed"))),
        (b"", Err((CheckOutcome::Protocol, "connection closed before message completed"))),
        (b"HTTP/1.1 2", Err((CheckOutcome::Protocol, "connection closed before message completed"))),
    ];
    for (bytes, expected) in cases {
        let (at, _asked) = server(bytes).await;
        let expected = expected.map_err(|(outcome, text)| (outcome, text.to_owned()));
        assert_eq!(answer(at, http("/", None)).await, expected, "{}", String::from_utf8_lossy(bytes));
    }
}

/// A backend with a header that never ends is given up long before memory runs out.
#[tokio::test]
async fn an_endless_answer_is_given_up() {
    let (listener, at) = listener().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {
            counter.fetch_add(4096, Ordering::Relaxed);
        }
    });
    let (outcome, text) = answer(at, http("/", None)).await.unwrap_err();
    assert_eq!((outcome, &*text), (CheckOutcome::Protocol, "message head is too large"));
    sending.await.unwrap();
}

#[tokio::test]
async fn silence_is_given_up_in_time() {
    let (_listener, at) = listener().await;
    let asked = ask(&question(at, http("/", None), Duration::from_millis(50)), &own()).await;
    let failure = asked.unwrap_err();
    assert_eq!((failure.outcome, &*failure.text), (CheckOutcome::Timeout, "no answer within 50ms"));

    // A listener with a full queue answers no SYN.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let at = full.local_addr().unwrap().as_socket().unwrap();
    let mut held = Vec::new();
    let asked = loop {
        let stream = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(at)).await;
        match stream {
            Ok(stream) => held.push(stream.unwrap()),
            Err(_full) => break ask(&question(at, Method::Tcp, Duration::from_secs(1)), &own()).await,
        }
    };
    let failure = asked.unwrap_err();
    assert_eq!((failure.outcome, &*failure.text), (CheckOutcome::Timeout, "no connection within 1s"));
}

/// A connection that cannot be registered as nodelb's own would be translated, and another backend would answer. Such a
/// check is not made, and does not count against the backend.
#[tokio::test]
async fn a_socket_that_is_not_its_own_is_not_used() {
    let (listener, at) = listener().await;
    let refuse: Prepare = Arc::new(|_, _| Err(io::Error::other("no memory for it")));
    let failure = ask(&question(at, Method::Tcp, Duration::from_secs(20)), &refuse).await.unwrap_err();
    assert_eq!((failure.outcome, &*failure.text), (CheckOutcome::Unasked, "no memory for it"));
    let accepted = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(accepted.is_err(), "no client connected");
}

/// A check leaves no port in TIME_WAIT: the backend receives a reset.
#[tokio::test]
async fn a_check_ends_with_a_reset() {
    let (listener, at) = listener().await;
    assert_eq!(answer(at, Method::Tcp).await, Ok(()));
    let (mut stream, _) = listener.accept().await.unwrap();
    let error = stream.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let ending = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        stream.read(&mut [0; 1]).await.unwrap_err().kind()
    });
    assert_eq!(answer(at, http("/", None)).await, Ok(()));
    assert_eq!(ending.await.unwrap(), ErrorKind::ConnectionReset);
}

/// Each error of connect(2) that concerns the backend or the route to it is a failed check; only errors that concern
/// this host show nothing about the backend.
#[test]
fn every_error_of_a_connect_has_its_outcome() {
    let of = |errno: Errno| CheckFailure::from_error(&io::Error::from_raw_os_error(errno as i32));
    let outcomes = [
        (CheckOutcome::Refused, &[Errno::ECONNREFUSED, Errno::ECONNRESET][..]),
        (CheckOutcome::Timeout, &[Errno::ETIMEDOUT]),
        (
            CheckOutcome::Unreachable,
            &[Errno::EHOSTUNREACH, Errno::ENETUNREACH, Errno::ENETDOWN, Errno::EACCES, Errno::EPERM],
        ),
        (
            CheckOutcome::Unasked,
            &[Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM, Errno::EADDRNOTAVAIL, Errno::EAGAIN],
        ),
    ];
    for (outcome, errno) in outcomes.iter().flat_map(|(outcome, errnos)| errnos.iter().map(|errno| (*outcome, *errno)))
    {
        assert_eq!(of(errno).outcome, outcome, "{errno}");
        let has_no_route = matches!(errno, Errno::ENETUNREACH | Errno::ENETDOWN);
        assert_eq!(of(errno).has_no_route, has_no_route, "{errno}");
    }
}

#[tokio::test]
async fn an_answer_that_arrived_during_a_pause_of_the_daemon_counts() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // A second check is never answered.
        listener.accept().unwrap()
    });
    let timeout = Duration::from_millis(300);
    let paused = || async move {
        let question = question(at, http("/", None), timeout);
        let asked = tokio::spawn(async move { ask(&question, &own()).await });
        // The request is on its way when this thread, which runs all tasks, stops.
        tokio::time::sleep(timeout / 2).await;
        std::thread::sleep(4 * timeout);
        asked.await.unwrap()
    };
    assert_eq!(paused().await, Ok(()));
    assert_eq!(paused().await.map_err(|failure| failure.outcome), Err(CheckOutcome::Unasked));
    drop(server.join().unwrap());
}
