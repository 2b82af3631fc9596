use std::fs;

use nix::sys::stat::Mode;
use nodelb_core::config::EngineConfig;
use nodelb_core::engine::Engine;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::ServiceName;
use nodelb_core::state::entries::Realised;
use tempfile::TempDir;

use super::*;
use crate::api::objects;
use crate::api::translate::{self, Reader};

pub(in crate::source) const NODE: &str = "n1";

/// Writes the file as a run does that begins.
pub(in crate::source) fn write(path: &Path, clusters: &[String], snapshot: &Snapshot) -> io::Result<()> {
    Written::default().write(path, (clusters, &Selection::default()), snapshot)
}

pub(in crate::source) fn changes() -> Vec<Change> {
    let mut reader = Reader::new(Source::Kubernetes, "here".into());
    let service: objects::Service = serde_json::from_str(
        r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"7"},"spec":{"clusterIP":"198.51.100.1","ports":[{"port":80}]}}"#,
    )
    .expect("valid");
    let slice: objects::EndpointSlice = serde_json::from_str(
        r#"{"metadata":{"name":"web-1","namespace":"shop","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
            "endpoints":[{"addresses":["192.0.2.1"],"zone":"z","hints":{"forZones":[{"name":"z"}]}}],"ports":[{"port":80}]}"#,
    )
    .expect("valid");
    let service = translate::service(&service, &mut reader).0.expect("served");
    let slice = translate::slice(&slice, &mut reader).0.expect("served");
    let node = NodeObject { zone: "z1".into(), leaving: Some("tainted".into()), ..NodeObject::default() };
    vec![Change::NodeObject(Some(node)), Change::UpsertService(service), Change::UpsertSlice(slice)]
}

pub(in crate::source) fn snapshot() -> Snapshot {
    let config = EngineConfig { max_services: 16, ..EngineConfig::default() };
    let mut engine = Engine::new(config, Realised::default());
    engine.change(Change::Node(NodeFacts { name: NODE.into(), ..NodeFacts::default() }));
    changes().into_iter().for_each(|change| engine.change(change));
    engine.snapshot(Moment(0))
}

#[test]
fn what_is_written_is_what_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    assert_eq!(read(&path, None, NODE).expect("absent"), Loaded::default());
    let ca = Authorities::for_test(&["ca"]);
    write(&path, &ca.names(), &snapshot()).expect("written");
    write(&path, &ca.names(), &snapshot()).expect("written over");
    for cluster in [Some(&ca), None] {
        assert_eq!(
            read(&path, cluster, NODE).expect("read"),
            Loaded { changes: changes(), unreadable: 0, selection: Some(Selection::default()) }
        );
    }
}

/// A rollout among 10,000 services wrote 20 MB every five seconds.
#[test]
fn only_what_has_changed_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    let config = EngineConfig { max_services: 16, ..EngineConfig::default() };
    let mut engine = Engine::new(config, Realised::default());
    engine.change(Change::Node(NodeFacts { name: NODE.into(), ..NodeFacts::default() }));
    changes().into_iter().for_each(|change| engine.change(change));
    let [_, Change::UpsertService(web), Change::UpsertSlice(slice)] = &changes()[..] else { panic!("other changes") };
    let (mut slice, other) = (slice.clone(), ServiceName::new("shop", "other"));
    engine.change(Change::UpsertService(Service { name: other.clone(), ..web.clone() }));
    let mut written = Written::default();
    let mut save = |engine: &Engine| {
        let before = fs::read_to_string(&path).unwrap_or_default();
        written.write(&path, (&[], &Selection::default()), &engine.snapshot(Moment(0))).expect("written");
        let after = fs::read_to_string(&path).expect("read");
        after.strip_prefix(&*before).map(|added| added.lines().map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(save(&engine).map(|lines| lines.len()), Some(5), "everything");
    assert_eq!(save(&engine), Some(Vec::new()));
    for version in ["8", "9"] {
        slice.origin.resource_version = version.into();
        engine.change(Change::UpsertSlice(slice.clone()));
        let added = save(&engine).expect("the file is longer");
        assert!(added.len() == 1 && added[0].starts_with("{\"UpsertSlice\""), "{added:?}");
    }
    engine.change(Change::RemoveService(other.clone(), Source::Kubernetes));
    assert_eq!(save(&engine).map(|lines| lines.len()), Some(1));
    let mut expected = changes();
    expected[2] = Change::UpsertSlice(slice);
    assert_eq!(
        read(&path, None, NODE).expect("read"),
        Loaded { changes: expected, unreadable: 0, selection: Some(Selection::default()) }
    );
    engine.change(Change::Node(NodeFacts { name: "n2".into(), ..NodeFacts::default() }));
    assert_eq!(save(&engine), None, "the first line differs");
}

#[test]
fn objects_of_the_file_share_their_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    write(&path, &[], &snapshot()).expect("written");
    let changes = read(&path, None, NODE).expect("read").changes;
    let [_, Change::UpsertService(service), Change::UpsertSlice(slice)] = &changes[..] else { panic!("{changes:?}") };
    assert!(Arc::ptr_eq(&service.name.namespace, &slice.name.namespace));
    assert!(Arc::ptr_eq(&service.ports[0].name, &slice.ports[0].name));
    assert!(Arc::ptr_eq(&service.origin.object, &slice.origin.object));
    let backend = &slice.ports[0].backends[0];
    let hints = backend.hints.as_ref().expect("hints");
    assert!(Arc::ptr_eq(backend.zone.as_ref().expect("a zone"), &hints.zones[0]));
    assert_eq!((slice.ports.capacity(), slice.ports[0].backends.capacity()), (1, 1));
}

