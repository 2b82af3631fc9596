use nodelb_core::config::EngineConfig;
use nodelb_core::engine::Engine;
use nodelb_core::state::entries::MapState;
use nodelb_host::state_file::corrupt_path;

use super::*;

const BOOT: &str = "01234567-89ab-cdef-0123-456789abcdef";

fn statuses() -> Statuses {
    let row = |(address, service, status, since): (&str, u32, Status, u64)| {
        ((address.parse().unwrap(), service), Lasting { status, since: Moment(since) })
    };
    [
        ("192.0.2.1:80/TCP", 7, Status::Ok, 5),
        ("192.0.2.1:80/TCP", 8, Status::Conflict, 9),
        ("[2001:db8::1]:53/UDP", 7, Status::LastResort, 6),
    ]
    .into_iter()
    .map(row)
    .collect()
}

#[test]
fn what_is_written_is_read_in_the_same_boot() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory.path().join("not/there/yet"));
    assert_eq!(read(&path, BOOT).unwrap(), Statuses::new());
    write(&path, &bytes(&statuses(), BOOT).unwrap()).unwrap();
    assert_eq!(read(&path, BOOT).unwrap(), statuses());
    assert_eq!(read(&path, "another").unwrap(), Statuses::new());
}

#[test]
fn a_file_of_no_use_is_put_aside() {
    let wrong = [
        "",
        "[]",
        r#"{"version":2,"boot":"","statuses":[]}"#,
        r#"{"version":1,"boot":"","statuses":[["192.0.2.1:80/TCP",1,"Fine",5]]}"#,
        r#"{"version":1,"boot":"","statuses":[["192.0.2.1:80/TCP",1,"OK",-5]]}"#,
    ];
    for content in wrong {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path());
        fs::write(&path, content).unwrap();
        let reported = read(&path, BOOT).unwrap_err().to_string();
        assert!(reported.contains("; it has been renamed to "), "{reported}");
        assert_eq!(fs::read_to_string(corrupt_path(&path)).unwrap(), content);
    }
}

/// At the end of the daemon, the pause ends, and the last snapshot is written.
#[tokio::test]
async fn the_last_snapshot_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    let config = EngineConfig { max_services: 8, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let refused = statuses().into_iter().filter(|(_, it)| !it.status.is_in_maps()).collect();
    engine.recall(refused, Moment(10));
    let (snapshot, latest) = watch::channel(Arc::new(engine.snapshot(Moment(10))));
    let stop = CancellationToken::new();
    let task = start(path.clone(), latest, stop.clone());
    for now in 11..14 {
        snapshot.send_replace(Arc::new(engine.snapshot(Moment(now))));
        tokio::task::yield_now().await;
    }
    stop.cancel();
    drop(snapshot);
    task.await.unwrap();
    let found = load(&path).await;
    assert_eq!(found.values().map(|it| (it.status, it.since)).collect::<Vec<_>>(), [(Status::Conflict, Moment(9))]);
}
