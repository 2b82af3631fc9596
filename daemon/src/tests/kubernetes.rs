use nodelb_core::awaited::Awaited;
use nodelb_core::datapath::Datapath;
use nodelb_core::engine::{Engine, Kept};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{FrontendKind, FrontendSpec, Service, ServicePort};
use nodelb_host::unwritten::UNREAD;

use super::*;

fn known() -> Service {
    let spec = FrontendSpec { addr: "10.96.0.1".parse().unwrap(), port: 443, kind: FrontendKind::ClusterIP };
    let port = ServicePort { name: "https".into(), protocol: Protocol::Tcp, frontends: vec![spec] };
    Service { ports: vec![port], ..Service::new("default/kubernetes".parse().unwrap(), Source::Kubernetes) }
}

/// A state directory that knows Kubernetes, and a configuration with these keys.
fn after_a_reset(keys: &str) -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().unwrap();
    let service = serde_json::to_string(&Change::UpsertService(known())).unwrap();
    let text = format!("{{\"form\":2,\"clusters\":[\"a\"],\"node\":\"n\"}}\n{service}\n");
    std::fs::write(state_file::path(directory.path()), text).unwrap();
    let config = Config::parse(&format!("{keys}\n[state]\ndirectory = {:?}\n", directory.path())).unwrap();
    (directory, config)
}

async fn recalled(config: &Config) -> Vec<Change> {
    let (changes, mut recalled) = mpsc::channel(1);
    recall(config.clone(), previous_sources(config).await, "n".into(), changes).await;
    recalled.try_recv().unwrap_or_default()
}

/// What a power loss leaves of a file that was being written, also after a reboot.
#[tokio::test]
async fn an_empty_configuration_keeps_what_is_known_of_kubernetes() {
    let (_directory, config) = after_a_reset("");
    let mut datapath = MemoryDatapath::new(config.limits());
    let engine_config = crate::run::engine_config(&config, previous_sources(&config).await, datapath.limits().services);
    let mut engine = Engine::new(engine_config, datapath.dump().unwrap());
    recalled(&config).await.into_iter().for_each(|change| engine.change(change));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    engine.reconcile(&mut datapath, Moment(0));
    assert!(engine.is_ready(), "systemd is not kept waiting");
    let kept = Kept { source: Source::Kubernetes, ports: 1, because: Awaited::NotConfigured(Source::Kubernetes) };
    assert_eq!(engine.kept(), [kept]);
    let names: Vec<String> = engine.snapshot(Moment(0)).ports().map(|(_, key)| key.to_string()).collect();
    assert_eq!(names, ["default/kubernetes:https/TCP/IPv4"]);
}

/// A disk with errors at the start, after a reboot: the services were missing until the next start.
#[tokio::test(start_paused = true)]
async fn an_empty_configuration_keeps_what_the_disk_has_late_of_kubernetes() {
    let (scratch, mut config) = after_a_reset("");
    let [state, aside] = ["state", "aside"].map(|name| scratch.path().join(name));
    std::fs::create_dir(&aside).unwrap();
    std::fs::rename(state_file::path(scratch.path()), state_file::path(&aside)).unwrap();
    std::fs::write(&state, "a file where the directory should be").unwrap();
    config.state.directory = state.clone();
    let (changes, mut recalled) = mpsc::channel(1);
    let previous = previous_sources(&config).await;
    let _task = tokio::spawn(recall(config, previous, "n".into(), changes));
    while UNREAD.below(&state).is_empty() {
        tokio::task::yield_now().await;
    }
    std::fs::remove_file(&state).unwrap();
    std::fs::rename(&aside, &state).unwrap();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    assert_eq!(recalled.recv().await, Some(vec![Change::UpsertService(known())]));
}

#[tokio::test]
async fn what_is_switched_off_is_forgotten() {
    let (directory, config) = after_a_reset("[kubernetes]\nenabled = false");
    assert_eq!(disabled_sources(&config), BTreeSet::from([Source::Kubernetes]));
    assert_eq!(recalled(&config).await, []);
    assert!(!state_file::path(directory.path()).exists());
    assert_eq!(previous_sources(&config).await, BTreeSet::new());
}

/// For example because its file system hangs.
#[tokio::test]
async fn a_state_directory_that_does_not_answer_in_time_removes_nothing() {
    let (_directory, config) = after_a_reset("");
    std::fs::remove_file(state_file::path(&config.state.directory)).unwrap();
    assert_eq!(previous_sources(&config).await, BTreeSet::new());
    let hangs = || {
        std::thread::sleep(Duration::from_millis(500));
        Ok(false)
    };
    assert!(is_there(Duration::from_millis(1), hangs).await);
}
