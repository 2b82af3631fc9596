use std::fs;
use std::path::Path;

use nodelb_core::history::Kernel;
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{PortKey, Source};
use tempfile::TempDir;

use super::*;

#[path = "recorder/file.rs"]
mod file;

/// Short intervals for writes, and long limits for waiting.
const LIMITS: Limits =
    Limits { every: Duration::from_millis(1), retry: Duration::from_millis(1), timeout: Duration::from_secs(60) };

struct Daemon {
    started: StartedRecorder,
}

impl Daemon {
    fn start(directory: &Path) -> Self {
        let event = Event::for_daemon(What::Started, "for a test");
        Self { started: start(directory.into(), event, LIMITS) }
    }

    /// Waits until this number is the last one recorded.
    async fn reaches(&mut self, last: u64) -> Arc<History> {
        self.started.published.history.wait_for(|history| history.last() >= last).await.unwrap().clone()
    }

    async fn end(self) {
        drop(self.started.reporter);
        self.started.task.await.unwrap();
    }
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn changed() -> Event {
    let (port, protocol) = ("http".into(), nodelb_core::model::addr::Protocol::Tcp);
    let service = "shop/web".parse().unwrap();
    let key = PortKey { service, port, protocol, family: nodelb_core::model::addr::Family::Ipv4 };
    let event = Event::for_port(&Arc::new(key), Some(Source::Files), What::Changed, Cause::default());
    Event { kernel: Kernel::Done, ..event }
}

fn whats(history: &History) -> Vec<(u64, What, bool)> {
    history.after(0).map(|record| (record.sequence, record.event.what, record.is_from_before)).collect()
}

#[tokio::test]
async fn a_restart_goes_on_where_the_last_run_ended() {
    let directory = directory();
    let mut daemon = Daemon::start(directory.path());
    let mut round = Round::default();
    (round.events, round.done) = (vec![changed()], 1);
    daemon.started.reporter.report(&mut round, Taken::now(), Duration::from_millis(1));
    let history = daemon.reaches(2).await;
    assert_eq!(whats(&history), [(1, What::Started, false), (2, What::Changed, false)]);
    assert!(history.after(1).all(|record| record.to_kernel.is_some()));
    let latencies = &daemon.started.published.latencies;
    assert_eq!((latencies.rounds.get(), latencies.done.get()), (1, 1));
    daemon.end().await;

    let mut daemon = Daemon::start(directory.path());
    let history = daemon.reaches(3).await;
    let next = 3 + LEFT_OUT;
    assert_eq!(whats(&history), [(1, What::Started, true), (2, What::Changed, true), (next, What::Started, false)]);
    daemon.end().await;
}

/// A daemon that is killed at any time leaves the records that it has published shortly before.
#[tokio::test]
async fn records_are_written_while_it_runs() {
    let directory = directory();
    let mut daemon = Daemon::start(directory.path());
    for number in 0..3 {
        daemon.started.reporter.record(vec![changed()], Taken::now());
        daemon.reaches(number + 2).await;
        while read_files(directory.path()).unwrap().records.len() < usize::try_from(number + 2).unwrap() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_written_does_not_block_readers() {
    let directory = directory();
    let state = directory.path().join("state");
    let mut daemon = Daemon::start(&state);
    daemon.reaches(1).await;
    while !file_path(&state).exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fs::remove_dir_all(&state).unwrap();
    fs::write(&state, "a file where the directory was").unwrap();
    daemon.started.reporter.record(vec![changed()], Taken::now());
    daemon.reaches(2).await;
    fs::remove_file(&state).unwrap();
    fs::create_dir(&state).unwrap();
    while read_files(&state).unwrap().records.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    daemon.end().await;
    let numbers: Vec<u64> = read_files(&state).unwrap().records.iter().map(|record| record.sequence).collect();
    assert_eq!(numbers, [2]);
}

#[tokio::test]
async fn a_directory_of_no_use_costs_the_file_only() {
    let directory = directory();
    let blocked = directory.path().join("file");
    fs::write(&blocked, "not a directory").unwrap();
    let mut daemon = Daemon::start(&blocked.join("state"));
    daemon.started.reporter.record(vec![changed()], Taken::now());
    assert_eq!(whats(&*daemon.reaches(2).await).len(), 2);
    daemon.end().await;
}

/// The recorder waits for a disk that hangs: the owner continues, and lost events are counted.
#[tokio::test]
async fn the_owner_never_waits() {
    let (to, mut from) = mpsc::channel(1);
    let mut reporter = Reporter { to, latencies: Latencies::default(), lost: 0 };
    for _ in 0..4 {
        reporter.record(vec![changed(), changed()], Taken::now());
    }
    assert_eq!(from.recv().await.unwrap().events.len(), 2);
    reporter.record(vec![changed()], Taken::now());
    let events = from.recv().await.unwrap().events;
    let said: Vec<Option<&str>> = events.iter().map(|event| event.detail.as_deref()).collect();
    assert_eq!(said, [None, Some("the queue is full: 6 more changes not recorded")]);
}

/// The disk answers when the run has events already.
#[tokio::test]
async fn records_that_are_read_late_come_before_those_of_this_run() {
    let directory = directory();
    let daemon = Daemon::start(directory.path());
    daemon.end().await;
    let (publish, mut history) = watch::channel(Arc::default());
    let (to, from) = mpsc::channel(QUEUE);
    let (latencies, limits) = (Latencies::default(), LIMITS);
    let directory = directory.path().to_owned();
    let mut recorder = Recorder { from, publish, latencies, history: History::default(), directory, limits };
    recorder.take(Batch { events: vec![changed()], stamp: Stamp { at: 7, to_kernel: 8 } });
    let file = recorder.restore(find(&recorder.directory).unwrap());
    let first = whats(&history.borrow_and_update())[0];
    assert_eq!((first, whats(&recorder.history).len()), ((1, What::Started, true), 2));
    let now = recorder.history.after(1).next().unwrap();
    assert_eq!((now.sequence, now.event.what, now.at, now.to_kernel), (LEFT_OUT + 2, What::Changed, 7, Some(8)));
    file.save(recorder.publish.borrow().clone());
    file.close().await;
    assert_eq!(find(&recorder.directory).unwrap().records.len(), 2, "the new one is stored");
    drop(to);
}

/// One tenant that changes all the time filled both files.
#[test]
fn what_one_service_changes_removes_no_other_one_from_the_files() {
    let (directory, mut history) = (directory(), History::default());
    let event = |name: &str| {
        let event = changed();
        let port = event.port.map(|port| Arc::new(PortKey { service: name.parse().unwrap(), ..PortKey::clone(&port) }));
        Event { port, ..event }
    };
    history.add(event("shop/quiet"), Stamp::default());
    let (mut written, mut files) = (0, 0);
    for batch in 0_u32..20 {
        for number in 0..3_000 {
            history.add(event(&format!("busy/s{}", (batch + number) % 200)), Stamp::default());
        }
        let records: Vec<_> = history.after(written).cloned().collect();
        append(directory.path(), &records, &history).unwrap();
        written = history.last();
        files += u32::from(fs::metadata(file_path(directory.path())).unwrap().len() < MAX_FILE / 2);
    }
    assert!(files > 1, "the files are replaced more than once");
    let stored = stored(directory.path()).unwrap();
    assert_eq!(stored.of_service(&"shop/quiet".parse().unwrap()).count(), 1);
    assert_eq!((stored.len(), stored.last()), (history.len(), history.last()));
}
