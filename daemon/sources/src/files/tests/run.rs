use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;

use nodelb_core::source_report::SourceState;
use nodelb_datapath::is_open_for_writing;
use nodelb_host::clock::Clock;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::known::CONFIRM;
use super::*;

fn service(name: &str, backend: &str) -> String {
    format!("[[service]]\nname = \"a/{name}\"\nfrontends = [\"198.51.100.1:80\"]\nbackends = [\"{backend}:80\"]\n")
}

/// Longer than a busy machine takes, also for its disk.
const LATE: Duration = Duration::from_secs(60);

/// The handle of an owner task that a test plays.
fn owner(changes: mpsc::Sender<Vec<Change>>) -> OwnerHandle {
    OwnerHandle { changes, snapshot: watch::channel(Arc::default()).1, clock: Clock::start() }
}

/// A running source on a temporary directory, and the state that its owner would have.
struct TestDirectory {
    scratch: tempfile::TempDir,
    directory: PathBuf,
    reload: watch::Sender<PathBuf>,
    changes: mpsc::Receiver<Vec<Change>>,
    reports: watch::Receiver<Arc<FileReports>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    services: BTreeSet<String>,
    synced: Vec<Option<Arc<str>>>,
    batches: usize,
}

impl TestDirectory {
    /// Starts a source on a directory that `prepare` fills; it gets the path.
    fn start(prepare: impl FnOnce(&Path)) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        prepare(&scratch.path().join("services.d"));
        Self::start_in(scratch)
    }

    fn start_in(scratch: tempfile::TempDir) -> Self {
        let unread = last_valid::begin(&scratch.path().join("state"));
        Self::start_reading(scratch, unread)
    }

    /// With this as what the previous run has stored.
    fn start_reading(scratch: tempfile::TempDir, unread: Reading<Option<LastValid>>) -> Self {
        let directory = scratch.path().join("services.d");
        let (reload, directory_reported) = watch::channel(directory.clone());
        let (sender, changes) = mpsc::channel(4);
        let (reporter, reports) = watch::channel(Arc::default());
        let (stop, stopped) = oneshot::channel();
        let source = FileSource {
            directory: directory_reported,
            owner: owner(sender),
            reports: reporter,
            is_open: is_open_for_writing,
        };
        let stopped = async { _ = stopped.await };
        let running = RunningFileSource::new(source, &scratch.path().join("state"), unread);
        let task = tokio::spawn(running.run(stopped));
        let (services, synced) = (BTreeSet::new(), Vec::new());
        Self { scratch, directory, reload, changes, reports, stop, task, services, synced, batches: 0 }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).unwrap();
    }

    fn take(&mut self, batch: Vec<Change>) {
        self.batches += 1;
        for change in batch {
            match change {
                Change::UpsertService(service) => {
                    self.services.insert(service.name.to_string());
                }
                Change::RemoveService(name, _) => {
                    self.services.remove(&name.to_string());
                }
                Change::Synced { incomplete, .. } => self.synced.push(incomplete),
                _ => {}
            }
        }
    }

    /// Waits until the services have these names.
    async fn expect(&mut self, services: &[&str]) {
        let expected: BTreeSet<_> = services.iter().map(|name| (*name).to_owned()).collect();
        while self.services != expected || self.synced.is_empty() {
            match timeout(LATE, self.changes.recv()).await {
                Ok(Some(batch)) => self.take(batch),
                other => panic!("{other:?} while waiting for {services:?} with {:?}", self.services),
            }
        }
    }

    /// Checks that no change arrives for a while.
    async fn expect_quiet(&mut self) {
        if let Ok(batch) = timeout(Duration::from_millis(350), self.changes.recv()).await {
            panic!("{batch:?}");
        }
    }

    /// Waits until a row has this state and problem.
    async fn expect_row(&mut self, name: &str, state: SourceState, problem: &str) {
        let says = |reports: &Arc<FileReports>| {
            reports.rows().any(|row| {
                row.path.ends_with(name)
                    && row.state == state
                    && (problem.is_empty() == row.problems.is_empty())
                    && row.problems.iter().all(|found| found.contains(problem))
            })
        };
        let found = timeout(LATE, self.reports.wait_for(says)).await.is_ok();
        assert!(found, "{name} {state} {problem}: {:#?}", self.reports.borrow());
    }

    async fn stop(self) {
        self.stop_and(|_| {}).await;
    }

    /// Stops the source; `meanwhile` gets the path of the directory.
    async fn stop_and(self, meanwhile: impl FnOnce(&Path)) -> tempfile::TempDir {
        self.stop.send(()).unwrap();
        timeout(LATE, self.task).await.unwrap().unwrap();
        meanwhile(&self.directory);
        self.scratch
    }

    async fn restart(self, meanwhile: impl FnOnce(&Path)) -> Self {
        Self::start_in(self.stop_and(meanwhile).await)
    }
}

