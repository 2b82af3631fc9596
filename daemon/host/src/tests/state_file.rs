use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};

use nix::sys::stat::Mode;
use tracing::field::{Field, Visit};
use tracing::span;

use super::*;

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const LIMITS: Limits = Limits { every: Duration::ZERO, retry: Duration::from_millis(1), timeout: TIMEOUT };

/// The limits of a write that hangs.
const LIMIT: Duration = Duration::from_millis(200);
const SHORT: Limits = Limits { timeout: LIMIT, ..LIMITS };

/// Collects the messages that are logged.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|message| message.contains(text)).count()
    }
}

struct Message<'a>(&'a Journal);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Journal {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Message(self));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A file with writes that begin, and end with the result that the test sends.
struct World {
    file: StateFile<u32>,
    begun: Receiver<u32>,
    results: Sender<io::Result<()>>,
    journal: Journal,
    _subscriber: tracing::subscriber::DefaultGuard,
}

fn world(limits: Limits) -> World {
    let (begin, begun) = mpsc::channel();
    let (results, ends) = mpsc::channel();
    let ends = Mutex::new(ends);
    let journal = Journal::default();
    let subscriber = tracing::subscriber::set_default(journal.clone());
    let file = StateFile::start("dir/name".into(), "nothing follows", limits, move |path, contents| {
        assert_eq!(path, Path::new("dir/name"));
        begin.send(contents).map_err(io::Error::other)?;
        ends.lock().unwrap().recv().map_err(io::Error::other)?
    });
    World { file, begun, results, journal, _subscriber: subscriber }
}

