use nodelb_core::history::{Event, Stamp, What};

use super::*;

#[test]
fn a_stream_goes_on_only_after_what_this_history_has_told() {
    let mut history = History::default();
    for _ in 0..3 {
        history.add(Event::for_daemon(What::Started, "for a test"), Stamp::default());
    }
    let (_publish, histories) = watch::channel(Arc::new(history));
    let snapshots = watch::channel(Arc::default()).1;
    let mut feed = Feed::History(Records { histories, snapshots, told: 0, filter: Filter::default() });
    assert!(!feed.resume(4), "a number of another history");
    assert_eq!(feed.changes(Now::default()).len(), 3);
    assert!(feed.resume(2));
    assert_eq!(feed.changes(Now::default()).len(), 1);
    assert!(feed.resume(3));
    assert_eq!(feed.changes(Now::default()).len(), 0);
}