fn with_directory(directory: &Path) {
    fs::create_dir(directory).unwrap();
}

#[tokio::test]
async fn files_come_change_and_go() {
    let mut test = TestDirectory::start(|directory| {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("a.toml"), service("one", "192.0.2.1")).unwrap();
    });
    test.expect(&["a/one"]).await;
    assert_eq!(test.synced, [None]);
    test.write("b.toml", &service("two", "192.0.2.1"));
    test.expect(&["a/one", "a/two"]).await;
    // A file is replaced atomically, edited in place, renamed, removed.
    test.write(".b.toml.new", &service("three", "192.0.2.1"));
    fs::rename(test.directory.join(".b.toml.new"), test.directory.join("b.toml")).unwrap();
    test.expect(&["a/one", "a/three"]).await;
    test.write("b.toml", &service("four", "192.0.2.1"));
    test.expect(&["a/one", "a/four"]).await;
    fs::rename(test.directory.join("b.toml"), test.directory.join("c.toml")).unwrap();
    test.expect_row("c.toml", SourceState::Ok, "").await;
    test.expect(&["a/one", "a/four"]).await;
    fs::remove_file(test.directory.join("c.toml")).unwrap();
    test.expect(&["a/one"]).await;
    fs::hard_link(test.directory.join("a.toml"), test.directory.join("0.toml")).unwrap();
    test.expect_row("a.toml", SourceState::Ok, "already defined by").await;
    assert_eq!(test.synced, [None]);
    test.stop().await;
}

#[tokio::test]
async fn the_same_content_again_tells_nothing() {
    let mut test = TestDirectory::start(with_directory);
    test.expect(&[]).await;
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.write("unrelated.txt", "x");
    test.expect_quiet().await;
    test.stop().await;
}

#[tokio::test]
async fn a_write_in_two_halves_is_seen_whole() {
    let mut test = TestDirectory::start(with_directory);
    let (one, two) = (service("one", "192.0.2.1"), service("two", "192.0.2.1"));
    test.write("a.toml", &(one.clone() + &two));
    test.expect(&["a/one", "a/two"]).await;
    // The first half alone is a valid file, without the second service.
    let mut file = fs::File::create(test.directory.join("a.toml")).unwrap();
    file.write_all(one.as_bytes()).unwrap();
    test.write("b.toml", &service("three", "192.0.2.1"));
    test.expect(&["a/one", "a/two", "a/three"]).await;
    test.expect_quiet().await;
    file.write_all(service("four", "192.0.2.1").as_bytes()).unwrap();
    drop(file);
    test.expect(&["a/one", "a/three", "a/four"]).await;
    test.stop().await;
}