#[test]
fn the_state_of_another_cluster_or_form_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    write(&path, &["ca".into()], &snapshot()).expect("written");
    assert!(read(&path, Some(&Authorities::for_test(&["another"])), NODE).is_err());
    for text in ["", "{\"form\":1,\"cluster\":null}\n", "{\"form\":3}\n", "garbage\n", "\u{0}"] {
        fs::write(&path, text).expect("written");
        assert!(read(&path, None, NODE).is_err(), "{text:?}");
    }
}

#[test]
fn a_file_that_was_damaged_is_used_as_far_as_it_makes_sense() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    write(&path, &[], &snapshot()).expect("written");
    let text = fs::read_to_string(&path).expect("text");
    let removal = Change::RemoveService(ServiceName::new("a", "b"), Source::Files);
    let removal = serde_json::to_string(&removal).expect("JSON");
    fs::write(&path, format!("{text}{removal}\n{}", "{\"UpsertSlice\":{\"na")).expect("written");
    let remembered = read(&path, None, NODE).expect("read");
    assert_eq!(remembered.changes, changes());
    assert_eq!(remembered.unreadable, 2, "a change of another source, and half a line");
}

#[test]
fn a_state_is_of_everyone_who_vouched_for_the_cluster() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    let [old, both, new] = [&["old"][..], &["old", "new"], &["new"]].map(Authorities::for_test);
    // An earlier version wrote one name for the whole bundle.
    for written in [both.names(), vec![old.bundle(), both.bundle()]] {
        write(&path, &written, &snapshot()).expect("written");
        for cluster in [&old, &both, &Authorities::for_test(&["old", "new", "third"])] {
            assert_eq!(read(&path, Some(cluster), NODE).expect("read").changes, changes());
        }
        assert!(read(&path, Some(&Authorities::for_test(&["other"])), NODE).is_err());
    }
    write(&path, &old.names(), &snapshot()).expect("written");
    assert!(read(&path, Some(&both), NODE).is_ok(), "the bundle has gained a certificate authority");
    assert!(read(&path, Some(&new), NODE).is_err());
    write(&path, &[], &snapshot()).expect("written");
    assert!(read(&path, Some(&old), NODE).is_err(), "no certificate authority vouched for it");
    assert_eq!(read(&path, None, NODE).expect("read").changes, changes());
}

#[test]
fn neither_pipes_nor_links_are_read_or_written_to() {
    use nix::sys::stat::Mode;
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    assert!(read(&path, None, NODE).is_err());
    nix::unistd::mkfifo(&path.with_extension("new"), Mode::S_IRWXU).expect("a pipe");
    write(&path, &[], &snapshot()).expect("written");
    assert_eq!(read(&path, None, NODE).expect("read").changes, changes());
    let kept = directory.path().join("kept");
    fs::rename(&path, &kept).expect("renamed");
    std::os::unix::fs::symlink(&kept, &path).expect("a link");
    assert!(read(&path, None, NODE).is_err());
}