impl World {
    async fn begun(&self) -> u32 {
        loop {
            match self.begun.try_recv() {
                Ok(contents) => return contents,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    async fn logs(&self, text: &str) {
        while self.journal.count(text) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn ends(&self, result: io::Result<()>) {
        self.results.send(result).unwrap();
    }
}

#[tokio::test]
async fn only_the_latest_contents_are_written_and_one_write_at_a_time() {
    let world = world(LIMITS);
    world.file.save(1);
    assert_eq!(world.begun().await, 1);
    world.file.save(2);
    world.file.save(3);
    tokio::time::sleep(LIMIT / 4).await;
    assert!(world.begun.try_recv().is_err(), "one at a time");
    world.ends(Ok(()));
    assert_eq!(world.begun().await, 3);
    world.ends(Ok(()));
    world.file.save(4);
    world.ends(Ok(()));
    world.file.close().await;
    assert_eq!(world.begun.try_recv(), Ok(4), "written at the end");
    assert!(world.journal.0.lock().unwrap().is_empty());
}

/// A file that has been written; newer contents wait for an hour.
#[tokio::test]
async fn writes_are_debounced_except_the_first_and_the_last() {
    let world = world(Limits { every: Duration::from_secs(3_600), ..LIMITS });
    (0..3).for_each(|_| world.ends(Ok(())));
    world.file.save(1);
    assert_eq!(world.begun().await, 1);
    world.file.save(2);
    tokio::time::sleep(LIMIT / 4).await;
    assert!(world.begun.try_recv().is_err());
    world.file.close().await;
    assert_eq!(world.begun.try_recv(), Ok(2));
}

#[tokio::test]
async fn a_write_that_blocks_holds_up_nothing() {
    let world = world(SHORT);
    world.file.save(1);
    world.file.save(2);
    world.logs("dir/name cannot be written: timed out after 200ms; nothing follows").await;
    // The write ends when `world` is dropped.
    timeout(TIMEOUT, world.file.close()).await.expect("not held up");
    assert_eq!(world.journal.count("timed out"), 2, "while it blocks, and at the end");
}

#[tokio::test]
async fn what_changed_while_a_write_blocked_is_written_after_it() {
    let world = world(SHORT);
    world.file.save(1);
    world.logs("timed out").await;
    world.file.save(2);
    world.ends(Ok(()));
    world.logs("dir/name has been written again").await;
    world.ends(Ok(()));
    world.file.close().await;
    assert_eq!(world.begun.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn a_write_that_fails_is_tried_again() {
    let world = world(LIMITS);
    world.file.save(1);
    for _ in 0..3 {
        world.ends(Err(io::Error::other("no room")));
        assert_eq!(world.begun().await, 1);
    }
    assert_eq!(world.journal.count("dir/name cannot be written: no room; nothing follows"), 1, "logged once");
    world.ends(Ok(()));
    assert_eq!(world.begun().await, 1);
    world.logs("has been written again").await;
    world.file.close().await;
    assert!(world.begun.try_recv().is_err());
}

#[tokio::test]
async fn a_failure_at_the_end_is_final() {
    let world = world(LIMITS);
    (0..4).for_each(|_| world.ends(Err(io::Error::other("no room"))));
    world.file.save(1);
    world.file.close().await;
    assert!(world.begun.try_iter().count() <= 2);
}

#[tokio::test]
async fn a_read_that_blocks_is_given_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pipe");
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    let blocking = |path: &Path| File::open(path).map(drop);
    assert_eq!(load(&path, LIMIT, "nothing follows", blocking).await, None);
    File::options().write(true).open(&path).expect("opened");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_listed_until_it_is_written() {
    let directory = Path::new("/nodelb-test-state-file");
    let may_write = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_writable = Arc::clone(&may_write);
    let limits = Limits { every: Duration::ZERO, retry: Duration::from_millis(5), ..LIMITS };
    let file = StateFile::start(directory.join("name"), "nothing follows", limits, move |_, _: u32| {
        let may_write = is_writable.load(std::sync::atomic::Ordering::SeqCst);
        if may_write { Ok(()) } else { Err(ErrorKind::ReadOnlyFilesystem.into()) }
    });
    file.save(1);
    let listed = |is_listed| async move {
        while unwritten::UNWRITTEN.below(directory).is_empty() == is_listed {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    listed(true).await;
    may_write.store(true, std::sync::atomic::Ordering::SeqCst);
    listed(false).await;
    file.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_read_is_unread_until_it_can() {
    let (answers_in, answers) = mpsc::channel();
    let answers = Mutex::new(answers);
    let directory = Path::new("/nodelb-test-reading");
    let mut reading = Reading::begin(directory.join("name"), "nothing follows", move |_| {
        answers.lock().expect("no panic").recv().expect("an answer")
    });
    // The disk hangs.
    assert_eq!(reading.within(START).await, None);
    let texts = || unwritten::UNREAD.below(directory).into_iter().map(|it| it.text).collect::<Vec<_>>();
    assert_eq!(texts(), ["/nodelb-test-reading/name cannot be read: timed out after 1s; nothing follows"]);
    // It answers with an error, and is asked again.
    answers_in.send(Err(io::Error::from_raw_os_error(nix::libc::EIO))).expect("read");
    answers_in.send(Ok(7)).expect("read");
    assert_eq!(reading.wait().await, 7);
    assert_eq!(texts(), [""; 0]);
}

#[tokio::test]
async fn an_error_of_the_disk_is_not_waited_for_and_a_damaged_file_is_empty() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file/name.json");
    fs::write(directory.path().join("file"), "{").expect("written");
    let read = |path: &Path| read_json::<u32>(path, 9, 1).map(Option::unwrap_or_default);
    // Without a deadline, as far as the test is concerned.
    assert_eq!(Reading::begin(path, "nothing follows", read).within(100 * LIMIT).await, None);
    let path = directory.path().join("file");
    assert_eq!(Reading::begin(path.clone(), "nothing follows", read).within(100 * LIMIT).await, Some(0));
    assert_eq!(unwritten::UNREAD.below(&path).len(), 1);
}

#[tokio::test]
async fn what_is_stored_is_in_the_file_when_that_is_said() {
    let world = world(Limits { retry: 100 * TIMEOUT, ..LIMITS });
    let (file, ends) = (&world.file, |result| world.ends(result));
    ends(Err(io::Error::other("no room")));
    assert_eq!(file.store(1).await.expect_err("no room").to_string(), "no room");
    // It is not delayed, unlike contents that no task waits for.
    ends(Ok(()));
    file.store(2).await.expect("stored");
    assert_eq!(world.begun.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn what_a_start_would_not_read_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.json");
    let contents = |text: &str| serde_json::json!({ "version": 1, "text": text });
    write_json(&path, 64, &contents("short")).unwrap();
    let refused = write_json(&path, 64, &contents(&"long".repeat(100))).unwrap_err();
    assert_eq!(refused.to_string(), "it would have 433 bytes, and a start reads at most 64");
    let read = read_json::<serde_json::Value>(&path, 64, 1).unwrap();
    assert_eq!(read, Some(contents("short")), "what was there");
}

/// What the disk did not answer in time was once taken for empty, and replaced.
#[tokio::test]
async fn contents_that_arrive_late_are_not_replaced_before() {
    let directory = tempfile::tempdir().expect("a directory");
    let (answers_in, answers) = mpsc::channel();
    let (answers, (written_in, written)) = (Mutex::new(answers), mpsc::channel());
    let path = directory.path().join("name");
    let read = move |_: &Path| answers.lock().expect("no panic").recv().map_err(io::Error::other);
    let limits = Limits { timeout: Duration::from_secs(60), ..LIMITS };
    let file = StateFile::start(path.clone(), "nothing follows", limits, move |_, contents: Arc<u32>| {
        written_in.send(*contents).map_err(io::Error::other)
    });
    tokio::time::pause();
    let mut state = SavedState::load(Reading::begin(path, "nothing follows", read), START, file).await;
    tokio::time::resume();
    assert_eq!(*state.saved(), 0);
    state.save(1);
    sleep_until(Instant::now() + Duration::from_millis(20)).await;
    assert_eq!(written.try_recv().ok(), None);
    answers_in.send(7).expect("read");
    assert_eq!((state.late().await, *state.saved()), (7, 7));
    state.save(7);
    state.close(8).await;
    assert_eq!(written.iter().collect::<Vec<_>>(), [8]);
}
