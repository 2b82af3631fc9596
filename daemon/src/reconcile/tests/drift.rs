use nodelb_core::state::entries::ServiceId;
use nodelb_core::state::kernel_check::Content;
use tokio::sync::oneshot;

use super::*;
use crate::datapath::fake::FakeDatapath;

/// A checker with maps that contain one service too many, or that cannot be read.
struct Rig {
    asked: Arc<Notify>,
    owner: mpsc::Receiver<Vec<EntryKey>>,
    seen: watch::Receiver<Arc<DriftReport>>,
    _stop: oneshot::Sender<()>,
}

fn rig(read: fn() -> Result<Content, String>) -> Rig {
    let reports = Reports::default();
    let asked = Arc::new(Notify::new());
    let (suspects, owner) = mpsc::channel(1);
    let checker = Checker {
        datapath: Arc::new(FakeDatapath { content: Box::new(read), ..FakeDatapath::default() }),
        suspects,
        snapshot: watch::channel(Arc::default()).1,
        reports: reports.clone(),
        asked: Arc::clone(&asked),
        clock: Clock::start(),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(checker.run(async move { drop(stopped.await) }));
    Rig { asked, owner, seen: reports.subscribe(), _stop: stop }
}

fn one_too_many() -> Result<Content, String> {
    let mut content = Content::default();
    content.state.services.insert(ServiceId(7), Arc::default());
    Ok(content)
}

#[tokio::test(start_paused = true)]
async fn what_looks_wrong_is_handed_to_the_owner_every_few_minutes_or_on_demand() {
    let mut rig = rig(one_too_many);
    let begin = tokio::time::Instant::now();
    assert_eq!(rig.owner.recv().await.unwrap(), [EntryKey::Service(ServiceId(7))]);
    assert_eq!(begin.elapsed().as_secs(), CHECK_EVERY.as_secs());
    rig.asked.notify_one();
    assert!(rig.owner.recv().await.is_some());
    rig.seen.wait_for(|report| report.checks == 2).await.unwrap();
    assert!(begin.elapsed() < CHECK_EVERY * 2);
}

#[tokio::test(start_paused = true)]
async fn maps_that_cannot_be_read_are_no_drift_and_no_check() {
    let mut rig = rig(|| Err("map frontends: no".into()));
    let seen = rig.seen.wait_for(|report| report.error.is_some()).await.unwrap().clone();
    assert_eq!((seen.checks, seen.last_check), (0, None));
    assert!(rig.owner.is_empty());
}

#[test]
fn repairs_are_counted_by_kind() {
    let reports = Reports::default();
    count(&reports, LINK, 2);
    count(&reports, LINK, 1);
    count(&reports, "frontend", 4);
    assert_eq!(reports.borrow().repaired, BTreeMap::from([("frontend", 4), (LINK, 3)]));
}
