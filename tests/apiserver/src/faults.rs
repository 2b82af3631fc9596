//! Fault injection. Tests add and remove rules while the replica runs. A rule selects requests, the
//! fault, and how many times it occurs; nothing is random.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::watch;

use crate::request::{Request, Verb};
use crate::status::Status;
use crate::wire::Gate;

/// Selects requests; the default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct On {
    /// Only this verb.
    pub verb: Option<Verb>,
    /// Only this resource, by its plural.
    pub resource: Option<String>,
    /// Only this path, exactly.
    pub path: Option<String>,
}

impl On {
    /// All requests.
    pub fn any() -> Self {
        Self::default()
    }

    /// List requests for a resource.
    pub fn list(resource: &str) -> Self {
        Self { verb: Some(Verb::List), resource: Some(resource.into()), path: None }
    }

    /// Watch requests for a resource.
    pub fn watch(resource: &str) -> Self {
        Self { verb: Some(Verb::Watch), resource: Some(resource.into()), path: None }
    }

    /// All requests for a resource.
    pub fn resource(resource: &str) -> Self {
        Self { resource: Some(resource.into()), ..Self::default() }
    }

    /// All requests with a verb.
    pub fn verb(verb: Verb) -> Self {
        Self { verb: Some(verb), ..Self::default() }
    }

    /// Requests for one path, such as `/readyz`.
    pub fn path(path: &str) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    fn covers(&self, request: &Request) -> bool {
        self.verb.is_none_or(|verb| verb == request.verb)
            && self.path.as_ref().is_none_or(|path| *path == request.path)
            && self.resource.as_ref().is_none_or(|it| request.resource.is_some_and(|resource| resource.plural == it))
    }
}

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The response has this HTTP status and a Status object.
    Status {
        /// HTTP status.
        code: u16,
        /// `Retry-After`, in seconds.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// The request is never answered.
    Stall,
    /// The body ends after this many bytes with a reset of the connection or stream, which the
    /// client can detect.
    Cut {
        /// Number of bytes that are sent.
        after: usize,
    },
    /// The body ends after this many bytes as if it were complete.
    Truncate {
        /// Number of bytes that are sent.
        after: usize,
    },
    /// A list, or the initial events of a watch, contains only the first items, as if it were
    /// complete.
    Keep {
        /// Number of items that are kept.
        items: usize,
    },
    /// These bytes are inserted as the first item.
    Garbage {
        /// The inserted bytes, JSON or not.
        bytes: String,
    },
    /// The watch starts and ends with an ERROR event of this code; with 410, the resourceVersion is too old.
    ErrorEvent {
        /// `code` of the Status in the event.
        code: u16,
    },
    /// The watch starts and never sends anything.
    Silence,
}

/// A fault of one event of a running watch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventFault {
    /// The event is sent twice.
    Duplicate,
    /// The event is sent after the next one.
    Swap,
    /// Neither this event nor any later one is sent; the stream stays open.
    Silence,
    /// The stream breaks after this many bytes of the event.
    Cut {
        /// Number of bytes of the event that are sent.
        after: usize,
    },
    /// An ERROR event of this code is sent instead, and the stream ends.
    Error {
        /// `code` of the Status in the event.
        code: u16,
    },
    /// These bytes are sent as a line before the event.
    Garbage {
        /// The inserted bytes, JSON or not.
        bytes: String,
    },
}

/// Properties that are not faults but differ between servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Interval of bookmarks for watches that allow them; `None` sends none, not even at the end of
    /// a watch.
    pub bookmarks: Option<Duration>,
    /// Whether the server supports streaming lists.
    pub watch_list: WatchList,
    /// Maximum duration of a watch, also if the client requests no limit.
    pub watch_timeout: Duration,
    /// Whether Services can be selected by `spec.clusterIP`, as since Kubernetes 1.22; otherwise
    /// the server returns 400.
    pub selects_cluster_ip: bool,
    /// Whether a watch from a compacted resourceVersion gets HTTP 410 instead of an ERROR event.
    pub expired_as_status: bool,
    /// After it starts, the replica answers every request with this status for this long.
    pub starting: Option<(Duration, u16)>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            bookmarks: Some(Duration::from_secs(60)),
            watch_list: WatchList::On,
            watch_timeout: Duration::from_secs(1800),
            selects_cluster_ip: true,
            expired_as_status: false,
            starting: None,
        }
    }
}

