use std::io;
use std::sync::Arc;

use nodelb_core::model::service::BackendState;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::Clock;
use nodelb_host::unwritten;
use tokio::sync::{oneshot, watch};

use super::super::request::tests::Owner;
use super::super::state_file::tests::{Disk, load};
use super::*;

const TWO: [(&str, BackendState); 2] =
    [("192.0.2.11:8080", BackendState::Active), ("192.0.2.12:8080", BackendState::Active)];
const ONE: &str = "192.0.2.11:8080";

/// These backends of shop/web, drained.
pub(in crate::drains) fn drained(backends: &[&str]) -> All {
    let drain = Drain { by: "root".into(), since: 1, until: None };
    let drains = backends.iter().map(|backend| (backend.parse().unwrap(), drain.clone()));
    All::from([(ServiceName::new("shop", "web"), drains.collect())])
}

/// A drainer with an owner task.
struct Rig {
    requests: mpsc::Sender<Request>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
}

impl Rig {
    async fn start(directory: &Path) -> Self {
        let all = load(&state_file::path(directory)).await;
        Self::with(state_file::start(directory), all).await
    }

    /// After a restart: the maps are as these drains make them.
    async fn with(file: StateFile<Arc<All>>, all: All) -> Self {
        let maps = all.clone();
        Self::reading(file, &maps, move || Ok((all.clone(), Vec::new()))).await
    }

    /// With maps as these drains make them, and this file.
    async fn reading(
        file: StateFile<Arc<All>>,
        maps: &All,
        read: impl Fn() -> io::Result<Stored> + Send + Sync + 'static,
    ) -> Self {
        let (changes, mut received) = mpsc::channel::<Vec<Change>>(8);
        let mut owner = Owner::with(&TWO);
        let drained = maps.iter().map(|(name, drains)| Change::Drains(name.clone(), drains.clone(), None));
        let (publish, snapshot) = watch::channel(Arc::new(owner.send(drained)));
        tokio::spawn(async move {
            while let Some(changes) = received.recv().await {
                publish.send_replace(Arc::new(owner.send(changes)));
            }
        });
        let handle = OwnerHandle { changes, snapshot: snapshot.clone(), clock: Clock::start() };
        let reading = Reading::begin(file.path().to_owned(), "nothing follows", move |_| read());
        let requests = start_with(reading, file, &handle, std::future::pending()).await;
        Self { requests, snapshot }
    }

    async fn ask(&self, action: Action) -> Result<String, Refusal> {
        self.ask_for(ONE, action).await
    }

    async fn ask_for(&self, backend: &str, action: Action) -> Result<String, Refusal> {
        self.ask_about(Some(ServiceName::new("shop", "web")), backend, action).await
    }

    async fn ask_about(&self, service: Option<ServiceName>, backend: &str, action: Action) -> Result<String, Refusal> {
        let (reply, answer) = oneshot::channel();
        let wish = Wish { service, backend: backend.parse().unwrap(), action };
        self.requests.send(Request { wish, by: "root (login alice)".into(), reply }).await.unwrap();
        answer.await.unwrap()
    }

    async fn drain(&self, length: Option<u64>) -> Result<String, Refusal> {
        self.ask(Action::Drain { length: length.map(Duration::from_secs), is_forced: false }).await
    }

    /// The number of backends that new connections reach.
    fn used(&self) -> usize {
        let snapshot = self.snapshot.borrow();
        let entries = snapshot.realised.services.iter().map(|(_, entry)| entry.cluster.len());
        entries.max().unwrap_or_default()
    }

