use std::sync::atomic::{AtomicU64, Ordering};

use nodelb_core::datapath::Count;
use nodelb_core::history::{Event, History, Stamp, What};

use super::*;
use crate::admin::fixture;
use crate::connections::Connections;
use crate::datapath::fake::FakeDatapath;
use crate::devices::DeviceOutputs;
use crate::recorder;
use crate::world::World;

/// A hub, and the sender of its history.
fn hub() -> (Arc<Hub>, watch::Sender<Arc<History>>) {
    let (publish, history) = watch::channel(Arc::default());
    let mut state = fixture::unsynced();
    state.recorder = recorder::RecorderOutputs { history, ..state.recorder };
    (Arc::new(Hub::new(Arc::new(state))), publish)
}

fn record(publish: &watch::Sender<Arc<History>>, detail: &str) {
    publish.send_modify(|history| {
        Arc::make_mut(history).add(Event::for_daemon(What::Started, detail), Stamp::default());
    });
}

fn text(message: &Bytes) -> String {
    String::from_utf8(message.to_vec()).unwrap()
}

/// The names of the events in a message.
fn events(message: &str) -> Vec<&str> {
    message.lines().filter_map(|line| line.strip_prefix("event: ")).collect()
}

#[test]
fn a_new_page_gets_everything_and_then_only_changes() {
    let (hub, publish) = hub();
    record(&publish, "first");
    let (all, mut messages) = hub.join();
    assert_eq!(events(&text(&all)), ["services", "history", "apiservers", "limits", "sources", "status"]);
    assert!(text(&all).contains("first") && text(&all).contains(r#""all":true"#), "{all:?}");
    hub.send(false);
    assert!(messages.try_recv().is_err(), "nothing has changed");
    record(&publish, "second");
    hub.send(false);
    let message = text(&messages.try_recv().unwrap());
    assert_eq!(events(&message), ["history"]);
    assert!(message.contains("second") && !message.contains("first"), "{message}");
}

#[test]
fn a_beat_shows_that_the_daemon_responds() {
    let (hub, _publish) = hub();
    let (_, mut messages) = hub.join();
    hub.send(true);
    assert_eq!(events(&text(&messages.try_recv().unwrap())), ["beat"]);
}

#[test]
fn every_page_gets_the_same_bytes() {
    let (hub, publish) = hub();
    let ((one, mut first), (two, mut second)) = (hub.join(), hub.join());
    assert_eq!(one.as_ptr(), two.as_ptr(), "the second page does not render everything again");
    record(&publish, "news");
    hub.send(false);
    assert_eq!(first.try_recv().unwrap().as_ptr(), second.try_recv().unwrap().as_ptr());
    let (later, _) = hub.join();
    assert!(text(&later).contains("news"), "{later:?}");
}

#[test]
fn a_page_that_comes_after_all_others_have_left_misses_nothing() {
    let (hub, publish) = hub();
    drop(hub.join());
    record(&publish, "while no page was open");
    let (all, _messages) = hub.join();
    assert!(text(&all).contains("while no page was open"), "{all:?}");
}

#[tokio::test]
async fn a_page_that_is_far_behind_gets_everything_again() {
    let (hub, publish) = hub();
    let place = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
    let (_stop, stop) = watch::channel(false);
    let mut page = Page { hub: Arc::clone(&hub), messages: None, unsent: Bytes::new(), stop, _place: place };
    page.message().await.unwrap();
    for number in 0..=BACKLOG {
        record(&publish, &format!("record {number}"));
        hub.send(false);
    }
    let message = text(&page.message().await.unwrap());
    assert!(events(&message).contains(&"services") && message.contains(&format!("record {BACKLOG}")), "{message}");
}

#[tokio::test]
async fn a_long_message_is_sent_in_pieces() {
    let (hub, publish) = hub();
    for number in 0..RECORDS {
        record(&publish, &format!("record {number}: {}", "x".repeat(1_000)));
    }
    let place = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
    let (_stop, stop) = watch::channel(false);
    let mut page = Page { hub, messages: None, unsent: Bytes::new(), stop, _place: place };
    let mut message = String::new();
    while !message.contains("event: status") {
        let (piece, next) = page.next().await.unwrap();
        let piece = piece.unwrap();
        assert!(piece.len() <= PIECE, "{}", piece.len());
        message.push_str(&text(&piece));
        page = next;
    }
    assert!(message.len() > 2 * PIECE && message.contains(&format!("record {}", RECORDS - 1)), "{}", message.len());
}

/// The counts of all service ports, as the kernel has them at `seconds`.
fn connections(translated: u64, refused: u64, seconds: &Arc<AtomicU64>) -> Connections {
    let seconds = Arc::clone(seconds);
    let read = move |_| {
        let seconds = seconds.load(Ordering::Relaxed);
        Count { translated: translated * seconds, refused: refused * seconds }
    };
    Connections { read: Arc::new(read), ledger: Arc::default() }
}

fn rates(messages: &mut broadcast::Receiver<Bytes>) -> Option<String> {
    let message = text(&messages.try_recv().unwrap());
    let (_, event) = message.split_once("event: rates\ndata: ")?;
    event.lines().next().map(ToOwned::to_owned)
}

#[tokio::test(start_paused = true)]
async fn rates_are_those_of_top_over_at_least_a_second() {
    let world = World::new(1);
    let seconds = Arc::new(AtomicU64::new(100));
    let inside = connections(30, 0, &seconds);
    let datapath = Arc::new(FakeDatapath { connections: Some(inside), ..FakeDatapath::default() });
    let outside =
        DeviceOutputs { service_connections: Some(connections(80, 20, &seconds)), ..DeviceOutputs::default() };
    let owner = fixture::owner(fixture::always(world.engine.snapshot(world.now)));
    let hub = Hub::new(Arc::new(AdminState { owner, datapath, packets: Some(outside), ..fixture::unsynced() }));
    let (_, mut messages) = hub.join();
    // The beat of the hub follows at once if no page was open before.
    tokio::time::advance(Duration::from_millis(3)).await;
    hub.send(true);
    assert_eq!(rates(&mut messages), None, "a rate over milliseconds is that of a moment");
    tokio::time::advance(Duration::from_millis(1_997)).await;
    seconds.fetch_add(2, Ordering::Relaxed);
    hub.send(true);
    let rates: serde_json::Value = serde_json::from_str(&rates(&mut messages).unwrap()).unwrap();
    assert_eq!(rates["is_counting"], true, "{rates}");
    let [row] = &rates["rates"].as_array().unwrap()[..] else { panic!("{rates}") };
    let number = |key: &str| row[key].as_f64().unwrap();
    assert_eq!((number("per_second"), number("outside"), number("refused")), (110.0, 80.0, 20.0), "{row}");
}
