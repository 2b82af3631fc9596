use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

const TIMEOUTS: StateFileTimeouts = StateFileTimeouts { every: Duration::ZERO, timeout: Duration::from_secs(20) };

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
    assert_eq!(read(&inner), Ok(Unhealthy::new()));
    write(&inner, &Unhealthy::new()).unwrap();
    write(&inner, &unhealthy(&[1, 2])).unwrap();
    assert_eq!(read(&inner), Ok(unhealthy(&[1, 2])));
    assert_eq!(fs::metadata(inner.join(NAME)).unwrap().permissions().mode() & 0o777, 0o600);
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
        let reported = read(directory.path()).unwrap_err();
        assert!(reported.contains("is not usable: ") && reported.contains("renamed to "), "{reported}");
        assert_eq!(read(directory.path()), Ok(Unhealthy::new()));
        assert_eq!(fs::read_to_string(state::place_aside(&path)).unwrap(), content);
    }
}

#[test]
fn an_error_is_not_believed_at_any_length() {
    let text = format!("a\\nb{}", "x".repeat(10_000));
    let entry =
        format!(r#"{{"version":1,"unhealthy":[{{"service":"a/b","backend":"192.0.2.1:80","error":"{text}"}}]}}"#);
    let read = understand(entry.as_bytes()).unwrap();
    let error = read.values().flat_map(Quarantine::values).next().unwrap();
    assert!(error.starts_with("abxxx") && error.len() == MAX_ERROR, "{error}");
}

async fn written(memory: &mut Memory, now: &Unhealthy) {
    memory.mark_behind();
    while !memory.is_due() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    memory.keep(now.clone()).await;
    while !memory.is_due() && memory.writing.is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn the_file_follows_and_only_when_something_changes() {
    let directory = tempfile::tempdir().unwrap();
    let (mut memory, before) = Memory::open(directory.path().into(), TIMEOUTS).await;
    assert_eq!(before, Unhealthy::new());
    assert!(!memory.is_due());
    written(&mut memory, &Unhealthy::new()).await;
    assert!(!directory.path().join(NAME).exists(), "nothing to remember, nothing written");
    written(&mut memory, &unhealthy(&[1])).await;
    assert_eq!(read(directory.path()), Ok(unhealthy(&[1])));
    memory.end(unhealthy(&[2])).await;
    assert_eq!(Memory::open(directory.path().into(), TIMEOUTS).await.1, unhealthy(&[2]));
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    fs::write(&state, "a file where the directory should be").unwrap();
    let (mut memory, _) = Memory::open(state.clone(), TIMEOUTS).await;
    written(&mut memory, &unhealthy(&[1])).await;
    memory.keep(unhealthy(&[1])).await;
    assert!(memory.has_failed);
    fs::remove_file(&state).unwrap();
    memory.end(unhealthy(&[1])).await;
    assert_eq!(read(&state), Ok(unhealthy(&[1])));
}

/// A pipe without a writer represents a disk that hangs: opening it is refused immediately.
#[tokio::test]
async fn what_is_not_a_file_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(&directory.path().join(NAME), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(Memory::open(directory.path().into(), TIMEOUTS).await.1, Unhealthy::new());
}