    async fn until_used(&mut self, number: usize) {
        let is_so = |snapshot: &Arc<Snapshot>| {
            snapshot.realised.services.iter().map(|(_, entry)| entry.cluster.len()).max() == Some(number)
        };
        let waited = timeout(Duration::from_secs(20), self.snapshot.wait_for(is_so)).await;
        drop(waited.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_drain_is_in_effect_when_it_is_answered_and_survives() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    assert_eq!(rig.used(), 2);
    let answer = rig.drain(None).await.unwrap();
    assert_eq!(answer, "192.0.2.11:8080 of shop/web is drained by root (login alice) until nodelb undrain");
    assert_eq!(rig.used(), 1);

    // As after a kill: the file is all that is left.
    let mut rig = Rig::start(directory.path()).await;
    rig.until_used(1).await;
    let answer = rig.ask(Action::Undrain).await.unwrap();
    assert_eq!(answer, "192.0.2.11:8080 of shop/web is no longer drained");
    assert_eq!(rig.used(), 2);
    assert!(matches!(rig.ask(Action::Undrain).await, Err(Refusal::Unknown(_))));
    assert_eq!(load(&state_file::path(directory.path())).await, All::new());
}

#[tokio::test]
async fn a_drain_ends_on_its_own_also_while_nodelb_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(directory.path()).await;
    // The second may be over when the answer is read.
    let mut other = Rig { requests: rig.requests.clone(), snapshot: rig.snapshot.clone() };
    let (answer, ()) = tokio::join!(rig.drain(Some(1)), other.until_used(1));
    answer.unwrap();
    rig.until_used(2).await;
    for length in [0, 367 * 86_400] {
        assert!(matches!(rig.drain(Some(length)).await, Err(Refusal::Invalid(_))), "{length}");
    }

    // The first daemon still has the other directory.
    let directory = tempfile::tempdir().unwrap();
    let over = Drain { by: "root".into(), since: 1_000, until: Some(4_600) };
    let all = All::from([(ServiceName::new("shop", "web"), [(ONE.parse().unwrap(), over)].into())]);
    let path = state_file::path(directory.path());
    state_file::write(&path, &all).unwrap();
    let mut read = load(&path).await;
    assert!(end_over(&mut read, 4_599, |_| true).is_empty() && end_over(&mut read, 4_600, |_| false).is_empty());
    let changes = end_over(&mut read, 4_600, |_| true);
    let [Change::Drains(_, left, Some(DrainCause::Ended(text)))] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((left.len(), &**text), (0, "end of the drain of 192.0.2.11:8080 by root after 1h"));
    assert!(read.is_empty());
    let mut rig = Rig::start(directory.path()).await;
    rig.until_used(2).await;
}

/// The end of a drain takes effect even if it cannot be stored: a restart must not begin it again.
#[tokio::test]
async fn a_drain_that_the_maps_show_to_have_ended_does_not_begin_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut maps = Owner::with(&TWO).send([]).realised;
    let ended = |backend: &str, maps: &MapState| {
        let mut all = drained(&[backend]);
        take_ended(&mut all, maps, |_| false) == [(ServiceName::new("shop", "web"), backend.parse().unwrap())]
            && all.is_empty()
    };
    assert!(ended(ONE, &maps) && ended("192.0.2.11", &maps) && !ended("192.0.2.13:8080", &maps));
    // A reboot.
    assert!(!ended(ONE, &MapState::default()));
    // The file was not written when the drain ended.
    let rig =
        Rig::reading(state_file::start(directory.path()), &All::new(), || Ok((drained(&[ONE]), Vec::new()))).await;
    assert!(matches!(rig.ask(Action::Undrain).await, Err(Refusal::Unknown(_))));
    assert_eq!(rig.used(), 2);
    maps = Owner::with(&TWO)
        .send([Change::Drains(
            ServiceName::new("shop", "web"),
            drained(&[ONE])[&ServiceName::new("shop", "web")].clone(),
            None,
        )])
        .realised;
    assert!(!ended(ONE, &maps), "it ends when the service is known, with an event");
}

