use std::fs::{self, File};

use nix::sys::stat::Mode;
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::engine::Engine;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::Realised;
use tempfile::TempDir;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(200);

struct World {
    directory: TempDir,
    _snapshots: watch::Sender<Arc<Snapshot>>,
    saver: Saver,
}

fn world() -> World {
    let directory = tempfile::tempdir().expect("a directory");
    let memory =
        Memory { directory: directory.path().to_owned(), cluster: None, save_every: Duration::ZERO, timeout: TIMEOUT };
    let mut engine = Engine::new(EngineConfig::default(), Realised::default());
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
    let (snapshots, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
    World { directory, _snapshots: snapshots, saver: Saver::new(memory, snapshot) }
}

impl World {
    fn path(&self) -> PathBuf {
        self.saver.path()
    }

    fn written(&self) -> String {
        fs::read_to_string(self.path()).expect("written")
    }
}

/// Blocks until a writer opens the named pipe at the path of the state file.
fn blocking(path: &Path, _: &[String], _: &Snapshot) -> io::Result<()> {
    File::open(path).map(drop)
}

fn unblock(path: &Path) {
    File::options().write(true).open(path).expect("opened");
}

#[tokio::test]
async fn a_pipe_in_place_of_the_state_is_nothing_remembered() {
    let world = world();
    nix::unistd::mkfifo(&world.path(), Mode::S_IRWXU).expect("a pipe");
    assert_eq!(world.saver.memory.recall("n1").await, []);
}

#[tokio::test]
async fn what_blocks_is_given_up() {
    let world = world();
    let path = world.path();
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    let opened = path.clone();
    let reading = aside(move || File::open(opened));
    assert!(timeout(TIMEOUT, reading).await.is_err());
    unblock(&path);
}

#[tokio::test]
async fn a_write_that_blocks_holds_up_nothing() {
    let mut world = world();
    let path = world.path();
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    world.saver.write = blocking;
    world.saver.set_cluster(&["ca".into()]);
    let begun = Instant::now();
    world.saver.tick();
    let first = world.saver.writing.as_ref().expect("being written").begun;
    world.saver.mark_behind();
    world.saver.tick();
    assert_eq!(world.saver.writing.as_ref().expect("still").begun, first, "one at a time");
    assert!(begun.elapsed() < TIMEOUT);
    tokio::time::sleep(TIMEOUT).await;
    world.saver.tick();
    assert!(world.saver.writing.as_ref().expect("still").was_reported, "the journal tells");
    let begun = Instant::now();
    world.saver.end().await;
    assert!(begun.elapsed() < 10 * TIMEOUT && world.saver.writing.is_some());
    world.saver.write = remember::write;
    unblock(&path);
    world.saver.end().await;
    assert!(world.written().contains("\"ca\""), "what changed meanwhile is written after it");
}

#[tokio::test]
async fn a_write_that_fails_is_tried_again() {
    let mut world = world();
    let new = world.path().with_extension("new");
    fs::create_dir(&new).expect("in the way");
    world.saver.set_cluster(&["ca".into()]);
    world.saver.end().await;
    assert!(world.saver.save_failed);
    fs::remove_dir(&new).expect("out of the way");
    world.saver.end().await;
    assert!(!world.saver.save_failed && world.written().contains("\"ca\""));
}

#[tokio::test]
async fn the_state_is_of_everyone_who_vouched_for_this_cluster() {
    let mut world = world();
    for authority in ["old", "both", "both"] {
        world.saver.set_cluster(&[authority.to_owned()]);
    }
    world.saver.end().await;
    assert!(world.written().contains(r#""clusters":["old","both"]"#), "{}", world.written());
    world.saver.forget_cluster();
    world.saver.end().await;
    assert!(world.written().contains(r#""clusters":["both"]"#), "{}", world.written());
    (0..20).for_each(|number| world.saver.set_cluster(&[number.to_string()]));
    world.saver.end().await;
    assert!(world.written().contains(r#""clusters":["4","5","6","#), "{}", world.written());
    // All names of a bundle are stored, also after another bundle of the same cluster follows.
    let both = ["a".to_owned(), "b".to_owned()];
    world.saver.set_cluster(&both);
    world.saver.forget_cluster();
    world.saver.end().await;
    assert!(world.written().contains(r#""clusters":["a","b"]"#), "{}", world.written());
    assert!(world.directory.path().exists());
}
