//! How a replica misbehaves: rules that tests set and change while it runs. Nothing is left to chance; a rule says which
//! requests, which fault, and how many times.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::watch;

use crate::request::{Request, Verb};
use crate::status::Status;
use crate::wire::Gate;

/// Which requests a rule is about; default: all.
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
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Lists of a resource.
    pub fn list(resource: &str) -> Self {
        Self { verb: Some(Verb::List), resource: Some(resource.into()), path: None }
    }

    /// Watches of a resource.
    pub fn watch(resource: &str) -> Self {
        Self { verb: Some(Verb::Watch), resource: Some(resource.into()), path: None }
    }

    /// Everything about a resource.
    pub fn resource(resource: &str) -> Self {
        Self { resource: Some(resource.into()), ..Self::default() }
    }

    /// All requests with a verb.
    pub fn verb(verb: Verb) -> Self {
        Self { verb: Some(verb), ..Self::default() }
    }

    /// One path, such as `/readyz`.
    pub fn path(path: &str) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    fn covers(&self, request: &Request) -> bool {
        self.verb.is_none_or(|verb| verb == request.verb)
            && self.path.as_ref().is_none_or(|path| *path == request.path)
            && self.resource.as_ref().is_none_or(|it| request.resource.is_some_and(|resource| resource.plural == it))
    }
}

/// What goes wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Answered with this HTTP status and a Status object.
    Status {
        /// HTTP status.
        code: u16,
        /// `Retry-After`, in seconds.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// Never answered.
    Stall,
    /// The body breaks off after so many bytes, visibly: the connection or stream is reset.
    Cut {
        /// Bytes of the body that are sent.
        after: usize,
    },
    /// The body breaks off after so many bytes, and claims to be complete.
    Truncate {
        /// Bytes of the body that are sent.
        after: usize,
    },
    /// A list, or the initial events of a watch, has only the first so many items, and claims to be complete.
    Keep {
        /// Items that are left.
        items: usize,
    },
    /// These bytes are a further item, the first one.
    Garbage {
        /// What is inserted, JSON or not.
        bytes: String,
    },
    /// The watch begins, and ends with an ERROR event of this code; 410: the resourceVersion is too old.
    ErrorEvent {
        /// `code` of the Status in the event.
        code: u16,
    },
    /// The watch begins and sends nothing, ever.
    Silence,
}

/// What goes wrong with an event of a watch that runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventFault {
    /// It is sent twice.
    Duplicate,
    /// It is sent after the one that follows it.
    Swap,
    /// It is not sent, nor anything after it; the stream stays open.
    Silence,
    /// It breaks off after so many bytes, and the stream with it.
    Cut {
        /// Bytes of it that are sent.
        after: usize,
    },
    /// An ERROR event of this code is sent instead, and the stream ends.
    Error {
        /// `code` of the Status in the event.
        code: u16,
    },
    /// These bytes are a line before it.
    Garbage {
        /// What is inserted, JSON or not.
        bytes: String,
    },
}

/// What is no fault, but differs between servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// How often a watch that allows them gets bookmarks; `None`: never, not even at its end.
    pub bookmarks: Option<Duration>,
    /// Whether lists can be streamed.
    pub watch_list: WatchList,
    /// The longest that a watch lasts, also if its client asks for no limit.
    pub watch_timeout: Duration,
    /// Whether Services can be selected by `spec.clusterIP`, as since Kubernetes 1.22; 400 where not.
    pub selects_cluster_ip: bool,
    /// A compacted resourceVersion in a watch is answered with HTTP 410 instead of an ERROR event.
    pub expired_as_status: bool,
    /// For so long after it begins to serve, a replica answers every request with this status.
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

/// What a server makes of `sendInitialEvents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchList {
    /// Kubernetes 1.32, 1.34 and later.
    On,
    /// The gate is off: 422.
    Off,
    /// Before 1.27: the parameter is not known, and ignored.
    Ancient,
}

/// What all watches of a replica are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// End as at a timeout.
    End,
    /// An ERROR event 410, then end.
    Expire,
}

/// The faults of one replica.
#[derive(Debug)]
pub struct Faults {
    pub(crate) gate: Arc<Gate>,
    rules: Mutex<Rules>,
    pub(crate) listening: watch::Sender<bool>,
    pub(crate) interrupts: watch::Sender<(u64, Interrupt)>,
    /// Counts how often all connections were told to go away.
    pub(crate) retired: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Rules {
    requests: Vec<Rule<On, Fault>>,
    events: Vec<Rule<String, EventFault>>,
    behaviour: Behaviour,
    seen: VecDeque<String>,
    /// Every request is answered with this status until then.
    starting: Option<(Instant, u16)>,
}

#[derive(Debug)]
struct Rule<W, F> {
    on: W,
    fault: F,
    /// `None`: until cleared.
    times: Option<u32>,
}

/// How many requests are remembered.
const SEEN: usize = 10_000;

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

    /// Every request that is meant goes wrong, until [`Self::clear`].
    pub fn answer(&self, on: On, fault: Fault) {
        self.rules().requests.push(Rule { on, fault, times: None });
    }

    /// The next so many requests that are meant go wrong.
    pub fn answer_next(&self, times: u32, on: On, fault: Fault) {
        if times == 0 {
            return;
        }
        self.rules().requests.push(Rule { on, fault, times: Some(times) });
    }