#[tokio::test]
async fn a_bad_edit_keeps_the_last_good_content_and_a_fix_heals() {
    let mut test = TestDirectory::start(with_directory);
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.write("b.toml", &service("two", "192.0.2.1"));
    test.expect(&["a/one", "a/two"]).await;
    test.write("a.toml", "[[service]]\nname = 1\n");
    test.expect_row("a.toml", SourceState::LastGood, "line ").await;
    test.write("b.toml", &service("three", "192.0.2.1"));
    test.expect(&["a/one", "a/three"]).await;
    test.write("a.toml", &service("four", "192.0.2.1"));
    test.expect(&["a/four", "a/three"]).await;
    test.expect_row("a.toml", SourceState::Ok, "").await;
    assert_eq!(test.synced, [None]);
    test.stop().await;
}

#[tokio::test]
async fn a_file_that_was_never_good_is_incomplete_until_it_is() {
    let mut test = TestDirectory::start(|directory| {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("a.toml"), service("one", "192.0.2.1")).unwrap();
        fs::write(directory.join("b.toml"), "bad").unwrap();
    });
    test.expect(&["a/one"]).await;
    assert!(test.synced[0].as_ref().unwrap().ends_with("b.toml cannot be used; correct or remove it"));
    test.expect_row("b.toml", SourceState::Error, "line 1").await;
    test.write("b.toml", &service("two", "192.0.2.1"));
    test.expect(&["a/one", "a/two"]).await;
    assert_eq!(test.synced.len(), 2);
    assert_eq!(test.synced[1], None);
    test.stop().await;
}

#[tokio::test]
async fn a_directory_that_goes_removes_nothing() {
    let mut test = TestDirectory::start(with_directory);
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    let aside = test.directory.with_extension("aside");
    fs::rename(&test.directory, &aside).unwrap();
    test.expect_row("services.d", SourceState::LastGood, "cannot be read").await;
    test.expect_quiet().await;
    // A file instead of the directory, then an empty directory as after a lost mount.
    fs::write(&test.directory, "").unwrap();
    test.expect_quiet().await;
    fs::remove_file(&test.directory).unwrap();
    fs::create_dir(&test.directory).unwrap();
    test.expect_row("services.d", SourceState::LastGood, "another, empty directory").await;
    fs::remove_dir(&test.directory).unwrap();
    fs::write(aside.join("b.toml"), service("two", "192.0.2.1")).unwrap();
    fs::rename(&aside, &test.directory).unwrap();
    test.expect(&["a/one", "a/two"]).await;
    test.expect_row("services.d", SourceState::Ok, "").await;
    test.stop().await;
}

#[tokio::test]
async fn a_directory_that_comes_late_is_synced_then() {
    let mut test = TestDirectory::start(|_| {});
    test.expect_row("services.d", SourceState::Error, "cannot be read").await;
    test.expect_quiet().await;
    fs::create_dir(&test.directory).unwrap();
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    assert_eq!(test.synced, [None]);
    test.stop().await;
}

#[tokio::test]
async fn a_reload_believes_an_empty_directory_only_if_it_is_another_one() {
    let mut test = TestDirectory::start(with_directory);
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    fs::rename(&test.directory, test.directory.with_extension("aside")).unwrap();
    fs::create_dir(&test.directory).unwrap();
    test.expect_row("services.d", SourceState::LastGood, "another, empty directory").await;
    // The file system is not mounted, and the reload is because of another key.
    test.reload.send_replace(test.directory.clone());
    test.expect_quiet().await;
    test.expect_row("services.d", SourceState::LastGood, "another, empty directory").await;
    let other = test.scratch.path().join("other.d");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("a.toml"), service("two", "192.0.2.1")).unwrap();
    test.reload.send_replace(other);
    test.expect(&["a/two"]).await;
    let empty = test.scratch.path().join("empty.d");
    fs::create_dir(&empty).unwrap();
    test.reload.send_replace(empty);
    test.expect(&[]).await;
    test.stop().await;
}