/// How a server handles `sendInitialEvents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchList {
    /// Kubernetes 1.32, 1.34 and later.
    On,
    /// The feature gate is off: 422.
    Off,
    /// Before 1.27: the parameter is unknown and ignored.
    Unsupported,
}

/// A signal to all watches of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// End as at a timeout.
    End,
    /// Send an ERROR event 410, then end.
    Expire,
}

/// The faults of one replica.
#[derive(Debug)]
pub struct Faults {
    pub(crate) gate: Arc<Gate>,
    rules: Mutex<Rules>,
    pub(crate) listening: watch::Sender<bool>,
    pub(crate) interrupts: watch::Sender<(u64, Interrupt)>,
    /// Incremented by each request to send GOAWAY on all connections.
    pub(crate) retired: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Rules {
    requests: Vec<Rule<On, Fault>>,
    events: Vec<Rule<String, EventFault>>,
    behaviour: Behaviour,
    seen: VecDeque<String>,
    /// The users of all watches that have begun.
    watchers: BTreeSet<String>,
    /// Until this time, every request gets this status.
    starting: Option<(Instant, u16)>,
}

#[derive(Debug)]
struct Rule<W, F> {
    on: W,
    fault: F,
    /// Remaining occurrences; `None`: until cleared.
    times: Option<u32>,
}

/// Maximum number of recorded requests.
const MAX_RECORDED: usize = 10_000;

impl Faults {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        Self {
            gate: Arc::default(),
            rules: Mutex::new(Rules {
                starting: behaviour.starting.map(|(lasts, code)| (Instant::now() + lasts, code)),
                behaviour,
                ..Rules::default()
            }),
            listening: watch::Sender::new(true),
            interrupts: watch::Sender::new((0, Interrupt::End)),
            retired: watch::Sender::new(0),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Injects a fault into every selected request until [`Self::clear`].
    pub fn answer(&self, on: On, fault: Fault) {
        self.rules().requests.push(Rule { on, fault, times: None });
    }

    /// Injects a fault into the next `times` selected requests.
    pub fn answer_next(&self, times: u32, on: On, fault: Fault) {
        if times == 0 {
            return;
        }
        self.rules().requests.push(Rule { on, fault, times: Some(times) });
    }

    /// Injects a fault into the next `times` events of a resource (its plural), counted over all
    /// its watches.
    pub fn events_next(&self, times: u32, resource: &str, fault: EventFault) {
        if times == 0 {
            return;
        }
        self.rules().events.push(Rule { on: resource.into(), fault, times: Some(times) });
    }

    /// Injects a fault into every event of a resource until [`Self::clear`].
    pub fn events(&self, resource: &str, fault: EventFault) {
        self.rules().events.push(Rule { on: resource.into(), fault, times: None });
    }

    /// `/readyz` returns 503; everything else works.
    pub fn not_ready(&self) {
        self.answer(On::path("/readyz"), Fault::Status { code: 503, retry_after: None });
    }

    /// Refuses new connections (the listener is closed but the port stays reserved), or accepts
    /// them again. Returns before the listener has changed.
    pub fn refuse(&self, on: bool) {
        self.listening.send_replace(!on);
    }

    /// Stops reading and writing on all connections, as SIGSTOP would; or continues.
    pub fn freeze(&self, on: bool) {
        self.gate.freeze(on);
    }

    /// Accepts new connections and never responds on them; existing ones continue. `false` ends
    /// this.
    pub fn black_hole(&self, on: bool) {
        self.gate.black_hole(on);
    }

    /// Resets (RST) every connection.
    pub fn reset_connections(&self) {
        self.gate.reset_all();
    }

    /// Resets a connection after it has sent this many more bytes (of TLS), for the next `times`
    /// connections.
    pub fn reset_after(&self, bytes: u64, times: u32) {
        self.gate.reset_after(bytes, times);
    }

    /// Sends at most this many bytes at a time, with a pause after each write.
    pub fn slow(&self, bytes: usize, pause: Duration) {
        self.gate.slow(Some((bytes, pause)));
    }

