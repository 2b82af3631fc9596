use std::net::IpAddr;

use nodelb_core::compile::guard::Guard;
use nodelb_core::config::EngineConfig;
use nodelb_core::engine::Engine;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{FrontendEntry, MapOp, ServiceId};
use nodelb_host::clock::Clock;
use nodelb_programs::sockets::refuses_bind;

use nodelb_core::model::service::Source;

use super::*;
use nodelb_host::sock_diag::{InetResponseHeader, SocketId};

#[path = "bound/ephemeral.rs"]
mod ephemeral;

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// The state of a kernel that serves these NodePorts on 192.0.2.1 and 2001:db8::1.
fn serving(nodeports: &[&str]) -> Realised {
    let mut state = Realised::default();
    for nodeport in nodeports {
        let entry = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
        state.apply(&MapOp::PutFrontend(l4(nodeport), entry));
    }
    for addr in ["192.0.2.1", "2001:db8::1"] {
        state.apply(&MapOp::PutNodeAddr(addr.parse().unwrap()));
    }
    state
}

fn socket(at: &str, only_v6: bool) -> (Protocol, InetDiagMessage) {
    let L4Addr { addr, port, protocol } = l4(at);
    let family = if at.starts_with('[') { AF_INET6 } else { AF_INET };
    let source_address = if family == AF_INET6 { IpAddr::V6(addr.octets().into()) } else { addr.ip() };
    let socket_id = SocketId { source_port: port, source_address, ..SocketId::new_v4() };
    let (timer, recv_queue, send_queue) = (None, 0, 0);
    let header = InetResponseHeader { family, state: 10, timer, socket_id, recv_queue, send_queue, uid: 7, inode: 1 };
    (protocol, InetDiagMessage { header, only_v6, cgroup: None })
}

/// Returns the bound NodePorts, each with its process.
fn found(served: &Realised, sockets: &[(&str, bool)]) -> Vec<(String, String)> {
    let mut finds = Finds::default();
    for (at, only_v6) in sockets {
        let (protocol, socket) = socket(at, *only_v6);
        finds.add(served, protocol, &socket);
    }
    finds.0.into_iter().map(|(nodeport, (at, _))| (nodeport.to_string(), at.to_string())).collect()
}

#[test]
fn finds_what_takes_a_nodeport_and_nothing_else() {
    let served = serving(&["0.0.0.0:30080/TCP", "[::]:30080/TCP", "0.0.0.0:30081/UDP"]);
    let (v4, v6) = ("0.0.0.0:30080/TCP", "[::]:30080/TCP");
    for (socket, only_v6, taken) in [
        ("0.0.0.0:30080/TCP", false, [v4].as_slice()),
        ("192.0.2.1:30080/TCP", false, &[v4]),
        ("[::ffff:192.0.2.1]:30080/TCP", false, &[v4]),
        ("[::]:30080/TCP", false, &[v6, v4]),
        ("[::]:30080/TCP", true, &[v6]),
        ("[2001:db8::1]:30080/TCP", false, &[v6]),
        ("127.0.0.1:30080/TCP", false, &[]),
        ("192.0.2.2:30080/TCP", false, &[]),
        ("[2001:db8::2]:30080/TCP", false, &[]),
        ("0.0.0.0:30080/UDP", false, &[]),
        ("0.0.0.0:30079/TCP", false, &[]),
        ("[::]:30081/UDP", false, &["0.0.0.0:30081/UDP"]),
        ("[::]:30081/UDP", true, &[]),
    ] {
        let nodeports: Vec<String> = found(&served, &[(socket, only_v6)]).into_iter().map(|(at, _)| at).collect();
        assert_eq!(nodeports, taken, "{socket}");
        assert!(!taken.is_empty() <= refuses_bind(&served, &(30_000..=32_767), l4(socket)), "{socket}");
    }
}

#[test]
fn one_of_several_stands_for_all_whatever_the_order() {
    let served = serving(&["0.0.0.0:30080/TCP"]);
    let sockets = [("192.0.2.1:30080/TCP", false), ("0.0.0.0:30080/TCP", false), ("[::]:30080/TCP", false)];
    let expected = [("0.0.0.0:30080/TCP".to_owned(), "[::]:30080/TCP".to_owned())];
    assert_eq!(found(&served, &sockets), expected);
    assert_eq!(found(&served, &[sockets[2], sockets[0], sockets[1]]), expected);
}

#[test]
fn the_text_says_who_what_follows_now_and_what_to_do() {
    let nodeport = l4("0.0.0.0:30080/TCP");
    let tcp = text(nodeport, 1000, None);
    assert!(tcp.starts_with("a process of uid 1000 has bound 0.0.0.0:30080/TCP: "), "{tcp}");
    assert!(tcp.contains("Find it with `ss -lntp sport = :30080`"), "{tcp}");
    assert!(tcp.contains(": connections from outside the node reach that process, not the service. "), "{tcp}");
    for (translation, effect) in [
        (Translation::On, "so that they reach the service. Find it"),
        (Translation::Draining, "so that they reach that process, not the service. Find it"),
        (Translation::Off, "so that they reach that process, not the service. Find it"),
    ] {
        let text = text(nodeport, 1000, Some(translation));
        assert!(text.contains(effect), "{translation:?}: {text}");
    }
    let of_kubernetes = Translation::Files.of(Some(Source::Kubernetes));
    assert!(text(nodeport, 0, Some(of_kubernetes)).contains("so that they reach that process"));
    assert!(
        text(nodeport, 0, Some(Translation::Files.of(Some(Source::Files)))).contains("so that they reach the service")
    );
    assert!(text(l4("[::]:30081/UDP"), 0, None).contains("Find it with `ss -lnup sport = :30081`"));
}

