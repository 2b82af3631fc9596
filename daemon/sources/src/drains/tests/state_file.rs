use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use tempfile::TempDir;

use super::*;

/// Reads the file like a start.
pub(in crate::drains) async fn load(path: &Path) -> All {
    Reading::begin(path.to_owned(), "nothing follows", read).wait().await.0
}

/// A file system that is frozen until [`Disk::thaw`].
pub(in crate::drains) struct Disk {
    pub(in crate::drains) directory: TempDir,
    thaw: mpsc::Sender<()>,
    /// The number of writes that have begun.
    begun: Arc<AtomicUsize>,
}

impl Disk {
    /// The first write hangs.
    pub(in crate::drains) fn frozen(written: &All) -> (Self, StateFile<Arc<All>>) {
        let directory = TempDir::new().expect("a directory");
        let path = path(directory.path());
        save(&path, written).expect("written");
        let (thaw, frozen) = mpsc::channel();
        let (frozen, begun) = (Mutex::new(frozen), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&begun);
        let file = start_with(path, move |path, all| {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                frozen.lock().expect("no panic").recv().expect("a thaw");
            }
            write(path, all)
        });
        (Self { directory, thaw, begun }, file)
    }

    pub(in crate::drains) fn thaw(&self) {
        self.thaw.send(()).expect("a write hangs");
    }

    pub(in crate::drains) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Waits until the write that hangs has begun.
    pub(in crate::drains) async fn hangs(&self) {
        while self.begun() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(in crate::drains) async fn contents(&self) -> All {
        load(&path(self.directory.path())).await
    }
}

fn save(path: &Path, all: &All) -> io::Result<()> {
    write(path, all)
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
    assert!(by.chars().count() <= MAX_AUTHOR + 1 && by.starts_with("\u{fffd}[2J"), "{by}");
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

/// A clock that is wrong for a moment neither ends nor prolongs a drain.
#[test]
fn a_drain_lasts_as_long_as_the_monotonic_clock_says() {
    const BOOT: i64 = 1_763_640_000;
    let begun = all();
    for by in [7_200, -7_200, -1_763_640_000] {
        let (mut moved, now) = (begun.clone(), 1_763_640_190_u64.saturating_add_signed(by));
        assert_eq!(follow_clock(&mut moved, BOOT, BOOT + by, now), [ServiceName::new("shop", "web")]);
        let drains = &moved[&ServiceName::new("shop", "web")];
        let ends: Vec<_> = drains.values().map(|it| it.until.map(|until| until.checked_signed_diff(now))).collect();
        assert!(ends.contains(&Some(Some(3_594))) && ends.contains(&None), "{by}: {ends:?}");
        follow_clock(&mut moved, BOOT + by, BOOT, 1_763_640_190);
        assert_eq!(moved, begun, "{by}");
    }
}

/// The machine has no clock of its own and starts in 1970.
#[test]
fn a_drain_of_an_earlier_boot_ends_at_its_time() {
    let mut kept = all();
    assert_eq!(follow_clock(&mut kept, 0, 1_763_643_000, 1_763_643_030), []);
    assert_eq!(kept, all());
    assert_eq!(follow_clock(&mut kept, 1_763_643_000, 1_763_650_200, 1_763_650_300), []);
    assert_eq!(kept, all());
}

#[test]
fn a_drain_follows_a_clock_that_is_set_while_nodelb_is_down() {
    let directory = TempDir::new().expect("a directory");
    let path = path(directory.path());
    let since = unix_now().saturating_sub(1);
    let drain = Drain { by: "root".into(), since, until: Some(since + 3_600) };
    let drains =
        All::from([(ServiceName::new("shop", "web"), [("192.0.2.11".parse().expect("a backend"), drain)].into())]);
    save(&path, &drains).expect("saved");
    let text = std::fs::read_to_string(&path).expect("read");
    let mut form: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let later = |value: &serde_json::Value| serde_json::json!(value.as_i64().expect("a number") + 7_200);
    form["set"] = later(&form["set"]);
    for time in ["since", "until"] {
        form["drains"][0][time] = later(&form["drains"][0][time]);
    }
    std::fs::write(&path, form.to_string()).expect("written");
    let (read, _) = read(&path).expect("read");
    let until = read.values().flat_map(Drains::values).next().and_then(|drain| drain.until).expect("an end");
    assert!(until.abs_diff(since + 3_600) <= 1, "the file says {form}");
}
