use nodelb_core::config::EngineConfig;
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

fn problems() -> Beginnings {
    [((Reason::MapNearlyFull, "map frontends".to_owned()), Time(1_764_000_000_000))].into()
}

#[test]
fn what_is_written_is_read_in_the_same_boot() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory.path().join("not/there/yet"));
    assert_eq!(read(&path, BOOT).unwrap(), Past::default());
    let ports = || vec![port("shop/web", "http"), port("shop/web", "")];
    let named: Vec<Arc<PortKey>> = ports().into_iter().map(Arc::new).collect();
    write(&path, &bytes(&statuses(), named.iter(), &problems(), BOOT).unwrap()).unwrap();
    assert_eq!(
        read(&path, BOOT).unwrap(),
        Past { statuses: statuses(), ports: ports(), problems: problems(), latest: Vec::new() }
    );
    assert_eq!(read(&path, "another").unwrap(), Past::default());
}

fn port(service: &str, port: &str) -> PortKey {
    let service = service.parse().unwrap();
    PortKey { service, port: port.into(), protocol: Protocol::Tcp, family: Family::Ipv4 }
}

/// A disk was full while a service had an outage, and after the next start `Since` was older than the outage.
#[test]
fn a_file_that_cannot_be_written_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    let contents = || bytes(&statuses(), [].iter(), &problems(), BOOT);
    let written = Written::default();
    written.write(&path, contents()).unwrap();
    // The new file cannot be created.
    fs::create_dir_all(new_path(&path).join("in the way")).unwrap();
    written.write(&path, bytes(&Statuses::new(), [].iter(), &problems(), BOOT)).unwrap_err();
    assert!(!path.exists());
    fs::remove_dir_all(new_path(&path)).unwrap();
    written.write(&path, contents()).unwrap();
    assert_eq!(read(&path, BOOT).unwrap().statuses, statuses(), "the same contents are written again");
}

/// In a directory that is read-only, the outdated file can neither be written nor removed.
#[test]
fn a_file_that_cannot_be_replaced_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    write(&path, &bytes(&statuses(), [].iter(), &problems(), BOOT).unwrap()).unwrap();
    fs::create_dir_all(new_path(&path).join("in the way")).unwrap();
    let error = read(&path, BOOT).unwrap_err().to_string();
    assert!(error.starts_with("it may be outdated, because it cannot be replaced: "), "{error}");
    assert!(path.exists(), "it can still be examined");
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
    let (task, _beginnings) = start(path.clone(), latest, problems(), stop.clone());
    for now in 11..14 {
        snapshot.send_replace(Arc::new(engine.snapshot(Moment(now))));
        tokio::task::yield_now().await;
    }
    stop.cancel();
    drop(snapshot);
    task.await.unwrap();
    let found = load(&path).await;
    assert_eq!(found.problems, problems());
    assert_eq!(
        found.statuses.values().map(|it| (it.status, it.since)).collect::<Vec<_>>(),
        [(Status::Conflict, Moment(9))]
    );
}
