//! How patient a watcher is.

use std::time::Duration;

/// How long everything may take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Until an answer's head arrives; an apiserver may collect a list for a while.
    pub patience: Duration,
    /// Until the head of an answer to a watch that goes on where it ended: it needs nothing to be collected.
    pub watch_patience: Duration,
    /// After so long without an answer it shows that none has come.
    pub watch_shown: Duration,
    /// Between two pieces of a list.
    pub list_silence: Duration,
    /// Between two items of a watch, bookmarks included, which come about once a minute. Then the watch is made again:
    /// silence is no proof of death.
    pub watch_silence: Duration,
    /// How long a watch is asked for; between this and twice as long.
    pub watch: Duration,
    /// The first and the longest pause after a failure.
    pub backoff: (Duration, Duration),
    /// The pause before a list that nobody believes is asked for again.
    pub confirm: Duration,
    /// A watch that was away for longer lists again: etcd keeps five minutes.
    pub resume_within: Duration,
    /// How many objects a page of a list has.
    pub page: usize,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(30),
            watch_patience: Duration::from_secs(10),
            watch_shown: Duration::from_secs(1),
            list_silence: Duration::from_secs(15),
            watch_silence: Duration::from_secs(90),
            watch: Duration::from_secs(300),
            backoff: (Duration::from_millis(200), Duration::from_secs(5)),
            confirm: Duration::from_secs(2),
            resume_within: Duration::from_secs(300),
            page: 500,
        }
    }
}