/// It was forgotten by a restart while it gave way, so that its backend stayed in use when the others had returned.
#[test]
fn a_drain_that_had_given_way_outlives_a_restart() {
    let mut maps = Owner::with(&TWO[..1]).send([]).realised;
    let mut all = drained(&[ONE]);
    let is_apiserver = |at: L4Addr| ONE.parse::<Drained>().unwrap().includes((at.addr, at.port));
    assert_eq!(take_ended(&mut all, &maps, is_apiserver), []);
    assert_eq!(all, drained(&[ONE]));
    maps = Owner::with(&TWO).send([]).realised;
    assert_eq!(take_ended(&mut all, &maps, is_apiserver).len(), 1, "another backend is in use, so that it had ended");
}

/// Commands would replace what the file has.
#[tokio::test]
async fn drains_that_cannot_be_read_in_time_are_read_later_and_commands_refused_until_then() {
    let directory = tempfile::tempdir().unwrap();
    let (answer, answers) = std::sync::mpsc::channel();
    let answers = std::sync::Mutex::new(answers);
    let path = state_file::path(directory.path());
    tokio::time::pause();
    let read = move || Ok((answers.lock().unwrap().recv().map_err(io::Error::other)?, Vec::new()));
    let mut rig = Rig::reading(state_file::start(directory.path()), &All::new(), read).await;
    tokio::time::resume();
    assert_eq!(unwritten::UNREAD.below(directory.path()).len(), 1);
    for action in [Action::Drain { length: None, is_forced: true }, Action::Undrain] {
        let refusal = rig.ask(action).await.unwrap_err();
        assert!(matches!(&refusal, Refusal::Failed(text) if text.contains("has not been read")), "{refusal:?}");
    }
    tokio::time::sleep(2 * TICK_EVERY).await;
    assert!(!path.exists(), "nothing replaces what is unread");
    answer.send(drained(&["192.0.2.13:8080"])).unwrap();
    let is_read = |snapshot: &Arc<Snapshot>| snapshot.facts.drains(&ServiceName::new("shop", "web")).is_some();
    drop(timeout(Duration::from_secs(20), rig.snapshot.wait_for(is_read)).await.unwrap().unwrap());
    assert_eq!(unwritten::UNREAD.below(directory.path()), []);
    rig.drain(None).await.unwrap();
    assert_eq!(load(&path).await[&ServiceName::new("shop", "web")].len(), 2);
}

#[tokio::test]
async fn a_drain_that_cannot_be_stored_is_refused_and_an_undrain_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    rig.drain(None).await.unwrap();
    // No file can be created in a file.
    let state = directory.path().join("drains.json");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    let refusal = rig.drain(Some(60)).await.unwrap_err();
    assert!(matches!(&refusal, Refusal::Failed(text) if text.contains("is not drained: ")), "{refusal:?}");
    assert_eq!(rig.used(), 1, "the earlier one stays");
    let answer = rig.ask(Action::Undrain).await.unwrap();
    assert!(answer.ends_with("; this cannot be stored yet, see journalctl -u nodelb"), "{answer}");
    assert_eq!(rig.used(), 2);
}

/// A restart in between takes it back, because the maps offer the backend.
#[tokio::test]
async fn a_drain_that_is_refused_while_the_disk_hangs_is_not_in_the_file_afterwards() {
    let before = drained(&["192.0.2.12:8080"]);
    let (disk, file) = Disk::frozen(&before);
    let rig = Rig::with(file, before.clone()).await;
    tokio::time::pause();
    let refusal = rig.ask(Action::Drain { length: None, is_forced: true }).await.unwrap_err();
    tokio::time::resume();
    assert!(matches!(&refusal, Refusal::Failed(text) if text.contains("timed out")), "{refusal:?}");
    disk.hangs().await;
    tokio::time::sleep(2 * TICK_EVERY).await;
    assert_eq!((disk.begun(), rig.used()), (1, 1), "nothing is written while a write hangs");
    disk.thaw();
    let rolled_back = async {
        while disk.begun() < 2 || disk.contents().await != before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), rolled_back).await.unwrap();
    assert!(rig.ask(Action::Drain { length: None, is_forced: true }).await.is_ok());
    assert_eq!(disk.contents().await[&ServiceName::new("shop", "web")].len(), 2);
}

