use tempfile::TempDir;

use super::*;

fn save(path: &Path, all: &All) -> io::Result<()> {
    write(path, all, &AtomicBool::new(false))
}

fn drain(until: Option<u64>) -> Drain {
    Drain { by: "root (login alice)".into(), since: 1_763_640_184, until }
}

fn all() -> All {
    let backends = [("192.0.2.11:8080", Some(1_763_643_784)), ("2001:db8::11", None)];
    let drains = backends.map(|(backend, until)| (backend.parse().expect("a backend"), drain(until)));
    All::from([(ServiceName::new("shop", "web"), drains.into())])
}

#[tokio::test]
async fn the_file_has_what_was_saved() {
    let directory = TempDir::new().expect("a directory");
    let path = path(&directory.path().join("state"));
    assert_eq!(load(&path).await, All::new());
    save(&path, &all()).expect("saved");
    assert_eq!(load(&path).await, all());
    save(&path, &All::new()).expect("saved");
    assert_eq!(load(&path).await, All::new());
}

#[tokio::test]
async fn a_damaged_file_is_put_aside() {
    let directory = TempDir::new().expect("a directory");
    let path = path(directory.path());
    for damaged in ["", "{", "[]", r#"{"version": 2, "drains": []}"#, r#"{"version": 1, "drains": [{}]}"#] {
        std::fs::write(&path, damaged).expect("written");
        assert_eq!(load(&path).await, All::new(), "{damaged}");
        assert!(!path.exists() && state_file::corrupt_path(&path).exists(), "{damaged}");
        save(&path, &all()).expect("saved");
        assert_eq!(load(&path).await, all());
    }
}

#[tokio::test]
async fn hostile_entries_do_no_harm() {
    let directory = TempDir::new().expect("a directory");
    let path = path(directory.path());
    let entry = |backend: &str, by: &str| {
        serde_json::json!({ "service": ServiceName::new("shop", "web"), "backend": backend, "by": by, "since": 1,
            "until": null })
    };
    let long = "x".repeat(10_000);
    let mut entries = vec![entry("nonsense", "root"), entry("192.0.2.11:1", &format!("\u{1b}[2J{long}"))];
    entries.extend((0..5_000).map(|number| entry(&format!("192.0.3.{}:{}", number / 200, number + 1), "root")));
    std::fs::write(&path, serde_json::json!({ "version": 1, "drains": entries }).to_string()).expect("written");
    let read = load(&path).await;
    let drains = &read[&ServiceName::new("shop", "web")];
    assert!(drains.len() <= MAX_DRAINS);
    let by = &drains[&"192.0.2.11:1".parse().expect("a backend")].by;
    assert!(by.len() <= MAX_AUTHOR && by.starts_with("[2J"), "{by}");
}

#[test]
fn an_entry_with_an_unreadable_backend_is_reported_and_the_others_are_in_effect() {
    let directory = TempDir::new().expect("a directory");
    let path = path(directory.path());
    save(&path, &all()).expect("saved");
    let text = std::fs::read_to_string(&path).expect("read").replace("2001:db8::11", "2001:db8:11");
    std::fs::write(&path, text).expect("written");
    let (read, unusable) = read(&path).expect("read");
    assert_eq!(read[&ServiceName::new("shop", "web")].len(), 1);
    let [(service, problem)] = &unusable[..] else { panic!("{unusable:?}") };
    assert_eq!(service, &ServiceName::new("shop", "web"));
    assert!(problem.starts_with("`2001:db8:11` is not an address"), "{problem}");
}
