use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::time::Duration;

use tokio::time::timeout;

use super::super::known::Files;
use super::super::looks::Looks;
use super::super::scan::Hints;
use super::*;

/// What the next scan looks at; `None` if there is no reason for one.
async fn hints(watch: &mut Watch) -> Option<Hints> {
    let noted = async {
        while watch.notes.due().is_none() {
            watch.changed().await.unwrap();
        }
    };
    timeout(Duration::from_millis(100), noted).await.ok()?;
    let now = Instant::now();
    Some(Looks::new(now).begin(Some(&mut watch.notes), &Files::default(), false, now))
}

async fn reason(watch: &mut Watch) -> bool {
    hints(watch).await.is_some()
}

#[tokio::test]
async fn a_file_being_written_is_a_reason_only_when_it_is_closed() {
    let scratch = tempfile::tempdir().unwrap();
    let mut watch = Watch::new().unwrap();
    watch.followed(watch.follower().follow(scratch.path()));
    let mut file = fs::File::create(scratch.path().join("a.toml")).unwrap();
    assert!(reason(&mut watch).await, "it appeared");
    file.write_all(b"x").unwrap();
    assert!(!reason(&mut watch).await);
    drop(file);
    assert_eq!(hints(&mut watch).await.unwrap().touched, BTreeSet::from(["a.toml".into()]));
    assert!(!reason(&mut watch).await, "once");
}

#[tokio::test]
async fn a_directory_that_goes_and_comes_is_followed() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("services.d");
    let mut watch = Watch::new().unwrap();
    watch.followed(watch.follower().follow(&directory));
    fs::write(scratch.path().join("unrelated"), "").unwrap();
    assert!(!reason(&mut watch).await);
    fs::create_dir(&directory).unwrap();
    assert!(reason(&mut watch).await, "it appeared");
    watch.followed(watch.follower().follow(&directory));
    fs::write(directory.join("a.toml"), "").unwrap();
    assert!(reason(&mut watch).await);
    let aside = scratch.path().join("aside");
    fs::rename(&directory, &aside).unwrap();
    assert!(reason(&mut watch).await, "it went");
    watch.followed(watch.follower().follow(&directory));
    while reason(&mut watch).await {}
    fs::write(aside.join("b.toml"), "").unwrap();
    assert!(!reason(&mut watch).await, "it is another directory now");
    fs::rename(&aside, &directory).unwrap();
    assert!(reason(&mut watch).await, "it came back");
    watch.followed(watch.follower().follow(&directory));
    fs::remove_file(directory.join("a.toml")).unwrap();
    assert!(reason(&mut watch).await);
}

#[tokio::test]
async fn lost_events_mean_that_everything_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let mut watch = Watch::new().unwrap();
    watch.followed(watch.follower().follow(scratch.path()));
    let (a, b) = (scratch.path().join("a.toml"), scratch.path().join("b.toml"));
    fs::write(&a, "").unwrap();
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for _ in 0..limit {
        fs::rename(&a, &b).unwrap();
        fs::rename(&b, &a).unwrap();
    }
    assert!(hints(&mut watch).await.unwrap().everything);
}
