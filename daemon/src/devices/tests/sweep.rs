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
        let Some(with) = with else { return Ok(Ran::default()) };
        timeouts.lock().unwrap().push(*with);
        for reason in [SweepReason::Idle, SweepReason::Reset, SweepReason::Idle] {
            report(swept(reason));
        }
        Ok(Ran::default())
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

/// When a client waits, and when a backend answers, from the start of the task.
const WAITS: Duration = Duration::from_secs(5);

/// What a search was for, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Search {
    Look(Duration),
    Sweep(Duration),
}

/// The searches of this time with sweeps that take so long; from [`WAITS`] on, each look finds these outcomes.
async fn searches(seconds: u64, takes: Duration, found: Option<Outcomes>) -> Vec<Search> {
    let (seen, started) = (Arc::new(Mutex::new(Vec::new())), tokio::time::Instant::now());
    let searches = Arc::clone(&seen);
    let run: RunSweep = Box::new(move |with, _, _| {
        let at = started.elapsed();
        searches.lock().unwrap().push(if with.is_some() { Search::Sweep(at) } else { Search::Look(at) });
        if with.is_some() {
            return Ok(Ran { duration: takes, ..Ran::default() });
        }
        let found = found.filter(|_| at >= WAITS);
        let outcomes = found.map(|found| (ServiceId(1), BackendId(2), found)).into_iter().collect();
        Ok(Ran { outcomes, ..Ran::default() })
    });
    let counted: CountConnections = Arc::new(|| Ok(ConnectionCount::default()));
    let config = watch::channel(Arc::new(Config::default())).1;
    let (_served, is_served) = watch::channel(true);
    let reports = start((run, 1000), (counted, answering()), is_served, config, std::future::pending());
    sleep(Duration::from_secs(seconds)).await;
    drop(reports);
    seen.lock().unwrap().clone()
}

fn sweeps(searches: &[Search]) -> Vec<u64> {
    let at = |search: &Search| if let Search::Sweep(at) = search { Some(at.as_secs()) } else { None };
    searches.iter().filter_map(at).collect()
}

/// Long enough for the longest pause, and far less than a second.
const LONG: Duration = Duration::from_millis(15);

/// The status said it up to ten seconds later.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_is_seen_before_the_next_sweep_is_due() {
    for found in [Outcomes { unanswered: 1, ..Outcomes::default() }, Outcomes { refused: 1, ..Outcomes::default() }] {
        let searches = searches(11, LONG, Some(found)).await;
        let looks: Vec<u64> = searches
            .iter()
            .filter_map(|search| if let Search::Look(at) = search { Some(at.as_secs()) } else { None })
            .collect();
        assert_eq!(looks, [0, 2, 4, 6, 8, 10], "also on a node without connections: {searches:?}");
        assert_eq!(sweeps(&searches), [0, 6, 8, 10], "{found:?}");
    }
}

/// A sweep looks at all connections, which may be many.
#[tokio::test(start_paused = true)]
async fn looks_without_a_client_that_waits_bring_no_sweep_forward() {
    for found in [None, Some(Outcomes { answered: 9, ..Outcomes::default() })] {
        assert_eq!(sweeps(&searches(45, LONG, found).await), [0, 10, 20, 30, 40], "{found:?}");
    }
}

/// Strangers can make clients wait.
#[test]
fn long_sweeps_are_rare_also_while_clients_wait() {
    let pause = |milliseconds, share| pause(Duration::from_millis(milliseconds), share).as_secs_f64();
    assert_eq!([0, 7, 100, 250, 9_000].map(|it| pause(it, URGENT_SHARE)), [2.0, 2.0, 2.0, 5.0, 10.0]);
    assert_eq!([0, 1, 7, 100].map(|it| pause(it, SHARE)), [2.0, 2.0, 7.0, 10.0]);
    assert_eq!([1, 20, 50, 200].map(|it| pause(it, LOOK_SHARE)), [2.0, 2.0, 5.0, 10.0]);
}

/// The sweep that follows says why, and is tried again.
#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_followed_by_a_sweep() {
    let sweeps = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&sweeps);
    let run: RunSweep = Box::new(move |with, _, _| match with {
        None => Err(io::ErrorKind::PermissionDenied.into()),
        Some(_) => {
            *counter.lock().unwrap() += 1;
            Ok(Ran { duration: LONG, ..Ran::default() })
        }
    });
    let counted: CountConnections = Arc::new(|| Ok(ConnectionCount::default()));
    let config = watch::channel(Arc::new(Config::default())).1;
    let (_served, is_served) = watch::channel(true);
    let reports = start((run, 1000), (counted, answering()), is_served, config, std::future::pending());
    sleep(Duration::from_secs(5)).await;
    assert_eq!((*sweeps.lock().unwrap(), reports.borrow().failures), (3, 0));
}

/// In so many intervals, connections are counted again.
const COUNTED_WITHIN: u64 = COUNT_EVERY.as_secs() / EVERY.as_secs() + 1;

/// The number of intervals in which empty maps have one sweep.
const EMPTY_INTERVALS: u64 = EMPTY_EVERY.as_secs() / EVERY.as_secs();

/// Empty maps were searched every ten seconds, also on nodes that clients outside cannot connect to.
#[tokio::test(start_paused = true)]
async fn empty_maps_are_rarely_swept_while_nothing_is_served() {
    let sweeps = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&sweeps);
    let run: RunSweep = Box::new(move |with, _, _| {
        *counter.lock().unwrap() += u64::from(with.is_some());
        Ok(Ran::default())
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
    let is_regular = |sweeps: u64| sweeps + 2 > EMPTY_INTERVALS;
    assert!(is_regular(sweeps_in(EMPTY_INTERVALS).await), "connections of a former service end, too");
    *found.lock().unwrap() = 0;
    sweeps_in(COUNTED_WITHIN).await;
    assert_eq!(sweeps_in(EMPTY_INTERVALS).await, 1);
    *found.lock().unwrap() = 1;
    sweeps_in(EMPTY_INTERVALS).await;
    assert!(is_regular(sweeps_in(EMPTY_INTERVALS).await), "each of the rare sweeps counts");
    *found.lock().unwrap() = 0;
    sweeps_in(COUNTED_WITHIN).await;
    served.send_replace(true);
    served.send_replace(false);
    assert!(sweeps_in(2).await > 0, "a connection may have begun in between");
    sweeps_in(COUNTED_WITHIN).await;
    assert_eq!(sweeps_in(EMPTY_INTERVALS).await, 1);
    let with_pods = "[packets]\nmode = \"on\"\npod-devices = [\"tap*\"]\n";
    configured.send_replace(Arc::new(Config::parse(with_pods).unwrap()));
    assert!(is_regular(sweeps_in(EMPTY_INTERVALS).await), "Pods can always connect");
    configured.send_replace(Arc::default());
    served.send_replace(true);
    assert!(is_regular(sweeps_in(EMPTY_INTERVALS).await));
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
