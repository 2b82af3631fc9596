use super::*;

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

fn row(backends: &[&str]) -> FrontendRow {
    let row = serde_json::json!({
        "address": "198.51.100.1:80/TCP", "type": "Static", "service": "shop/web", "port": null, "backends": backends,
        "flags": [], "outside": "NodeOnly", "status": "OK", "since": null, "error": null,
    });
    serde_json::from_value(row).unwrap()
}

/// Returns the difference that is reported for a connect to a service with these backends.
fn reported(backends: &[&str], met: &Met) -> Option<String> {
    judge(l4("198.51.100.1:80"), &row(backends), met, &[]).and_then(|row| row.kernel)
}

#[test]
fn what_goes_as_it_should_is_no_difference() {
    let backend = "192.0.2.1:80/TCP";
    assert_eq!(reported(&[backend], &Met::Peer(Some(l4(backend)))), None);
    assert_eq!(reported(&[], &Met::Refusal("refused".into())), None);
    let own = "198.51.100.1:80/TCP";
    assert_eq!(reported(&[own], &Met::Peer(Some(l4(own)))), None, "an address that is its own backend");
}

#[test]
fn everything_else_is() {
    let backend = "192.0.2.1:80/TCP";
    let cases = [
        (Met::Peer(Some(l4("192.0.2.9:80"))), "a connect was sent to 192.0.2.9:80/TCP"),
        (Met::Peer(Some(l4("198.51.100.1:80"))), "a connect was not translated"),
        (Met::NoListener("no route".into()), "a connect was not translated: no route"),
        (Met::Refusal("refused".into()), "a connect was refused at once: refused"),
        (Met::Closed(Some(l4(backend)), "refused".into()), "a connect was sent to 192.0.2.1:80/TCP: refused"),
        (Met::Closed(None, "refused".into()), "a connect failed: refused"),
    ];
    for (met, expected) in cases {
        assert_eq!(reported(&[backend], &met).as_deref(), Some(expected), "{met:?}");
    }
    assert!(reported(&[], &Met::Peer(Some(l4(backend)))).is_some());
}

/// A program may run before nodelb's although it was attached later (BPF_F_PREORDER): only the daemon knows the order.
#[test]
fn the_cause_of_another_backend_is_what_the_daemon_says_about_other_programs() {
    let cause = |others: &[String]| {
        let met = Met::Peer(Some(l4("192.0.2.9:80")));
        judge(l4("198.51.100.1:80"), &row(&["192.0.2.1:80/TCP"]), &met, others).unwrap().cause
    };
    let before = "programs of other software run before nodelb's: lb (7) at connect4".to_owned();
    assert!(cause(std::slice::from_ref(&before)).ends_with(&before));
    assert!(cause(&[]).contains("bpftool cgroup tree"));
}

/// The content of the list of sockets in this test.
fn listed(_: BorrowedFd<'_>, source: SocketAddr, protocol: Protocol) -> io::Result<Option<L4Addr>> {
    assert!(source.ip().is_loopback());
    Ok(Some(L4Addr { protocol, ..l4("192.0.2.1:80") }))
}

#[test]
fn a_connect_reaches_the_process_that_listens() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = L4Addr::new("127.0.0.1".parse().unwrap(), listener.local_addr().unwrap().port(), Protocol::Tcp);
    assert_eq!(meet(to, listed).unwrap(), Met::Peer(Some(l4("192.0.2.1:80"))));
    let udp = L4Addr { protocol: Protocol::Udp, ..to };
    assert_eq!(meet(udp, listed).unwrap(), Met::Peer(Some(L4Addr { protocol: Protocol::Udp, ..l4("192.0.2.1:80") })));
    drop(listener);
    assert!(matches!(meet(to, listed).unwrap(), Met::Closed(..)));
}
