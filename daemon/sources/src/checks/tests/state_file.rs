use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nodelb_host::state_file::corrupt_path;

use super::*;

const LIMITS: Limits =
    Limits { every: Duration::ZERO, retry: Duration::from_millis(1), timeout: Duration::from_secs(20) };

fn unhealthy(lasts: &[u8]) -> Unhealthy {
    let failed = lasts.iter().map(|last| {
        let addr: Addr = format!("192.0.2.{last}").parse().unwrap();
        ((addr, 80), Arc::from("connection refused"))
    });
    let v6 = ServiceName::new("shop", "six");
    let mut unhealthy = Unhealthy::from([(ServiceName::new("shop", "web"), failed.collect())]);
    unhealthy.insert(v6, Quarantine::from([(("2001:db8::1".parse().unwrap(), 443), "status 503".into())]));
    unhealthy
}

#[test]
fn what_is_written_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("not/there/yet");
    let path = inner.join(NAME);
    assert_eq!(read(&path).unwrap(), Unhealthy::new());
    write(&path, &Unhealthy::new()).unwrap();
    write(&path, &unhealthy(&[1, 2])).unwrap();
    assert_eq!(read(&path).unwrap(), unhealthy(&[1, 2]));
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
}

#[test]
fn a_file_of_no_use_is_put_aside() {
    let wrong = [
        "",
        "[]",
        r#"{"version":2,"unhealthy":[]}"#,
        r#"{"version":1,"unhealthy":[{"service":"web","backend":"192.0.2.1:80","error":""}]}"#,
        r#"{"version":1,"unhealthy":[{"service":"shop/web","backend":"192.0.2.1","error":""}]}"#,
    ];
    for content in wrong {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        fs::write(&path, content).unwrap();
        let reported = read(&path).unwrap_err().to_string();
        assert!(reported.contains("; it has been renamed to "), "{reported}");
        assert_eq!(read(&path).unwrap(), Unhealthy::new());
        assert_eq!(fs::read_to_string(corrupt_path(&path)).unwrap(), content);
    }
}

#[test]
fn an_error_is_not_believed_at_any_length() {
    let text = format!("a\\nb{}", "x".repeat(10_000));
    let entry =
        format!(r#"{{"version":1,"unhealthy":[{{"service":"a/b","backend":"192.0.2.1:80","error":"{text}"}}]}}"#);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    fs::write(&path, entry).unwrap();
    let read = read(&path).unwrap();
    let error = read.values().flat_map(Quarantine::values).next().unwrap();
    assert!(error.starts_with("a\u{fffd}bxxx") && error.chars().count() == MAX_ERROR + 1, "{error}");
}

async fn is_written(path: &Path, expected: &Unhealthy) {
    while !path.exists() || read(path).unwrap() != *expected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn the_file_follows_and_only_when_something_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    let mut stored = load(directory.path(), LIMITS).await;
    assert_eq!(*stored.saved(), Unhealthy::new());
    stored.save(Unhealthy::new());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!path.exists(), "nothing to remember, nothing written");
    stored.save(unhealthy(&[1]));
    is_written(&path, &unhealthy(&[1])).await;
    stored.close(unhealthy(&[2])).await;
    assert_eq!(*load(directory.path(), LIMITS).await.saved(), unhealthy(&[2]));
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let mut stored = load(&state, LIMITS).await;
    fs::write(&state, "a file where the directory should be").unwrap();
    stored.save(unhealthy(&[1]));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(state.is_file());
    fs::remove_file(&state).unwrap();
    is_written(&state.join(NAME), &unhealthy(&[1])).await;
    stored.close(unhealthy(&[1])).await;
    assert_eq!(read(&state.join(NAME)).unwrap(), unhealthy(&[1]));
}

/// A pipe without a writer represents a disk that hangs: opening it is refused immediately.
#[tokio::test]
async fn what_is_not_a_file_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(&directory.path().join(NAME), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(*load(directory.path(), LIMITS).await.saved(), Unhealthy::new());
}

/// As on a file system that has become read-only: backends that have passed their checks since must stay in use.
#[tokio::test]
async fn results_that_may_be_outdated_are_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    write(&path, &unhealthy(&[1])).unwrap();
    fs::create_dir_all(directory.path().join("health.json.new/full")).unwrap();
    assert_eq!(*load(directory.path(), LIMITS).await.saved(), Unhealthy::new());
    assert!(path.exists());
}

/// A disk with errors at the start: what it had was replaced by what was found since then.
#[tokio::test]
async fn what_could_not_be_read_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let [state, aside] = ["state", "aside"].map(|name| directory.path().join(name));
    write(&aside.join(NAME), &unhealthy(&[1])).unwrap();
    fs::write(&state, "a file where the directory should be").unwrap();
    let mut stored = load(&state, LIMITS).await;
    fs::remove_file(&state).unwrap();
    fs::rename(&aside, &state).unwrap();
    stored.save(unhealthy(&[2]));
    stored.close(unhealthy(&[3])).await;
    assert_eq!(read(&state.join(NAME)).unwrap(), unhealthy(&[1]));
}
