use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use nodelb_datapath::is_open_for_writing;

use super::super::scan::{Seen, read};
use super::super::system::System;
use super::*;

const MS: Duration = Duration::from_millis(1);

/// A directory that has been scanned, and the time of the test.
struct Scanned {
    directory: tempfile::TempDir,
    files: Files,
    looks: Looks,
    notes: Notes,
    now: Instant,
}

impl Scanned {
    fn new(names: &[&str]) -> Self {
        let (directory, now) = (tempfile::tempdir().unwrap(), Instant::now());
        for name in names {
            std::fs::write(directory.path().join(name), "# nothing\n").unwrap();
        }
        let (files, looks, notes) = (Files::default(), Looks::new(now), Notes::default());
        let mut scanned = Self { directory, files, looks, notes, now };
        scanned.scan();
        scanned.pass(CONFIRM);
        scanned.scan();
        scanned
    }

    fn event(&mut self, name: &str) {
        self.notes.take(Some(name.into()), self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The names that the scan looks at; `None` if it is the whole directory.
    fn scan(&mut self) -> Option<BTreeSet<OsString>> {
        let hints = self.looks.begin(Some(&mut self.notes), &self.files, false, self.now);
        let path: &Path = self.directory.path();
        let mut listing = read(&System(is_open_for_writing), path, &Seen::default(), &hints).unwrap();
        (listing.begun, listing.ended) = (self.now, self.now);
        let extent = listing.extent.clone();
        self.files.accept(listing, false, SystemTime::now()).unwrap();
        self.looks.end(Some(&extent), &self.files, true, self.now);
        match extent {
            Extent::Whole => None,
            Extent::Names(names) => Some(names),
        }
    }

    /// The time until the next scan.
    fn pause(&self) -> Duration {
        self.looks.next(Some(&self.notes)) - self.now
    }
}

fn names<const N: usize>(names: [&str; N]) -> Option<BTreeSet<OsString>> {
    Some(names.map(OsString::from).into())
}

/// A change of one file among 50,000 cost 270 ms of CPU time.
#[test]
fn a_change_of_one_file_is_a_look_at_that_file() {
    let mut scanned = Scanned::new(&["a.toml", "b.toml"]);
    assert_eq!(scanned.pause(), LOOK_ANYWAY);
    scanned.event("b.toml");
    assert_eq!(scanned.pause(), SETTLE);
    scanned.pass(SETTLE);
    assert_eq!(scanned.scan(), names(["b.toml"]));
    assert_eq!(scanned.pause(), LOOK_ANYWAY - SETTLE, "it does not put off the look at all");
    scanned.pass(LOOK_ANYWAY - SETTLE);
    assert_eq!(scanned.scan(), None);
}

#[test]
fn a_file_that_is_not_found_is_looked_for_everywhere() {
    let mut scanned = Scanned::new(&["a.toml"]);
    std::fs::remove_file(scanned.directory.path().join("a.toml")).unwrap();
    scanned.event("a.toml");
    scanned.pass(SETTLE);
    assert_eq!(scanned.scan(), names(["a.toml"]));
    assert_eq!(scanned.pause(), CONFIRM);
    scanned.pass(CONFIRM);
    assert_eq!(scanned.scan(), None);
    assert!(scanned.files.iter().next().is_none());
}

/// A file that changed every 15 ms delayed each change of another one by 200 ms.
#[test]
fn a_file_that_changes_all_the_time_does_not_delay_another() {
    let mut scanned = Scanned::new(&["flaps.toml", "other.toml"]);
    let mut changed = None;
    for at in 0..1_000 {
        if at % 15 == 0 {
            scanned.event("flaps.toml");
        }
        if [300, 500, 550].contains(&at) {
            scanned.event("other.toml");
            changed = Some(scanned.now);
        }
        if scanned.pause() == Duration::ZERO {
            let looked = scanned.scan().is_some_and(|names| names.contains(&OsString::from("other.toml")));
            changed = changed.filter(|_| !looked);
        }
        assert!(changed.is_none_or(|changed| scanned.now < changed + SETTLE), "{at} ms");
        scanned.pass(MS);
    }
}

/// Otherwise, it would be gone from the first one before it is in the second one.
#[test]
fn a_service_that_moves_to_another_file_is_seen_in_both_at_once() {
    let mut scanned = Scanned::new(&["from.toml", "to.toml"]);
    scanned.event("from.toml");
    scanned.pass(10 * MS);
    scanned.event("to.toml");
    assert_eq!(scanned.pause(), SETTLE);
    scanned.pass(SETTLE);
    assert_eq!(scanned.scan(), names(["from.toml", "to.toml"]));
}

#[test]
fn events_without_end_delay_a_scan_by_a_fifth_of_a_second() {
    let mut scanned = Scanned::new(&[]);
    for number in 0..20 {
        assert!(scanned.pause() > Duration::ZERO);
        scanned.event(&format!("{number}.toml"));
        scanned.pass(10 * MS);
    }
    assert_eq!(scanned.pause(), Duration::ZERO);
}

#[test]
fn what_events_do_not_tell_is_looked_for_everywhere() {
    let mut scanned = Scanned::new(&["a.toml"]);
    scanned.notes.take(None, scanned.now);
    assert_eq!(scanned.scan(), None);
    scanned.event("a.toml");
    scanned.notes.lose(scanned.now);
    let hints = scanned.looks.begin(Some(&mut scanned.notes), &scanned.files, false, scanned.now);
    assert!(hints.everything && hints.only_in.is_none());
}

#[test]
fn a_file_being_written_is_read_again_without_the_others() {
    let mut scanned = Scanned::new(&["a.toml", "b.toml"]);
    let writer = std::fs::File::create(scanned.directory.path().join("b.toml")).unwrap();
    scanned.event("b.toml");
    scanned.scan();
    assert_eq!(scanned.pause(), POLL);
    scanned.pass(POLL / 2);
    scanned.event("a.toml");
    assert_eq!(scanned.scan(), names(["a.toml"]));
    assert_eq!(scanned.pause(), POLL / 2);
    scanned.pass(POLL / 2);
    assert_eq!(scanned.scan(), names(["b.toml"]));
    drop(writer);
}
