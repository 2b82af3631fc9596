use std::fs;

use nodelb_core::config::EngineConfig;
use nodelb_core::state::entries::MapState;

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

/// An engine that knows these statuses from an earlier run, and these ports.
fn engine(statuses: Statuses) -> Engine {
    let mut engine = Engine::new(EngineConfig { max_services: 8, ..EngineConfig::default() }, MapState::default());
    engine.recall(statuses.into_iter().filter(|(_, it)| !it.status.is_in_maps()).collect(), Moment(10));
    engine
}

/// Statuses of addresses that the maps do not refute.
fn refused(since: u64) -> Statuses {
    let row = |(address, service): (&str, u32)| {
        ((address.parse().unwrap(), service), Lasting { status: Status::Conflict, since: Moment(since) })
    };
    [("192.0.2.1:80/TCP", 8), ("[2001:db8::1]:53/UDP", 7)].into_iter().map(row).collect()
}

fn save(written: &mut Written, path: &Path, statuses: Statuses) -> io::Result<()> {
    written.write(path, &engine(statuses).snapshot(Moment(10)), Arc::new(problems()), BOOT)
}

/// In the next boot, services that were served come before others.
#[test]
fn in_another_boot_the_statuses_only_say_who_was_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    let first = serde_json::to_string(&Line::Since(VERSION, BOOT.to_owned())).unwrap();
    let line = |((address, service), lasting): (&(L4Addr, u32), &Lasting)| {
        serde_json::to_string(&Line::Status(*address, *service, Some(lasting.status), lasting.since.0)).unwrap()
    };
    let lines: Vec<String> = std::iter::once(first).chain(statuses().iter().map(line)).collect();
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let of_any_boot = statuses();
    assert_eq!(read(&path, "another").unwrap(), Past { of_any_boot: of_any_boot.clone(), ..Past::default() });
    assert_eq!(read(&path, BOOT).unwrap(), Past { statuses: statuses(), of_any_boot, ..Past::default() });
}

#[test]
fn what_is_written_is_read_in_the_same_boot() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory.path().join("not/there/yet"));
    assert_eq!(read(&path, BOOT).unwrap(), Past::default());
    let mut written = Written::default();
    save(&mut written, &path, refused(9)).unwrap();
    let expected =
        |statuses: Statuses| Past { of_any_boot: statuses.clone(), statuses, problems: problems(), ..Past::default() };
    assert_eq!(read(&path, BOOT).unwrap(), expected(refused(9)));
    assert_eq!(read(&path, "another").unwrap(), Past { of_any_boot: refused(9), ..Past::default() });
    let length = || fs::metadata(&path).unwrap().len();
    let whole = length();
    save(&mut written, &path, refused(9)).unwrap();
    assert_eq!(length(), whole, "nothing has changed");
    let fewer: Statuses = refused(7).into_iter().take(1).collect();
    save(&mut written, &path, fewer.clone()).unwrap();
    assert!(length() > whole, "what has changed is appended");
    assert_eq!(read(&path, BOOT).unwrap(), expected(fewer.clone()));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}{{\"Status\":[\"192.0.2.")).unwrap();
    assert_eq!(read(&path, BOOT).unwrap(), expected(fewer), "a line that was cut off");
}

#[test]
fn the_file_of_an_earlier_version_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let (path, earlier) = (path(directory.path()), directory.path().join("since.json"));
    let text = format!(
        r#"{{"version":1,"boot":"{BOOT}","statuses":[["192.0.2.1:80/TCP",7,"OK",5]],
            "ports":[["shop/web","http","TCP","Ipv4"]],"problems":[["MapNearlyFull","map frontends",1764000000000]]}}"#
    );
    fs::write(&earlier, text).unwrap();
    let past = read(&path, BOOT).unwrap();
    let statuses = statuses().into_iter().take(1).collect();
    let expected = Past { statuses, ports: vec![port("shop/web", "http")], problems: problems(), ..Past::default() };
    assert_eq!(past, Past { of_any_boot: past.statuses.clone(), ..expected });
    save(&mut Written::default(), &path, refused(9)).unwrap();
    assert!(path.exists() && !earlier.exists());
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
    let mut written = Written::default();
    save(&mut written, &path, refused(9)).unwrap();
    // The new file cannot be created, and nothing can be appended.
    fs::create_dir_all(path.with_extension("new").join("in the way")).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "outdated").unwrap();
    save(&mut written, &path, refused(8)).unwrap_err();
    assert!(!path.exists());
    fs::remove_dir_all(path.with_extension("new")).unwrap();
    save(&mut written, &path, refused(9)).unwrap();
    assert_eq!(read(&path, BOOT).unwrap().statuses, refused(9), "the same contents are written again");
}

/// In a directory that is read-only, the outdated file can neither be written nor removed.
#[test]
fn a_file_that_cannot_be_replaced_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    save(&mut Written::default(), &path, refused(9)).unwrap();
    fs::create_dir_all(directory.path().join("since.json.new/in the way")).unwrap();
    let error = read(&path, BOOT).unwrap_err().to_string();
    assert!(error.starts_with("it may be outdated, because it cannot be replaced: "), "{error}");
    assert!(path.exists(), "it can still be examined");
}

#[test]
fn a_file_of_another_form_is_not_read() {
    for text in ["", "[]\n", "{\"Since\":[3,\"\"]}\n", "{\"version\":1}\n"] {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path());
        fs::write(&path, text).unwrap();
        let error = read(&path, BOOT).unwrap_err();
        assert_eq!(error.to_string(), "this nodelb does not support its format", "{text}");
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