/// A ConfigMap as the kubelet mounts it: files are links through `..data`, which is replaced by a new directory.
#[tokio::test]
async fn a_reload_during_a_scan_is_no_error_of_the_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("services.d");
    with_directory(&directory);
    fs::write(directory.join("a.toml"), service("one", "192.0.2.1")).unwrap();
    let (reload, directory_reported) = watch::channel(directory.clone());
    let (sender, mut changes) = mpsc::channel(4);
    let source = FileSource {
        directory: directory_reported,
        owner: owner(sender),
        reports: watch::channel(Arc::default()).0,
        is_open: is_open_for_writing,
    };
    let state = scratch.path().join("state");
    let mut running = RunningFileSource::new(source, &state, last_valid::begin(&state));
    for _ in 0..100 {
        let (is_open, _) = tokio::join!(running.scan(true), async { reload.send_replace(directory.clone()) });
        assert_eq!((is_open, running.trouble.as_deref()), (true, None));
        assert!(running.source.directory.has_changed().unwrap(), "the next scan is for the reload");
    }
    sleep(CONFIRM).await;
    running.scan(true).await;
    let changes: Vec<Change> = std::iter::from_fn(|| changes.try_recv().ok()).flatten().collect();
    assert!(changes.iter().any(|change| matches!(change, Change::Synced { .. })), "{changes:?}");
}

#[tokio::test]
async fn a_configmap_swap_is_seen() {
    let mut test = TestDirectory::start(|directory| {
        fs::create_dir_all(directory.join("..v1")).unwrap();
        fs::write(directory.join("..v1/a.toml"), service("one", "192.0.2.1")).unwrap();
        symlink("..v1", directory.join("..data")).unwrap();
        symlink("..data/a.toml", directory.join("a.toml")).unwrap();
    });
    test.expect(&["a/one"]).await;
    fs::create_dir(test.directory.join("..v2")).unwrap();
    fs::write(test.directory.join("..v2/a.toml"), service("two", "192.0.2.1")).unwrap();
    symlink("..v2", test.directory.join("..data_tmp")).unwrap();
    fs::rename(test.directory.join("..data_tmp"), test.directory.join("..data")).unwrap();
    fs::remove_dir_all(test.directory.join("..v1")).unwrap();
    test.expect(&["a/two"]).await;
    test.stop().await;
}

#[tokio::test]
async fn many_quick_writes_end_in_the_last() {
    let mut test = TestDirectory::start(with_directory);
    test.expect(&[]).await;
    let before = test.batches;
    for i in 0..300 {
        test.write("a.toml", &service(&format!("s{i}"), "192.0.2.1"));
        test.write(&format!("b{i}.toml"), "#");
    }
    test.write("a.toml", &service("last", "192.0.2.1"));
    test.expect(&["a/last"]).await;
    assert!(test.batches - before < 50, "{} batches", test.batches - before);
    test.stop().await;
}

