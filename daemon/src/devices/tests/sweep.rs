use std::sync::Mutex;

use nodelb_core::model::addr::Protocol;
use nodelb_core::state::entries::{BackendId, ServiceId};
use tokio::time::timeout;

use super::*;

fn swept(reason: SweepReason) -> Swept {
    let (service, backend) = (ServiceId(1), BackendId(2));
    Swept { service, backend, protocol: Protocol::Tcp, reason, forward_bytes: 0, reverse_bytes: 0 }
}

fn answering() -> Answering {
    let (changes, _) = tokio::sync::mpsc::channel(1);
    Answering::new(watch::channel(Arc::default()).1, changes, nodelb_host::clock::Clock::start())
}

#[test]
fn idle_connections_are_forgotten_earlier_when_there_is_little_room() {
    let day = 86_400;
    assert_eq!([0, 79, 80].map(|percent| tcp_timeout(day, percent)), [day; 3]);
    assert_eq!(tcp_timeout(day, 85), day - (day - 3600) / 3);
    assert_eq!([95, 100, 200].map(|percent| tcp_timeout(day, percent)), [3600; 3]);
    assert_eq!([0, 90, 100].map(|percent| tcp_timeout(60, percent)), [60; 3], "a short one does not grow");
    let packets = Packets { max_connections: 1000, ..Packets::default() };
    let with = |connections, handshakes| {
        let count = Some(ConnectionCount { connections, handshakes, forwarded: 0 });
        let SweepTimeouts { tcp_idle, udp_idle, forwarded_idle, .. } =
            timeouts(&packets, &SweepReport { count, limit: 1000, ..SweepReport::default() });
        (tcp_idle, udp_idle, forwarded_idle)
    };
    let udp = packets.udp_timeout.0;
    assert_eq!(timeouts(&packets, &SweepReport::default()).tcp_idle, day);
    assert_eq!(with(950, 0), (3600, udp, day));
    assert_eq!(with(0, 95 * u64::from(packets.max_handshakes) / 100), (day, udp, day - (day - 3600) / 15 * 14));
    assert_eq!(with(0, u64::from(packets.max_handshakes)), (day, udp, 3600), "strangers do not shorten others");
}

#[tokio::test]
async fn deleted_connections_are_counted_by_reason() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let timeouts = Arc::clone(&seen);
    let run: RunSweep = Box::new(move |with, _, report| {
        timeouts.lock().unwrap().push(*with);
        for reason in [SweepReason::Idle, SweepReason::Reset, SweepReason::Idle] {
            report(swept(reason));
        }
        Ok(Vec::new())
    });
    let counted: CountConnections = Arc::new(|| Ok(ConnectionCount { connections: 3, handshakes: 4, forwarded: 5 }));
    let config = watch::channel(Arc::new(Config::default())).1;
    let mut reports =
        start((run, 1000), (counted, answering()), watch::channel(true).1, config, std::future::pending());
    timeout(Duration::from_secs(10), reports.changed()).await.unwrap().unwrap();
    let report = Arc::clone(&reports.borrow());
    assert_eq!(report.swept, BTreeMap::from([(SweepReason::Reset, 1), (SweepReason::Idle, 2)]));
    assert_eq!(
        (report.count, report.failures),
        (Some(ConnectionCount { connections: 3, handshakes: 4, forwarded: 5 }), 0)
    );
    assert_eq!(report.limit, 1000);
    assert_eq!(seen.lock().unwrap()[0].handshake, HANDSHAKE);
}

#[tokio::test]
async fn a_failed_sweep_is_counted() {
    let run: RunSweep = Box::new(|_, _, _| Err(io::ErrorKind::PermissionDenied.into()));
    let counted: CountConnections = Arc::new(|| Err(io::ErrorKind::PermissionDenied.into()));
    let config = watch::channel(Arc::new(Config::default())).1;
    let mut reports =
        start((run, 1000), (counted, answering()), watch::channel(true).1, config, std::future::pending());
    timeout(Duration::from_secs(10), reports.changed()).await.unwrap().unwrap();
    assert_eq!((reports.borrow().failures, reports.borrow().count), (1, None));
}

/// In so many intervals, connections are counted again.
const COUNTED_WITHIN: u64 = COUNT_EVERY.as_secs() / EVERY.as_secs() + 1;

/// Empty maps were searched every ten seconds, also on nodes that clients outside cannot connect to.
#[tokio::test(start_paused = true)]
async fn empty_maps_are_rarely_swept_while_nothing_is_served() {
    let sweeps = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&sweeps);
    let run: RunSweep = Box::new(move |_, _, _| {
        *counter.lock().unwrap() += 1;
        Ok(Vec::new())
    });
    let found = Arc::new(Mutex::new(1));
    let connections = Arc::clone(&found);
    let counted: CountConnections = Arc::new(move || {
        Ok(ConnectionCount { connections: *connections.lock().unwrap(), ..ConnectionCount::default() })
    });
    let (served, is_served) = watch::channel(false);
    let (configured, config) = watch::channel(Arc::new(Config::default()));
    let _reports = start((run, 1000), (counted, answering()), is_served, config, std::future::pending());
    let sweeps_in = async |intervals: u64| {
        *sweeps.lock().unwrap() = 0;
        for _ in 0..intervals {
            sleep(EVERY).await;
        }
        *sweeps.lock().unwrap()
    };
    let is_regular = |sweeps: u64| sweeps + 2 > EMPTY_EVERY;
    assert!(is_regular(sweeps_in(EMPTY_EVERY).await), "connections of a former service end, too");
    *found.lock().unwrap() = 0;
    sweeps_in(COUNTED_WITHIN).await;
    assert_eq!(sweeps_in(EMPTY_EVERY).await, 1);
    *found.lock().unwrap() = 1;
    sweeps_in(EMPTY_EVERY).await;
    assert!(is_regular(sweeps_in(EMPTY_EVERY).await), "each of the rare sweeps counts");
    *found.lock().unwrap() = 0;
    sweeps_in(COUNTED_WITHIN).await;
    served.send_replace(true);
    served.send_replace(false);
    assert!(sweeps_in(2).await > 0, "a connection may have begun in between");
    sweeps_in(COUNTED_WITHIN).await;
    assert_eq!(sweeps_in(EMPTY_EVERY).await, 1);
    let with_pods = "[packets]\nmode = \"on\"\npod-devices = [\"tap*\"]\n";
    configured.send_replace(Arc::new(Config::parse(with_pods).unwrap()));
    assert!(is_regular(sweeps_in(EMPTY_EVERY).await), "Pods can always connect");
    configured.send_replace(Arc::default());
    served.send_replace(true);
    assert!(is_regular(sweeps_in(EMPTY_EVERY).await));
}

#[test]
fn a_warning_about_a_map_is_repeated_after_an_hour() {
    let mut warned = None;
    assert!(!is_due(&mut warned, CROWDED - 1));
    assert!(is_due(&mut warned, CROWDED));
    assert!(!is_due(&mut warned, 100));
    warned = warned.and_then(|at| at.checked_sub(WARN_EVERY));
    assert!(warned.is_none() || is_due(&mut warned, 100));
    let count = Some(ConnectionCount { connections: 0, handshakes: 0, forwarded: 52_428 });
    assert_eq!(SweepReport { count, ..SweepReport::default() }.used(32_768), [0, CROWDED - 1]);
}