#[test]
fn a_released_nodeport_is_not_said_to_work_while_nothing_is_translated() {
    let reaches = |translation| released(Some(translation)) == "connections from outside the node reach the service";
    assert!(reaches(Translation::On));
    assert!(!reaches(Translation::Draining) && !reaches(Translation::Off));
    assert!(!released(None).contains("reach the service"));
}

#[test]
fn the_owner_receives_changes_only_and_errors_take_nothing_back() {
    let served = (serving(&["0.0.0.0:30080/TCP"]), Translation::On);
    let bound = Bound::from([(l4("0.0.0.0:30080/TCP"), "a process".into())]);
    let mut reported = Logged::default();
    assert_eq!(reported.take(Ok(Bound::new()), &served), None, "nothing is what the owner knows at first");
    assert_eq!(reported.take(Ok(bound.clone()), &served), Some(bound.clone()));
    assert_eq!(reported.take(Ok(bound.clone()), &served), None);
    assert_eq!(reported.take(Err(io::ErrorKind::TimedOut.into()), &served), None);
    assert_eq!(reported.take(Ok(bound), &served), None);
    assert_eq!(reported.take(Ok(Bound::new()), &served), Some(Bound::new()));
}

#[test]
fn only_other_nodeports_are_a_reason_to_look() {
    let kept = |state: &Realised| {
        let mut snapshot = Snapshot::default();
        snapshot.realised = state.clone();
        nodeports(&snapshot)
    };
    let before = serving(&["0.0.0.0:30080/TCP"]);
    let entry = FrontendEntry { service: ServiceId(2), inside_local: false, outside_local: false };
    let mut more = before.clone();
    more.apply(&MapOp::PutFrontend(l4("198.51.100.1:80/TCP"), entry));
    assert_eq!(kept(&more), kept(&before), "a ClusterIP");
    more.apply(&MapOp::PutFrontend(l4("[::]:30080/TCP"), entry));
    assert_ne!(kept(&more), kept(&before));
    let mut elsewhere = before.clone();
    elsewhere.apply(&MapOp::DeleteNodeAddr("192.0.2.1".parse().unwrap()));
    assert_ne!(kept(&elsewhere), kept(&before));
}

#[tokio::test(start_paused = true)]
async fn looks_again_after_a_while_and_ends_with_the_owner() {
    let engine = Engine::new(EngineConfig::default(), Realised::default());
    let (sender, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
    let (changes, mut received) = mpsc::channel(1);
    let task = tokio::spawn(
        BoundPorts::new(OwnerHandle { changes, snapshot, clock: Clock::start() }).run(std::future::pending()),
    );
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let nodeport = format!("0.0.0.0:{port}/TCP");
    let serve = |nodeports: &[&str]| {
        let mut snapshot = engine.snapshot(Moment(0));
        snapshot.realised = serving(nodeports);
        sender.send_replace(Arc::new(snapshot));
    };
    serve(&[&nodeport]);
    let batch = received.recv().await.unwrap();
    let [Change::Bound(bound)] = batch.as_slice() else { panic!("{batch:?}") };
    assert_eq!(bound.keys().map(ToString::to_string).collect::<Vec<_>>(), [nodeport]);
    drop(listener);
    let known = Instant::now();
    assert_eq!(received.recv().await.unwrap(), [Change::Bound(Bound::new())]);
    assert!(known.elapsed() <= 2 * AGAIN, "{:?}", known.elapsed());
    drop(sender);
    task.await.unwrap();
}

/// A NodePort on a port of nodelb's own is in the maps only until the one from an earlier nodelb is removed.
#[tokio::test(start_paused = true)]
async fn nodelb_does_not_warn_of_its_own_listener() {
    let [own, other] = [0, 1].map(|_| std::net::TcpListener::bind("0.0.0.0:0").unwrap());
    let [own_port, other_port] = [&own, &other].map(|listener| listener.local_addr().unwrap().port());
    let guard = Guard { own_ports: vec![(own_port, "admin.listen")], ..Guard::default() };
    let engine = Engine::new(EngineConfig { guard, ..EngineConfig::default() }, Realised::default());
    let mut serving_both = engine.snapshot(Moment(0));
    let nodeports = [own_port, other_port].map(|port| format!("0.0.0.0:{port}/TCP"));
    serving_both.realised = serving(&nodeports.each_ref().map(String::as_str));
    let (_sender, snapshot) = watch::channel(Arc::new(serving_both));
    let (changes, mut received) = mpsc::channel(1);
    let task = tokio::spawn(
        BoundPorts::new(OwnerHandle { changes, snapshot, clock: Clock::start() }).run(std::future::pending()),
    );
    let batch = received.recv().await.unwrap();
    let [Change::Bound(bound)] = batch.as_slice() else { panic!("{batch:?}") };
    assert_eq!(bound.keys().map(ToString::to_string).collect::<Vec<_>>(), nodeports[1..]);
    task.abort();
}
