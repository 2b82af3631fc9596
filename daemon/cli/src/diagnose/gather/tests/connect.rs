use std::io;
use std::os::fd::BorrowedFd;

use nodelb_core::compile::select::Choice;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::service::ServiceName;
use nodelb_core::state::status::Status;

use super::*;
use crate::diagnose::facts::{BackendRow, KernelSettings, Probe, Stored};
use crate::without_daemon::Pins;

#[test]
fn addresses_are_connected_to_as_clients_do() {
    let nodes = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    for (text, to, at) in [
        ("10.96.7.7:80/TCP", "10.96.7.7:80/TCP", Some("10.96.7.7:80")),
        ("[2001:db8:f::7]:80/TCP", "[2001:db8:f::7]:80/TCP", Some("[2001:db8:f::7]:80")),
        ("10.96.7.7:53/UDP", "10.96.7.7:53/UDP", None),
        ("0.0.0.0:30080/TCP", "192.0.2.1:30080/TCP", Some("192.0.2.1:30080")),
        ("[::]:30080/TCP", "[2001:db8::1]:30080/TCP", Some("[2001:db8::1]:30080")),
        ("nonsense", "nonsense", None),
    ] {
        let target = target(text, false, Some(&nodes));
        assert_eq!((target.to.as_str(), target.at), (to, at.map(|at| at.parse().unwrap())), "{text}");
    }
    assert_eq!(target("0.0.0.0:30080/TCP", false, None).at, None);
}

/// Without the daemon, the addresses in the maps are those that clients use.
#[test]
fn without_the_daemon_the_pinned_addresses_are_tried() {
    let frontend = FrontendRow {
        address: "0.0.0.0:30080/TCP".into(),
        backends: vec!["10.1.0.1:8080/TCP".into()],
        ..FrontendRow::default()
    };
    let stored = Stored { pins: Pins::Present, frontends: vec![frontend], node_addresses: vec!["192.0.2.1".into()] };
    let facts = Facts {
        service: ServiceName::new("shop", "web"),
        now: 0,
        node: "a".into(),
        daemon: Probe::Failed("nothing listens".into()),
        stored: Some(stored),
        cluster: Probe::Skipped,
        connect_tests: Vec::new(),
        dns: None,
        kernel: KernelSettings::default(),
        outside_cgroup: None,
    };
    let tried: Vec<_> = targets(&facts).into_iter().map(|it| (it.to, it.is_backend)).collect();
    assert_eq!(tried, [("10.1.0.1:8080/TCP".to_owned(), true), ("192.0.2.1:30080/TCP".to_owned(), false)]);
}

/// The backends of the description were tried, also while connections get others.
#[test]
fn the_backends_that_connections_reach_are_tried() {
    let row = |service: &str, address: &str, status, backends: &[&str]| FrontendRow {
        service: service.into(),
        address: address.into(),
        status: Some(status),
        backends: backends.iter().map(|it| (*it).to_owned()).collect(),
        ..FrontendRow::default()
    };
    let (first, second) = ("10.96.7.7:80/TCP", "10.96.7.8:80/TCP");
    let daemon = Daemon {
        frontends: vec![
            row("shop/web", first, Status::Kept, &["10.1.0.1:80/TCP"]),
            row("shop/web", second, Status::Pending, &[]),
            row("shop/web", "10.96.7.9:80/TCP", Status::Conflict, &[]),
        ],
        rivals: vec![
            row("shop/b", second, Status::Ok, &["10.1.0.2:80/TCP"]),
            row("shop/b", "10.96.7.9:80/TCP", Status::Ok, &["10.1.0.3:80/TCP"]),
        ],
        backends: vec![BackendRow {
            address: "10.1.0.4:80/TCP".into(),
            choice: Some(Choice::Selected),
            ..BackendRow::default()
        }],
        ..Daemon::default()
    };
    let (backends, frontends) = of_daemon(&daemon);
    let text = |targets: BTreeSet<Target>| targets.into_iter().map(|it| it.to).collect::<Vec<_>>();
    assert_eq!(text(backends), ["10.1.0.1:80/TCP", "10.1.0.2:80/TCP"]);
    assert_eq!(text(frontends), [first, second]);
}

/// That they fail was taken for an error of the network: nodelb refuses clients on the node.
#[test]
fn an_address_that_only_clients_outside_reach_is_not_tried() {
    let row = FrontendRow {
        address: "198.51.100.1:80/TCP".into(),
        status: Some(Status::Ok),
        backends: vec!["[2001:db8:1::1]:80/TCP".into()],
        ..FrontendRow::default()
    };
    let (backends, frontends) = of_daemon(&Daemon { frontends: vec![row], ..Daemon::default() });
    assert_eq!((backends.len(), frontends.len()), (1, 0));
}

/// In place of the kernel's list of sockets.
fn read_peer(_: BorrowedFd<'_>, _: SocketAddr, protocol: Protocol) -> io::Result<Option<L4Addr>> {
    Ok(Some(L4Addr::new(Addr::LOOPBACK_V4, 8080, protocol)))
}

#[tokio::test]
async fn a_connection_is_made_or_fails_with_its_errno() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let targets = [open, closed].map(|at| target(&format!("{at}/TCP"), true, None));
    let connect_tests = all(&targets, read_peer).await;
    assert!(matches!(connect_tests[0].outcome, Outcome::Accepted(_)), "{connect_tests:?}");
    assert!(
        matches!(&connect_tests[1].outcome, Outcome::Failed(why, _) if why.contains("ECONNREFUSED")),
        "{connect_tests:?}"
    );
    let udp = all(&[target("127.0.0.1:53/UDP", false, None)], read_peer).await;
    assert_eq!(udp[0].outcome, Outcome::Unprovable);
    let peers: Vec<_> = connect_tests.into_iter().chain(udp).map(|test| test.peer).collect();
    assert_eq!(peers, [Some("127.0.0.1:8080/TCP".into()), None, None]);
}
