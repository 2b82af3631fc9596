use std::fs;
use std::path::Path;

use nodelb_core::config::EngineConfig;
use nodelb_core::engine::Engine;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::state::entries::Realised;
use nodelb_host::unwritten::UNREAD;
use tokio::time::timeout;

use super::*;
use crate::api::decode::{Key, Version};
use crate::apiserver::credentials::authorities::Authorities;
use crate::source::state_file::tests::{NODE, changes, snapshot, write};
use crate::source::state_file::{self, Loaded};

type Session = watch::Sender<Option<Arc<crate::apiserver::session::Session>>>;

struct Rig {
    /// A source that does not run.
    running: Running,
    changes: mpsc::Receiver<Vec<Change>>,
    _open: (Session, mpsc::Receiver<Report>, mpsc::Sender<Accept>, watch::Sender<Followed>),
}

/// The source with this state directory.
fn rig(directory: &Path, selection: Selection) -> Rig {
    let (session, of_session) = watch::channel(None);
    let (reports_in, reports) = mpsc::channel(8);
    let (changes_in, changes) = mpsc::channel(8);
    let (accepts_in, accepts) = mpsc::channel(1);
    let (followed_in, followed) = watch::channel(Followed::default());
    let engine = Engine::new(EngineConfig::default(), Realised::default());
    let source = KubernetesSource {
        apiservers: Apiservers { session: of_session, reports: reports_in },
        changes: changes_in,
        reports: watch::channel(Arc::default()).0,
        snapshot: watch::channel(Arc::new(engine.snapshot(Moment(0)))).1,
        followed,
        state: StateSettings {
            directory: directory.into(),
            cluster: Some(Authorities::for_test(&["ca"])),
            save_every: Duration::ZERO,
            save_soon: Duration::ZERO,
            timeout: Duration::from_secs(1),
        },
        selection,
        forward: Arc::default(),
        node: NODE.into(),
        clock: Clock::start(),
        has_node_object: true,
        in_maps: InMaps::default(),
        accepts,
        timeouts: WatchTimeouts::default(),
    };
    Rig { running: Running::new(source), changes, _open: (session, reports, accepts_in, followed_in) }
}

/// What the previous run has stored.
fn stored() -> Loaded {
    Loaded { changes: changes(), unreadable: 0, selection: Some(Selection::default()) }
}

/// The events of a complete list.
fn list(objects: Vec<ListWatchEvent>) -> Vec<ListWatchEvent> {
    let start = ListWatchEvent::ListStart { is_rewound: false };
    [start].into_iter().chain(objects).chain([ListWatchEvent::ListDone(Version(9))]).collect()
}

/// A disk with errors at the start, after a reboot without an apiserver: the services were unknown until one was reachable.
#[tokio::test(start_paused = true)]
async fn services_that_the_disk_has_late_are_recalled_then() {
    let directory = tempfile::tempdir().unwrap();
    let [state, aside] = ["state", "aside"].map(|name| directory.path().join(name));
    fs::create_dir(&aside).unwrap();
    write(&state_file::path(&aside), &Authorities::for_test(&["ca"]).names(), &snapshot()).unwrap();
    fs::write(&state, "a file where the directory should be").unwrap();
    let Rig { running, mut changes, _open } = rig(&state, Selection::default());
    let _task = tokio::spawn(run(running.source, std::future::pending()));
    let unread = || UNREAD.below(&state).len();
    while unread() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(changes.try_recv().is_err());
    fs::remove_file(&state).unwrap();
    fs::rename(&aside, &state).unwrap();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    let recalled = timeout(Duration::from_secs(60), changes.recv()).await.expect("recalled").unwrap();
    let mut expected = stored().changes;
    expected.push(Change::Recalled(Source::Kubernetes));
    assert_eq!((recalled, unread()), (expected, 0));
}

#[tokio::test]
async fn what_has_been_listed_is_newer_than_what_the_disk_has_late() {
    let directory = tempfile::tempdir().unwrap();
    let Rig { mut running, mut changes, _open } = rig(directory.path(), Selection::default());
    // The service is gone, its slice cannot be decoded, and the Node has not been listed.
    let undecodable = ListWatchEvent::Skipped { key: Some(Key::new("shop", "web-1")), reason: "bad".into() };
    _ = running.apply(0, list(Vec::new())).await;
    _ = running.recall(stored()).await;
    let recalled = changes.try_recv().unwrap();
    assert!(matches!(&recalled[..], [Change::NodeObject(Some(_)), Change::UpsertSlice(_)]), "{recalled:?}");
    _ = running.apply(1, list(vec![undecodable])).await;
    let synced = changes.try_recv().unwrap();
    assert_eq!(synced, [Change::Synced { source: Source::Kubernetes, incomplete: None }]);
    assert!(!running.saver.is_recall_sent);
}

#[tokio::test]
async fn a_selection_that_leaves_out_most_services_is_held_when_the_disk_is_late() {
    let directory = tempfile::tempdir().unwrap();
    let selection = Selection { namespaces: vec!["shopp".into()], ..Selection::default() };
    let Rig { mut running, mut changes, _open } = rig(directory.path(), selection);
    for number in 0..running.node {
        _ = running.apply(number, list(Vec::new())).await;
    }
    let synced = |incomplete| Change::Synced { source: Source::Kubernetes, incomplete };
    assert_eq!(changes.try_recv().unwrap(), [synced(None)]);
    _ = running.recall(stored()).await;
    let mut expected = stored().changes;
    let held = "kubernetes.namespaces = shopp selects 0 of 1 known services";
    expected.extend([Change::Recalled(Source::Kubernetes), synced(Some(held.into()))]);
    assert_eq!(changes.try_recv().unwrap(), expected);
    assert!(running.selecting.problem().is_some());
}