#[test]
fn a_node_that_was_missing_is_missing_still() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path(directory.path());
    let mut engine = Engine::new(EngineConfig::default(), Realised::default());
    engine.change(Change::Node(NodeFacts { name: NODE.into(), ..NodeFacts::default() }));
    let known = Change::NodeObject(Some(NodeObject { zone: "z1".into(), ..NodeObject::default() }));
    let reported = [known, Change::NodeObject(None)];
    reported.iter().cloned().for_each(|change| engine.change(change));
    write(&path, &[], &engine.snapshot(Moment(0))).expect("written");
    assert_eq!(read(&path, None, NODE).expect("read").changes, reported);
    assert_eq!(
        read(&path, None, "n2").expect("read"),
        Loaded { selection: Some(Selection::default()), ..Loaded::default() },
        "another node's, in a copied image"
    );
}

/// Pauses of tests, such as before they look whether something has not happened.
const A_WHILE: Duration = Duration::from_millis(50);

struct World {
    directory: TempDir,
    settings: StateSettings,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
}

fn world() -> World {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = StateSettings {
        directory: directory.path().to_owned(),
        cluster: None,
        save_every: Duration::ZERO,
        save_soon: Duration::ZERO,
        timeout: Duration::from_secs(60),
    };
    let mut engine = Engine::new(EngineConfig::default(), Realised::default());
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
    let (snapshots, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
    World { directory, settings, snapshot, snapshots }
}

impl World {
    fn path(&self) -> PathBuf {
        path(self.directory.path())
    }

    fn saver(&self) -> Saver {
        Saver::new(&self.settings, Selection::default(), self.snapshot.clone())
    }

    async fn is_written(&self, text: &str) {
        while !fs::read_to_string(self.path()).is_ok_and(|written| written.contains(text)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn a_pipe_in_place_of_the_state_is_nothing_remembered() {
    let mut world = world();
    world.settings.timeout = Duration::from_millis(200);
    nix::unistd::mkfifo(&world.path(), Mode::S_IRWXU).expect("a pipe");
    assert_eq!(world.settings.begin("n1").wait().await, Loaded::default());
}

#[tokio::test]
async fn a_write_that_fails_is_tried_again() {
    let world = world();
    let new = world.path().with_extension("new");
    fs::create_dir(&new).expect("in the way");
    let mut saver = world.saver();
    saver.set_authorities(&["ca".into()]);
    saver.save_if_outdated();
    tokio::time::sleep(A_WHILE).await;
    assert!(!world.path().exists());
    fs::remove_dir(&new).expect("out of the way");
    saver.close().await;
    assert!(fs::read_to_string(world.path()).expect("written").contains("\"ca\""));
}

#[tokio::test]
async fn the_file_belongs_to_every_certificate_authority_of_this_cluster() {
    let world = world();
    let mut saver = world.saver();
    for authority in ["old", "both", "both"] {
        saver.set_authorities(&[authority.to_owned()]);
    }
    saver.save_if_outdated();
    world.is_written(r#""clusters":["old","both"]"#).await;
    saver.forget_previous_cluster();
    saver.save_if_outdated();
    world.is_written(r#""clusters":["both"]"#).await;
    (0..20).for_each(|number| saver.set_authorities(&[number.to_string()]));
    saver.save_if_outdated();
    world.is_written(r#""clusters":["4","5","6","#).await;
    // All names of a bundle are stored, also after another bundle of the same cluster follows.
    let both = ["a".to_owned(), "b".to_owned()];
    saver.set_authorities(&both);
    saver.forget_previous_cluster();
    saver.close().await;
    let written = fs::read_to_string(world.path()).expect("written");
    assert!(written.contains(r#""clusters":["a","b"]"#), "{written}");
}

/// The owner task applies a change to a later snapshot than the one that is saved first.
#[tokio::test]
async fn a_snapshot_that_follows_a_change_is_saved_too() {
    let mut world = world();
    world.settings.save_every = A_WHILE;
    let mut saver = world.saver();
    saver.mark_outdated();
    saver.save_if_outdated();
    world.is_written("form").await;
    let mut engine = Engine::new(EngineConfig::default(), Realised::default());
    changes().into_iter().for_each(|change| engine.change(change));
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
    let later = Arc::new(engine.snapshot(Moment(0)));
    world.snapshots.send_replace(Arc::clone(&later));
    tokio::time::sleep(A_WHILE).await;
    saver.save_if_outdated();
    world.is_written("shop/web").await;
    // Without another change, nothing more is written.
    fs::remove_file(world.path()).expect("removed");
    world.snapshots.send_replace(later);
    saver.close().await;
    assert!(!world.path().exists());
}

/// The process may be killed before an apiserver is connected again, and the next start has nothing but the file.
#[tokio::test]
async fn what_changed_shortly_before_the_apiserver_was_lost_is_saved() {
    let mut world = world();
    world.settings.save_every = Duration::from_secs(3_600);
    let mut saver = world.saver();
    saver.set_connected(true);
    for number in 0..WRITES_IN_A_ROW {
        saver.set_authorities(&[format!("ca{number}")]);
        saver.save_if_outdated();
        world.is_written(&format!("\"ca{number}\"")).await;
    }
    saver.set_authorities(&["second".into()]);
    saver.save_if_outdated();
    tokio::time::sleep(A_WHILE).await;
    assert!(!fs::read_to_string(world.path()).expect("written").contains("\"second\""));
    saver.set_connected(false);
    saver.save_if_outdated();
    world.is_written("\"second\"").await;
    // Without another change, nothing more is written.
    fs::remove_file(world.path()).expect("removed");
    saver.set_connected(true);
    saver.set_connected(false);
    saver.save_if_outdated();
    tokio::time::sleep(A_WHILE).await;
    assert!(!world.path().exists());
}

#[tokio::test]
async fn a_written_snapshot_does_not_stay_in_memory() {
    let world = world();
    let mut saver = world.saver();
    saver.set_authorities(&["ca".into()]);
    saver.save_if_outdated();
    world.is_written("\"ca\"").await;
    let written = Arc::downgrade(&world.snapshot.borrow());
    world.snapshots.send_replace(Arc::default());
    let is_dropped = async {
        while written.upgrade().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), is_dropped).await.expect("it is dropped");
}

/// The source may not be synced again when the daemon ends: what it knows then has been shown, and a file that was recalled
/// loses nothing.
#[tokio::test]
async fn what_is_known_at_the_end_is_stored_before_the_source_is_synced_again() {
    let mut world = world();
    let ca = Authorities::for_test(&["ca"]);
    world.settings.cluster = Some(ca.clone());
    write(&world.path(), &ca.names(), &snapshot()).expect("written");
    let recalled = world.settings.begin(NODE).wait().await;
    assert_eq!(recalled.changes, changes());
    assert!(world.settings.is_whole(&recalled));
    let node = |leaving: &str| {
        let mut engine = Engine::new(EngineConfig { max_services: 16, ..EngineConfig::default() }, Realised::default());
        engine.change(Change::Node(NodeFacts { name: NODE.into(), ..NodeFacts::default() }));
        recalled.changes.iter().cloned().for_each(|change| engine.change(change));
        engine.change(Change::Recalled(Source::Kubernetes));
        let node = NodeObject { leaving: Some(leaving.into()), ..NodeObject::default() };
        engine.change(Change::NodeObject(Some(node)));
        Arc::new(engine.snapshot(Moment(0)))
    };
    world.snapshots.send_replace(node("first"));
    let mut saver = world.saver();
    saver.mark_outdated();
    saver.save_if_outdated();
    tokio::time::sleep(A_WHILE).await;
    let stored = || fs::read_to_string(world.path()).expect("the file stays");
    assert!(!stored().contains("first"), "no session has shown of which cluster the objects are");
    saver.set_authorities(&ca.names());
    saver.save_if_outdated();
    world.is_written("first").await;
    // The owner publishes its last snapshot while the file is being closed, and ends.
    let World { snapshots, .. } = &world;
    let last = async {
        tokio::time::sleep(A_WHILE).await;
        snapshots.send_replace(node("last"));
    };
    let closing = tokio::join!(saver.close(), last);
    assert_eq!(closing, ((), ()));
    assert!(stored().contains("last") && stored().contains("shop/web"), "{}", stored());
}

#[tokio::test]
async fn a_file_that_was_not_recalled_whole_is_replaced_only_when_the_source_is_synced() {
    let ca = Authorities::for_test(&["ca"]);
    let unsynced = Arc::new(snapshot());
    for (cluster, text) in [(None, ""), (Some(ca.clone()), "garbage\n"), (Some(Authorities::for_test(&["other"])), "")]
    {
        let mut world = world();
        world.settings.cluster = cluster;
        write(&world.path(), &ca.names(), &unsynced).expect("written");
        let before = fs::read_to_string(world.path()).expect("text") + text;
        fs::write(world.path(), &before).expect("written");
        let recalled = world.settings.begin(NODE).wait().await;
        assert!(!world.settings.is_whole(&recalled));
        world.snapshots.send_replace(Arc::clone(&unsynced));
        let mut saver = world.saver();
        saver.set_authorities(&["new".into()]);
        let World { snapshots, .. } = world;
        drop(snapshots);
        saver.close().await;
        assert_eq!(fs::read_to_string(path(&world.settings.directory)).expect("text"), before);
    }
}

/// A disk that hangs at the start.
#[tokio::test]
async fn a_file_that_has_not_been_read_is_not_replaced() {
    let world = world();
    let mut saver = world.saver();
    let (answer, answers) = std::sync::mpsc::channel();
    let answers = Mutex::new(answers);
    let read = move |_: &Path| answers.lock().expect("no panic").recv().map_err(io::Error::other);
    saver.unread = Some(Reading::begin(world.path(), "nothing follows", read));
    saver.set_authorities(&["ca".into()]);
    saver.save_if_outdated();
    tokio::time::sleep(A_WHILE).await;
    assert!(!world.path().exists());
    answer.send(Loaded::default()).expect("read");
    assert_eq!(Reading::late(&mut saver.unread).await, Loaded::default());
    saver.save_if_outdated();
    world.is_written("\"ca\"").await;
}

/// The owner task publishes what was recalled with its next round, and an apiserver may be connected before that.
#[tokio::test]
async fn a_file_that_was_recalled_is_not_replaced_before_a_snapshot_has_its_content() {
    let ca = Authorities::for_test(&["ca"]);
    let mut world = world();
    world.settings.cluster = Some(ca.clone());
    write(&world.path(), &ca.names(), &snapshot()).expect("written");
    let before = fs::read_to_string(world.path()).expect("text");
    let recalled = world.settings.begin(NODE).wait().await;
    assert!(world.settings.is_whole(&recalled));
    let stored = || fs::read_to_string(world.path()).expect("the file stays");
    let mut engine = Engine::new(EngineConfig { max_services: 16, ..EngineConfig::default() }, Realised::default());
    engine.change(Change::Node(NodeFacts { name: NODE.into(), ..NodeFacts::default() }));
    let [first, rest @ ..] = &recalled.changes[..] else { panic!("nothing was recalled") };
    // Nothing of the file, then a part of it.
    for change in [None, Some(first)] {
        change.into_iter().cloned().for_each(|change| engine.change(change));
        world.snapshots.send_replace(Arc::new(engine.snapshot(Moment(0))));
        let mut saver = world.saver();
        saver.set_authorities(&["new".into()]);
        saver.save_if_outdated();
        // The owner task does not end in time.
        saver.close().await;
        assert_eq!(stored(), before);
    }
    let mut saver = world.saver();
    saver.set_authorities(&["new".into()]);
    rest.iter().cloned().for_each(|change| engine.change(change));
    engine.change(Change::Recalled(Source::Kubernetes));
    world.snapshots.send_replace(Arc::new(engine.snapshot(Moment(0))));
    saver.save_if_outdated();
    world.is_written("\"new\"").await;
    assert!(stored().contains("shop/web"));
}

#[test]
fn a_change_is_written_soon_and_constant_change_once_a_minute() {
    let (soon, every) = (Duration::from_secs(5), Duration::from_secs(60));
    let start = Instant::now();
    let writes = |changes: &dyn Fn(u64) -> bool, seconds: u64| {
        let (mut pace, mut written, mut since, mut longest) = (Pace::new(soon, every, start), Vec::new(), None, 0_u64);
        for second in 0..seconds {
            since = since.or(changes(second).then_some(second));
            if let Some(changed) = since
                && pace.take(true, start + Duration::from_secs(second))
            {
                longest = longest.max(second - changed);
                since = None;
                written.push(second);
            }
        }
        (written.len(), longest)
    };
    assert_eq!(writes(&|second| second == 7, 600), (1, 0));
    // A rollout that takes a minute, every twenty minutes.
    let (count, longest) = writes(&|second| second % 1_200 < 60, 36_000);
    assert!(longest <= 5 && count <= 30 * 13, "{count} writes, {longest} s");
    // Something changes all the time.
    let (count, longest) = writes(&|_| true, 36_000);
    assert!(longest <= 60 && count <= 612, "{count} writes, {longest} s");
}