#[tokio::test]
async fn the_end_of_one_of_two_drains_says_that_the_backend_is_still_drained() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let drain = |length| Action::Drain { length, is_forced: false };
    rig.ask_for("192.0.2.11", drain(None)).await.unwrap();
    let by = "by root (login alice) until nodelb undrain";
    let answer = rig.ask(drain(None)).await.unwrap();
    assert_eq!(answer, format!("192.0.2.11:8080 of shop/web is drained {by}; 192.0.2.11 is drained {by}"));
    let answer = rig.ask(Action::Undrain).await.unwrap();
    let still = format!("192.0.2.11 is still drained {by}");
    assert_eq!(answer, format!("the drain of 192.0.2.11:8080 of shop/web has ended; {still}"));
    assert_eq!(rig.used(), 1);

    let mut all = drained(&["192.0.2.11"]);
    let over = Drain { by: "root".into(), since: 1, until: Some(4) };
    all.values_mut().for_each(|drains| drop(drains.insert(ONE.parse().unwrap(), over.clone())));
    let changes = end_over(&mut all, 4, |_| true);
    let [Change::Drains(_, _, Some(DrainCause::Ended(text)))] = &changes[..] else { panic!("{changes:?}") };
    let still = "192.0.2.11 is still drained by root until nodelb undrain";
    assert_eq!(**text, *format!("end of the drain of 192.0.2.11:8080 by root after 3s; {still}"));
}

/// A snapshot with the new drains may come before the maps have what follows.
#[test]
fn an_undrain_waits_until_the_maps_offer_the_backend() {
    let mut owner = Owner::with(&TWO);
    let (web, one) = (ServiceName::new("shop", "web"), ONE.parse().unwrap());
    let drains = drained(&[ONE])[&web].clone();
    let drained = owner.send([Change::Drains(web.clone(), drains, None)]);
    let mut then = owner.send([Change::Drains(web.clone(), Default::default(), None)]);
    assert!(has_desired(&drained, &web, one) && has_desired(&then, &web, one));
    then.realised = drained.realised;
    assert!(!has_desired(&then, &web, one));
}

/// A reboot of a host with fifty services was fifty commands.
#[tokio::test]
async fn a_host_is_drained_for_all_its_services_or_for_none() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(directory.path()).await;
    let drain = |is_forced| Action::Drain { length: None, is_forced };
    let ask = |backend, action| rig.ask_about(None, backend, action);
    let answer = ask("192.0.2.11", drain(false)).await.unwrap();
    assert_eq!(answer, "192.0.2.11 of shop/web is drained by root (login alice) until nodelb undrain");
    let refusal = ask("192.0.2.12", drain(false)).await.unwrap_err();
    let expected = "192.0.2.12 is the last healthy backend of shop/web on http/TCP/IPv4 (192.0.2.11:8080/TCP is \
                    Maintenance, drained by root (login alice) until nodelb undrain); drain it nevertheless with --force";
    assert_eq!(refusal, Refusal::Refused(expected.into()));
    let refusal = ask("192.0.2.13", drain(true)).await.unwrap_err();
    assert!(matches!(&refusal, Refusal::Unknown(text) if text.starts_with("no service has a backend 192.0.2.13; ")));
    assert_eq!(rig.used(), 1);
    ask("192.0.2.11", Action::Undrain).await.unwrap();
    assert_eq!(rig.used(), 2);
    let refusal = ask("192.0.2.11", Action::Undrain).await.unwrap_err();
    assert_eq!(refusal, Refusal::Unknown("192.0.2.11 is not drained for any service".into()));
}