    /// The next so many events about a resource (its plural), over all its watches, go wrong.
    pub fn events_next(&self, times: u32, resource: &str, fault: EventFault) {
        if times == 0 {
            return;
        }
        self.rules().events.push(Rule { on: resource.into(), fault, times: Some(times) });
    }

    /// Every event about a resource goes wrong, until [`Self::clear`].
    pub fn events(&self, resource: &str, fault: EventFault) {
        self.rules().events.push(Rule { on: resource.into(), fault, times: None });
    }

    /// `/readyz` answers 503, all else works.
    pub fn not_ready(&self) {
        self.answer(On::path("/readyz"), Fault::Status { code: 503, retry_after: None });
    }

    /// New connections are refused (the listener is closed; the port stays taken), or accepted again. Returns before
    /// the listener has followed.
    pub fn refuse(&self, on: bool) {
        self.listening.send_replace(!on);
    }

    /// Nothing is read or written on any connection, old or new, as in a stopped process; or all goes on.
    pub fn freeze(&self, on: bool) {
        self.gate.freeze(on);
    }

    /// Connections made from now on are accepted and never answered; old ones go on. Or all goes on.
    pub fn black_hole(&self, on: bool) {
        self.gate.black_hole(on);
    }

    /// Resets (RST) every connection there is.
    pub fn reset_connections(&self) {
        self.gate.reset_all();
    }

    /// Resets a connection when it has sent so many more bytes (of TLS), the next so many times that this happens.
    pub fn reset_after(&self, bytes: u64, times: u32) {
        self.gate.reset_after(bytes, times);
    }

    /// Sends at most so many bytes at a time, with a pause after each.
    pub fn slow(&self, bytes: usize, pause: Duration) {
        self.gate.slow(Some((bytes, pause)));
    }

    /// Ends every watch there is as if its time were over.
    pub fn end_watches(&self) {
        self.interrupts.send_modify(|(number, what)| (*number, *what) = (*number + 1, Interrupt::End));
    }

    /// Ends every watch there is with an ERROR event 410.
    pub fn expire_watches(&self) {
        self.interrupts.send_modify(|(number, what)| (*number, *what) = (*number + 1, Interrupt::Expire));
    }

    /// As after a start: every request is answered with this status for a while, `/readyz` included. A real apiserver
    /// answers 403 until it knows who may do what, and 401 until its authenticators work.
    pub fn start_up(&self, lasts: Duration, code: u16) {
        self.rules().starting = Some((Instant::now() + lasts, code));
    }

    /// Sends GOAWAY over every HTTP/2 connection: requests under way go on, and no others are accepted. As
    /// `--goaway-chance`, and an apiserver that shuts down. A connection without HTTP/2 is closed after its request.
    pub fn go_away(&self) {
        self.retired.send_modify(|count| *count += 1);
    }

    /// Changes what is no fault.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.rules().behaviour);
    }

    /// No faults: rules are dropped, connections flow, the listener listens. Behaviour stays.
    pub fn clear(&self) {
        let mut rules = self.rules();
        rules.requests.clear();
        rules.events.clear();
        rules.starting = None;
        drop(rules);
        self.gate.clear();
        self.refuse(false);
    }

    /// The requests that came in since the last call: `GET /api/v1/services?watch=true`.
    pub fn take_requests(&self) -> Vec<String> {
        self.rules().seen.drain(..).collect()
    }

    pub(crate) fn behaviour(&self) -> Behaviour {
        self.rules().behaviour.clone()
    }

    pub(crate) fn saw(&self, line: String) {
        let seen = &mut self.rules().seen;
        seen.push_back(line);
        if seen.len() > SEEN {
            seen.pop_front();
        }
    }

    pub(crate) fn of_request(&self, request: &Request) -> Option<Fault> {
        let rules = &mut *self.rules();
        if let Some((until, code)) = rules.starting {
            if Instant::now() < until {
                return Some(Fault::Status { code, retry_after: None });
            }
            rules.starting = None;
        }
        let requests = &mut rules.requests;
        let at = requests.iter().position(|rule| rule.on.covers(request) && rule.fault.can_happen_to(request))?;
        Some(spend(requests, at))
    }

    /// The fault of one event; for a bookmark only those that do not need an object.
    pub(crate) fn of_event(&self, resource: &str, bookmark: bool) -> Option<EventFault> {
        let events = &mut self.rules().events;
        let at = events.iter().position(|rule| {
            rule.on == resource && !(bookmark && matches!(rule.fault, EventFault::Duplicate | EventFault::Swap))
        })?;
        Some(spend(events, at))
    }
}

/// The fault of a rule, used once.
fn spend<W, F: Clone>(rules: &mut Vec<Rule<W, F>>, at: usize) -> F {
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
    /// A watch that goes on where another one ended has no items to leave out.
    fn can_happen_to(&self, request: &Request) -> bool {
        !matches!(self, Self::Keep { .. }) || request.verb != Verb::Watch || request.flag("sendInitialEvents")
    }

    /// The status of a [`Fault::Status`].
    pub(crate) fn status(&self) -> Option<Status> {
        let Self::Status { code, retry_after } = self else { return None };
        let mut status = Status::new(*code, format!("this server was told to answer {code}"));
        status.retry_after = *retry_after;
        Some(status)
    }
}

#[cfg(test)]
mod tests;
