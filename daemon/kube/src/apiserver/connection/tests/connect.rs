use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::socket::{getsockname, getsockopt, sockopt};
use tokio::net::TcpListener;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::*;

fn connector(register: impl Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync + 'static) -> Connector {
    connector_within(Duration::from_secs(60), register)
}

fn connector_within(
    connect: Duration,
    register: impl Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync + 'static,
) -> Connector {
    let timeouts = ConnectTimeouts { connect, ..ConnectTimeouts::default() };
    Connector::new(Arc::new(register), timeouts, None).unwrap()
}

#[tokio::test]
async fn a_socket_is_registered_before_it_connects() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let connector = connector(move |socket| {
        counted.fetch_add(1, Ordering::SeqCst);
        let bound: nix::sys::socket::SockaddrIn = getsockname(std::os::fd::AsRawFd::as_raw_fd(&socket)).unwrap();
        assert_eq!(bound.port(), 0, "connected already");
        Ok(())
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = connector.open(listener.local_addr().unwrap()).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(stream.nodelay().unwrap());
    assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
    assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), 1);
    assert_eq!(getsockopt(&stream, sockopt::TcpKeepInterval).unwrap(), 1);
    assert_eq!(getsockopt(&stream, sockopt::TcpKeepCount).unwrap(), 3);
    assert_eq!(getsockopt(&stream, sockopt::TcpUserTimeout).unwrap(), 2500);
}

#[tokio::test]
async fn what_cannot_be_registered_does_not_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let error = connector(|_| Err(io::ErrorKind::OutOfMemory.into())).open(at).await.unwrap_err();
    assert!(error.to_string().contains(&format!("{at}: cannot register the socket")), "{error}");
    let accepted = tokio::time::timeout(Duration::from_millis(20), listener.accept()).await;
    assert!(accepted.is_err());
}

#[tokio::test]
async fn a_refused_connection_and_a_black_hole_are_distinguished() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let error = connector(|_| Ok(())).open(at).await.unwrap_err().to_string();
    assert!(error.contains(&at.to_string()) && error.contains("Connection refused"), "{error}");

    // A listening socket with a full queue drops each further SYN.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let at = full.local_addr().unwrap().as_socket().unwrap();
    let _queued = std::net::TcpStream::connect(at).unwrap();
    let error = connector_within(Duration::from_millis(200), |_| Ok(())).open(at).await.unwrap_err();
    assert_eq!(error, LinkError::Unreachable(format!("{at}: no connection within 200ms")));
}
