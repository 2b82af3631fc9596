use nodelb_core::history::{Event, Stamp, What};

use super::*;

#[test]
fn a_stream_resumes_only_after_a_record_of_this_history() {
    let mut history = History::default();
    for _ in 0..3 {
        history.add(Event::for_daemon(What::Started, "for a test"), Stamp::default());
    }
    let (_publish, histories) = watch::channel(Arc::new(history));
    let snapshots = watch::channel(Arc::default()).1;
    let mut feed = ChangeStream::History(Records { histories, snapshots, reported: 0, filter: Filter::default() });
    assert!(!feed.resume(4), "a number of another history");
    assert_eq!(feed.changes(Clocks::default()).len(), 3);
    assert!(feed.resume(2));
    assert_eq!(feed.changes(Clocks::default()).len(), 1);
    assert!(feed.resume(3));
    assert_eq!(feed.changes(Clocks::default()).len(), 0);
}