#[tokio::test]
async fn a_fifo_does_not_block_the_source() {
    let mut test = TestDirectory::start(with_directory);
    nix::unistd::mkfifo(&test.directory.join("a.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    test.write("b.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    test.expect_row("a.toml", SourceState::Error, "a FIFO").await;
    test.stop().await;
}

#[tokio::test]
async fn it_ends_when_the_owner_does() {
    let test = TestDirectory::start(with_directory);
    drop(test.changes);
    timeout(LATE, test.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_inotify_the_directory_is_looked_at_now_and_then() {
    let scratch = tempfile::tempdir().unwrap();
    let (_reload, directory) = watch::channel(scratch.path().to_path_buf());
    let (sender, mut changes) = mpsc::channel(4);
    let source = FileSource {
        directory,
        owner: owner(sender),
        reports: watch::channel(Arc::default()).0,
        is_open: is_open_for_writing,
    };
    let state = scratch.path().join("state");
    let source = RunningFileSource { watch: None, ..RunningFileSource::new(source, &state, last_valid::begin(&state)) };
    let task = tokio::spawn(source.run(std::future::pending()));
    let synced = changes.recv().await.unwrap();
    assert_eq!(synced, [Change::Synced { source: Source::Files, incomplete: None }]);
    fs::write(scratch.path().join("a.toml"), service("one", "192.0.2.1")).unwrap();
    let added = timeout(LATE, changes.recv()).await.unwrap().unwrap();
    assert!(matches!(&added[..], [Change::UpsertSlice(_), Change::UpsertService(_)]), "{added:?}");
    task.abort();
}

/// A reviewer made a file invalid before a restart: its services were no longer described, so a failed health check was
/// never repeated, and another file could claim their addresses.
#[tokio::test]
async fn a_file_that_is_invalid_at_a_restart_is_served_as_before() {
    let mut test = TestDirectory::start(with_directory);
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.write("b.toml", &service("two", "192.0.2.1"));
    test.write("c.toml", "bad");
    test.expect(&["a/one", "a/two"]).await;
    test.expect_row("c.toml", SourceState::Error, "line 1").await;
    let mut test = test
        .restart(|directory| {
            fs::write(directory.join("a.toml"), "bad").unwrap();
            fs::write(directory.join("b.toml"), service("three", "192.0.2.1")).unwrap();
        })
        .await;
    test.expect(&["a/one", "a/three"]).await;
    test.expect_row("a.toml", SourceState::LastGood, "line 1").await;
    test.expect_row("c.toml", SourceState::Error, "line 1").await;
    assert!(test.synced[0].as_ref().unwrap().ends_with("c.toml cannot be used; correct or remove it"));
    // Also over a second restart, and until the file is corrected or removed.
    let mut test = test.restart(|directory| fs::remove_file(directory.join("c.toml")).unwrap()).await;
    test.expect(&["a/one", "a/three"]).await;
    assert_eq!(test.synced, [None]);
    fs::remove_file(test.directory.join("a.toml")).unwrap();
    test.expect(&["a/three"]).await;
    let mut test = test.restart(|directory| fs::write(directory.join("a.toml"), "bad").unwrap()).await;
    test.expect(&["a/three"]).await;
    test.expect_row("a.toml", SourceState::Error, "line 1").await;
    test.stop().await;
}

#[tokio::test]
async fn a_directory_that_is_missing_at_a_restart_removes_nothing() {
    let mut test = TestDirectory::start(with_directory);
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    let aside = |directory: &Path| directory.with_extension("aside");
    let mut test = test.restart(|directory| fs::rename(directory, aside(directory)).unwrap()).await;
    test.expect(&["a/one"]).await;
    test.expect_row("services.d", SourceState::LastGood, "cannot be read").await;
    // What is stored may be older than the maps.
    assert!(
        matches!(&test.synced[..], [Some(what)] if what.ends_with("services.d cannot be read")),
        "{:?}",
        test.synced
    );
    // The mount point, without its mount.
    let mut test = test.restart(|directory| fs::create_dir(directory).unwrap()).await;
    test.expect(&["a/one"]).await;
    test.expect_row("services.d", SourceState::LastGood, "another, empty directory").await;
    fs::remove_dir(&test.directory).unwrap();
    fs::rename(aside(&test.directory), &test.directory).unwrap();
    test.expect_row("services.d", SourceState::Ok, "").await;
    test.write("b.toml", &service("two", "192.0.2.1"));
    test.expect(&["a/one", "a/two"]).await;
    // A directory that is the same and empty was emptied.
    let mut test = test
        .restart(|directory| {
            ["a.toml", "b.toml"].iter().for_each(|name| fs::remove_file(directory.join(name)).unwrap());
        })
        .await;
    test.expect(&[]).await;
    test.stop().await;
}

/// A disk with errors at the start: the last valid version of an invalid file was replaced by none.
#[tokio::test]
async fn a_state_file_that_cannot_be_read_is_not_replaced() {
    let mut test = TestDirectory::start(with_directory);
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    let aside = |directory: &Path| directory.with_file_name("aside");
    let state = |directory: &Path| directory.with_file_name("state");
    let mut test = test
        .restart(|directory| {
            fs::rename(state(directory), aside(directory)).unwrap();
            fs::write(state(directory), "a file where the directory should be").unwrap();
            fs::write(directory.join("a.toml"), "bad").unwrap();
            fs::write(directory.join("b.toml"), service("two", "192.0.2.1")).unwrap();
        })
        .await;
    test.expect(&["a/two"]).await;
    assert!(test.synced[0].as_ref().unwrap().ends_with("a.toml cannot be used; correct or remove it"));
    fs::remove_file(state(&test.directory)).unwrap();
    fs::rename(aside(&test.directory), state(&test.directory)).unwrap();
    test.write("c.toml", &service("three", "192.0.2.1"));
    test.expect(&["a/three", "a/two"]).await;
    let mut test = test.restart(|_| {}).await;
    test.expect(&["a/one", "a/three", "a/two"]).await;
    test.stop().await;
}

/// What a disk has stored that hangs until it gets an answer to give.
fn hanging(scratch: &Path) -> (Reading<Option<LastValid>>, std::sync::mpsc::Sender<()>) {
    let (answer, answers) = std::sync::mpsc::channel();
    let (answers, state) = (std::sync::Mutex::new(answers), scratch.join("state"));
    let read = move |_: &Path| {
        answers.lock().unwrap().recv().map_err(io::Error::other)?;
        last_valid::read(&state.join("services.jsonl"))
    };
    (Reading::begin(scratch.join("state"), "nothing follows", read), answer)
}

#[tokio::test]
async fn a_file_that_is_invalid_at_a_restart_is_served_as_before_when_the_disk_answers_late() {
    let mut test = TestDirectory::start(with_directory);
    for (file, name) in [("a.toml", "one"), ("b.toml", "two"), ("gone.toml", "gone")] {
        test.write(file, &service(name, "192.0.2.1"));
    }
    test.expect(&["a/gone", "a/one", "a/two"]).await;
    let edit = |directory: &Path| {
        fs::write(directory.join("a.toml"), "bad").unwrap();
        fs::write(directory.join("b.toml"), service("new", "192.0.2.1")).unwrap();
        fs::remove_file(directory.join("gone.toml")).unwrap();
    };
    let scratch = test.stop_and(edit).await;
    let (unread, answer) = hanging(scratch.path());
    let mut test = TestDirectory::start_reading(scratch, unread);
    test.expect(&["a/new"]).await;
    test.write("b.toml", "bad");
    test.expect_row("b.toml", SourceState::LastGood, "line 1").await;
    answer.send(()).unwrap();
    test.expect(&["a/new", "a/one"]).await;
    test.expect_row("a.toml", SourceState::LastGood, "line 1").await;
    assert_eq!(test.synced.last(), Some(&None));
    let mut test = test.restart(|_| {}).await;
    test.expect(&["a/new", "a/one"]).await;
    test.stop().await;
}

/// The mount point, without its mount.
#[tokio::test]
async fn an_empty_directory_is_not_believed_while_the_state_file_is_unread() {
    let mut test = TestDirectory::start(with_directory);
    test.write("a.toml", &service("one", "192.0.2.1"));
    test.expect(&["a/one"]).await;
    let aside = |directory: &Path| directory.with_extension("aside");
    let unmount = |directory: &Path| {
        fs::rename(directory, aside(directory)).unwrap();
        fs::create_dir(directory).unwrap();
    };
    let scratch = test.stop_and(unmount).await;
    let (unread, answer) = hanging(scratch.path());
    let mut test = TestDirectory::start_reading(scratch, unread);
    test.expect(&[]).await;
    assert!(test.synced[0].as_ref().is_some_and(|what| what.ends_with("services.jsonl cannot be read")));
    answer.send(()).unwrap();
    test.expect(&["a/one"]).await;
    test.expect_row("services.d", SourceState::LastGood, "another, empty directory").await;
    assert!(test.synced.iter().all(Option::is_some), "{:?}", test.synced);
    test.stop().await;
}
