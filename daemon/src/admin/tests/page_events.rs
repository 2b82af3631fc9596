use nodelb_core::history::{Event, History, Stamp, What};

use super::*;
use crate::admin::fixture;
use crate::recorder;

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