    /// Ends every watch as at a timeout.
    pub fn end_watches(&self) {
        self.interrupts.send_modify(|(number, what)| (*number, *what) = (*number + 1, Interrupt::End));
    }

    /// Ends every watch with an ERROR event 410.
    pub fn expire_watches(&self) {
        self.interrupts.send_modify(|(number, what)| (*number, *what) = (*number + 1, Interrupt::Expire));
    }

    /// Answers every request, including `/readyz`, with this status for a while. A real apiserver
    /// returns 403 until its authorizer has synced, and 401 until its authenticators work.
    pub fn start_up(&self, lasts: Duration, code: u16) {
        self.rules().starting = Some((Instant::now() + lasts, code));
    }

    /// Sends GOAWAY over every HTTP/2 connection: requests in progress finish, new ones are not
    /// accepted. `--goaway-chance` and a shutdown do the same. An HTTP/1.1 connection is closed
    /// after its current request.
    pub fn go_away(&self) {
        self.retired.send_modify(|count| *count += 1);
    }

    /// Changes the behaviour that is not a fault.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.rules().behaviour);
    }

    /// Removes all faults: rules are dropped, connections work, the listener listens. Behaviour
    /// stays.
    pub fn clear(&self) {
        let mut rules = self.rules();
        rules.requests.clear();
        rules.events.clear();
        rules.starting = None;
        drop(rules);
        self.gate.clear();
        self.refuse(false);
    }

    /// Returns and clears the recorded requests, such as `GET /api/v1/services?watch=true`.
    pub fn take_requests(&self) -> Vec<String> {
        self.rules().seen.drain(..).collect()
    }

    /// Whether a watch of this user has begun.
    pub fn has_watched(&self, user: &str) -> bool {
        self.rules().watchers.contains(user)
    }

    pub(crate) fn note_watch(&self, user: &str) {
        self.rules().watchers.insert(user.to_owned());
    }

    pub(crate) fn behaviour(&self) -> Behaviour {
        self.rules().behaviour.clone()
    }

    pub(crate) fn record(&self, line: String) {
        let seen = &mut self.rules().seen;
        seen.push_back(line);
        if seen.len() > MAX_RECORDED {
            seen.pop_front();
        }
    }

    pub(crate) fn for_request(&self, request: &Request) -> Option<Fault> {
        let rules = &mut *self.rules();
        if let Some((until, code)) = rules.starting {
            if Instant::now() < until {
                return Some(Fault::Status { code, retry_after: None });
            }
            rules.starting = None;
        }
        let requests = &mut rules.requests;
        let at = requests.iter().position(|rule| rule.on.covers(request) && rule.fault.applies_to(request))?;
        Some(take_one(requests, at))
    }

    /// The fault for one event; a bookmark gets only faults that need no object.
    pub(crate) fn for_event(&self, resource: &str, bookmark: bool) -> Option<EventFault> {
        let events = &mut self.rules().events;
        let at = events.iter().position(|rule| {
            rule.on == resource && !(bookmark && matches!(rule.fault, EventFault::Duplicate | EventFault::Swap))
        })?;
        Some(take_one(events, at))
    }
}

/// Takes one occurrence of the fault of a rule.
fn take_one<W, F: Clone>(rules: &mut Vec<Rule<W, F>>, at: usize) -> F {
    let fault = rules[at].fault.clone();
    if let Some(times) = &mut rules[at].times {
        *times -= 1;
        if *times == 0 {
            rules.remove(at);
        }
    }
    fault
}

impl Fault {
    /// A watch that resumes has no initial items to omit, and a list that is read page by page would lack only its last
    /// few.
    fn applies_to(&self, request: &Request) -> bool {
        let is_first = match request.verb {
            Verb::Watch => request.flag("sendInitialEvents"),
            _ => request.parameter("continue").is_empty(),
        };
        !matches!(self, Self::Keep { .. }) || is_first
    }

    /// The response to a [`Fault::Status`].
    pub(crate) fn status(&self) -> Option<Status> {
        let Self::Status { code, retry_after } = self else { return None };
        let mut status = Status::new(*code, format!("injected fault: status {code}"));
        status.retry_after = *retry_after;
        Some(status)
    }
}

#[cfg(test)]
#[path = "tests/faults.rs"]
mod tests;
