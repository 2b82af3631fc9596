//! What a watcher knows, and what it tells the store.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::restores::Restores;
use crate::api::decode::{Decoder, ListWatchEvent, Version};
use crate::api::request::Query;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::session::Apiservers;
use crate::defaults::with_defaults;

/// A message of a watcher, with its number, to the task of the Kubernetes source.
#[derive(Debug)]
pub enum Message {
    Events(usize, Vec<ListWatchEvent>),
    State(usize, State),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for an apiserver or for the first list.
    Waiting,
    /// An apiserver is connected and has not responded yet.
    Asking,
    /// It is up to date.
    Watching,
    /// It failed and will be retried.
    Failing(LinkError),
}

with_defaults! {
    #[derive(Clone, Debug)]
    WatchTimeouts {
        /// The timeout for the head of a response to a list; an apiserver may need some time to collect the list.
        timeout: Duration = Duration::from_secs(30),
        /// The timeout for the head of a response to a watch that resumes; the server does not have to collect anything.
        watch_timeout: Duration = Duration::from_secs(10),
        /// After this time without a response, the state of the watch becomes `Asking`.
        watch_shown: Duration = Duration::from_secs(1),
        /// The maximum time between two frames of a list.
        list_silence: Duration = Duration::from_secs(15),
        /// The maximum time between two frames of a watch, which has a bookmark about once a minute. Afterwards the watch
        /// is restarted; this does not count as a failure of the server.
        watch_silence: Duration = Duration::from_secs(90),
        /// The minimum duration of a watch. The requested duration is random, up to twice as long.
        watch: Duration = Duration::from_secs(300),
        /// The first and the longest pause after a failure.
        backoff: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5)),
        /// The pause before a list that confirms the previous one.
        confirm: Duration = Duration::from_secs(2),
        /// After an interruption longer than this, a watch lists again; etcd keeps its history for five minutes.
        resume_within: Duration = Duration::from_secs(300),
        page: u32 = 500,
    }
}

pub struct Watcher {
    /// Its place among the watchers of the source.
    pub(super) number: usize,
    pub(super) query: Query,
    pub(super) apiservers: Apiservers,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) list_again: Arc<Notify>,
    pub(super) timeouts: WatchTimeouts,
    pub(super) decoder: Decoder,
    /// The version to resume from; `None` if a list is necessary.
    pub(super) version: Option<Version>,
    /// The newest version received so far. The store may contain objects of this version.
    pub(super) newest: Version,
    /// Whether the next list may belong to another history than earlier versions.
    pub(super) is_rewound: bool,
    /// Whether to check first that the cluster still has the known history: the server may have changed, or the cluster
    /// may have been restored.
    pub(super) is_unsure: bool,
    /// The result of comparing the session's first read with the known versions, until the next check.
    pub(super) behind: Behind,
    /// When `newest` last increased.
    pub(super) grown_at: Instant,
    pub(super) restores: Restores,
    /// The generation of the link at the latest check.
    pub(super) generation: u64,
    /// Whether the watch has delivered an event since its start, apart from the initial list.
    pub(super) is_up: bool,
    /// The number of consecutive streaming lists that broke off.
    pub(super) broken_lists: u32,
    /// When the server last sent anything.
    pub(super) received_at: Instant,
    /// When the supervisor was last informed about progress.
    pub(super) progress_at: Option<Instant>,
}

/// The comparison of a session's first read, which is about Services, with the newest version that the watcher knew
/// when it began to use the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Behind {
    /// The session's version is not older.
    #[default]
    No,
    /// The session's version is older, but the watcher may have received the newer version after the read was sent.
    Perhaps,
    /// The session's version is older than a version that the watcher knew before the read was sent. For Services this
    /// proves a restore; for other kinds only if one etcd contains both kinds.
    Surely,
}
