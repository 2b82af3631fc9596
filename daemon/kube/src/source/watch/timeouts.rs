//! The time limits of a watcher.

use std::time::Duration;

/// The time limits of a watcher.
#[derive(Clone, Debug)]
pub struct WatchTimeouts {
    /// The timeout for the head of a response to a list; an apiserver may need some time to collect the list.
    pub timeout: Duration,
    /// The timeout for the head of a response to a watch that resumes; the server does not have to collect anything.
    pub watch_timeout: Duration,
    /// The time without a response after which the state of the watch becomes `Asking`.
    pub watch_shown: Duration,
    /// The maximum time between two frames of a list.
    pub list_silence: Duration,
    /// The maximum time between two frames of a watch, which has a bookmark about once a minute. Afterwards the watch
    /// is restarted; this does not count as a failure of the server.
    pub watch_silence: Duration,
    /// The minimum duration of a watch. The requested duration is random, up to twice as long.
    pub watch: Duration,
    /// The first and the longest pause after a failure.
    pub backoff: (Duration, Duration),
    /// The pause before a list that confirms the previous one.
    pub confirm: Duration,
    /// The interruption after which a watch lists again; etcd keeps its history for five minutes.
    pub resume_within: Duration,
    /// The number of objects in a page of a list.
    pub page: u32,
}

impl Default for WatchTimeouts {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            watch_timeout: Duration::from_secs(10),
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
