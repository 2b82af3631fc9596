//! Compares the table with the apiserver: lists Services and EndpointSlices once over the session in use and reports
//! the differences. Limits how often it sends such requests, and changes nothing.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::difference::{Between, Difference};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{Origin, Service, ServiceName, Slice, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::table::{Facts, same_service, same_slice};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::api::decode::{Decoder, Key, Kind, ListWatchEvent, Object, Version};
use crate::api::list_watch::{ListWatch, Start, Timeouts};
use crate::api::request::Query;
use crate::api::scope::{Scope, Selection};
use crate::api::translate::ForwardByClass;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::session::{Apiservers, Session};
use crate::defaults::with_defaults;

with_defaults! {
    #[derive(Clone, Debug)]
    LiveTimeouts {
        /// The time limit of the whole comparison; shorter than that of a request to the admin API.
        whole: Duration = Duration::from_secs(8),
        /// The timeout for the head of a response, and for each further frame.
        timeout: Duration = Duration::from_secs(5),
        /// The minimum time between two comparisons of all services.
        between: Duration = Duration::from_secs(10),
        /// The time that a watch has to deliver changes that a list contains.
        lag: Duration = Duration::from_secs(1),
    }
}

const PAGE: u32 = 500;

const MAX_REPORTED: usize = 1_000;

/// The maximum number of reported notices about objects that could not be decoded or are ignored.
const MAX_NOTICES: usize = 20;

/// What happens to a part of an object that is ignored.
const IGNORED: &str = "nodelb ignores it until the object is changed; see `nodelb diagnose` with the service";

/// Compares the table with the apiserver on request.
#[derive(Debug)]
pub struct Live {
    apiservers: Apiservers,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    selection: Selection,
    forward: Arc<ForwardByClass>,
    timeouts: LiveTimeouts,
    /// The start of the latest comparison of all services. The lock is held during a comparison.
    last_whole: Mutex<Option<Instant>>,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCompared {
    /// The reason and the remedy.
    pub text: String,
    /// Whether the same request succeeds within seconds, because only the number of comparisons is limited.
    pub is_too_early: bool,
}

impl NotCompared {
    fn too_early(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_too_early: true }
    }

    /// No apiserver answers, or not in time.
    pub fn unanswered(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_too_early: false }
    }
}

impl Live {
    /// A comparison of these services over the session in use at the time of the request.
    pub fn new(
        apiservers: Apiservers,
        snapshot: watch::Receiver<Arc<Snapshot>>,
        selection: Selection,
        forward: Arc<ForwardByClass>,
        timeouts: LiveTimeouts,
    ) -> Self {
        Self { apiservers, snapshot, selection, forward, timeouts, last_whole: Mutex::new(None) }
    }

    /// The differences between the table and the apiserver, for one service or for all.
    ///
    /// # Errors
    /// The comparison is too early, or the apiserver does not answer.
    pub async fn differences(&self, service: Option<&ServiceName>) -> Result<Vec<Difference>, NotCompared> {
        let Ok(mut last_whole) = self.last_whole.try_lock() else {
            return Err(NotCompared::too_early("another comparison is in progress; ask again when it is complete"));
        };
        let Some(session) = self.apiservers.session.borrow().clone() else {
            let text = "no apiserver is reachable; nodelb keeps serving the last known state, see `nodelb apiservers`";
            return Err(NotCompared::unanswered(text));
        };
        if service.is_none() {
            let between = self.timeouts.between;
            let left = last_whole.and_then(|last| between.checked_sub(last.elapsed())).filter(|left| !left.is_zero());
            if let Some(left) = left {
                return Err(NotCompared::too_early(format!(
                    "the last comparison of all services, which is work for an apiserver, began less than {} s ago; \
                     ask again in {} s, or about one service only",
                    between.as_secs(),
                    left.as_secs() + 1
                )));
            }
            *last_whole = Some(Instant::now());
        }
        match timeout(self.timeouts.whole, self.compare(&session, service)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(unanswered(&error)),
            Err(_elapsed) => {
                let (at, seconds) = (session.link.at(), self.timeouts.whole.as_secs());
                let remedy = if service.is_none() { "ask about one service only" } else { "see `nodelb apiservers`" };
                Err(NotCompared::unanswered(format!("{at} took longer than {seconds} s; {remedy}")))
            }
        }
    }

    async fn compare(&self, session: &Session, of: Option<&ServiceName>) -> Result<Vec<Difference>, LinkError> {
        let before = Arc::clone(&self.snapshot.borrow());
        let mut rows = Vec::new();
        let mut suspects = Vec::new();
        let scopes = of.map_or_else(|| self.selection.scopes(), |service| self.selection.scopes_of(service));
        for scope in &scopes {
            let mut list = List::new(scope, &before.facts, of.is_some());
            self.read(session, &mut list).await?;
            rows.append(&mut list.notices);
            suspects.append(&mut list.end());
        }
        if suspects.is_empty() {
            return Ok(rows);
        }
        // A watch may deliver a change later than a list. Only differences that still exist after this delay count.
        sleep(self.timeouts.lag).await;
        let now = Arc::clone(&self.snapshot.borrow());
        let known = BTreeMap::from(Kind::SERVED.map(|kind| (kind, known_models(&Scope::all(kind), &now.facts))));
        let at = session.link.at();
        let more = suspects.len().saturating_sub(MAX_REPORTED);
        let judged = |suspect: &Suspect| suspect.judge(known.get(&suspect.kind)?.get(&suspect.key), at);
        rows.extend(suspects.iter().take(MAX_REPORTED).filter_map(judged));
        if more > 0 {
            rows.push(row("objects", None, (format!("{more} more differ"), "as above".into()), String::new()));
        }
        Ok(rows)
    }

    async fn read(&self, session: &Session, list: &mut List<'_>) -> Result<(), LinkError> {
        let mut query = Query::with_unused_slices(list.scope);
        let LiveTimeouts { timeout, .. } = self.timeouts;
        let timeouts = Timeouts { head: timeout, silence: timeout, watch: Duration::ZERO };
        let mut response = loop {
            match ListWatch::open(&session.link, query.clone(), Start::List { page: PAGE }, timeouts).await {
                Err(error) if query.make_do_without(&error) => {}
                opened => break opened?,
            }
        };
        let mut decoder = Decoder::new(list.scope.kind).with_forward(&self.forward);
        while let Some(events) = response.next(&mut decoder).await? {
            events.into_iter().for_each(|event| list.take(event));
        }
        Ok(())
    }
}

fn unanswered(error: &LinkError) -> NotCompared {
    let remedy = match error {
        LinkError::Forbidden(_) => "give nodelb's user `list` on services and endpointslices (contrib/kubernetes)",
        LinkError::Unauthorized(_) => "see `nodelb apiservers`, and check the credentials",
        _ => "see `nodelb apiservers`",
    };
    NotCompared::unanswered(format!("{error}; {remedy}"))
}

/// An object in the table or in the list.
#[derive(Clone, Copy)]
enum Model<'a> {
    Service(&'a Service),
    Slice(&'a Slice),
}

impl<'a> Model<'a> {
    fn from_change(change: &'a Change) -> Option<Self> {
        match change {
            Change::UpsertService(service) => Some(Self::Service(service)),
            Change::UpsertSlice(slice) => Some(Self::Slice(slice)),
            _ => None,
        }
    }

    fn origin(&self) -> &'a Origin {
        match self {
            Self::Service(service) => &service.origin,
            Self::Slice(slice) => &slice.origin,
        }
    }

    fn version(&self) -> Version {
        Version::parse(&self.origin().resource_version)
    }

    fn key(&self) -> &'a Key {
        match self {
            Self::Service(service) => &service.name,
            Self::Slice(slice) => &slice.name,
        }
    }

    fn service(&self) -> &'a ServiceName {
        match self {
            Self::Service(service) => &service.name,
            Self::Slice(slice) => &slice.service,
        }
    }

    /// Whether a difference between the objects would not affect any connection.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Service(a), Self::Service(b)) => same_service(a, b),
            (Self::Slice(a), Self::Slice(b)) => same_slice(a, b),
            _ => false,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("resourceVersion {}:", self.origin().resource_version);
        match self {
            Self::Service(service) => {
                let frontends =
                    service.ports.iter().flat_map(|port| port.frontends.iter().map(|f| f.l4(port.protocol)));
                push_list(&mut text, frontends.map(|frontend| frontend.to_string()));
            }
            Self::Slice(slice) => {
                let backends = slice.ports.iter().flat_map(|port| port.backends.iter().map(move |b| (port, b)));
                push_list(
                    &mut text,
                    backends.map(|(port, b)| format!("{} {}", L4Addr::new(b.addr, b.port, port.protocol), b.state)),
                );
            }
        }
        text
    }
}

fn push_list(text: &mut String, mut items: impl Iterator<Item = String>) {
    const SHOWN: usize = 5;
    let shown: Vec<String> = items.by_ref().take(SHOWN).collect();
    let more = items.count();
    _ = match (shown.is_empty(), more) {
        (true, _) => write!(text, " nothing"),
        (false, 0) => write!(text, " {}", shown.join(", ")),
        (false, more) => write!(text, " {} + {more} more", shown.join(", ")),
    };
}

/// The objects of a scope from Kubernetes in the table.
fn known_models<'a>(scope: &Scope, facts: &'a Facts) -> BTreeMap<Key, Model<'a>> {
    let models: Box<dyn Iterator<Item = Model<'a>>> = match scope.kind {
        Kind::Service => Box::new(facts.services_of(Source::Kubernetes).map(Model::Service)),
        Kind::EndpointSlice => Box::new(facts.slices_of(Source::Kubernetes).map(Model::Slice)),
        Kind::Node => Box::new(std::iter::empty()),
    };
    models.filter(|model| scope.covers(model.service())).map(|model| (model.key().clone(), model)).collect()
}

/// An object that differs between the list and the table.
struct Suspect {
    kind: Kind,
    key: Key,
    /// The object in the list; `None` if the list lacks it or nodelb ignores it, as kube-proxy does.
    listed: Option<Change>,
    /// The version in the table before the list request.
    known: Option<Version>,
    list_version: Version,
}

/// The list of one scope, compared with the table while it arrives.
struct List<'a> {
    scope: &'a Scope,
    facts: &'a Facts,
    known: BTreeMap<Key, Model<'a>>,
    is_narrow: bool,
    seen: HashSet<Key>,
    version: Version,
    suspects: Vec<Suspect>,
    notices: Vec<Difference>,
}

impl<'a> List<'a> {
    fn new(scope: &'a Scope, facts: &'a Facts, is_narrow: bool) -> Self {
        Self {
            scope,
            facts,
            known: known_models(scope, facts),
            is_narrow,
            seen: HashSet::new(),
            version: Version::default(),
            suspects: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn take(&mut self, event: ListWatchEvent) {
        match event {
            ListWatchEvent::Upsert(object) => self.compare(*object),
            ListWatchEvent::Skipped { key, reason } if self.notices.len() < MAX_NOTICES => {
                let what =
                    key.as_ref().map_or_else(|| self.scope.kind.name().to_owned(), |key| named(self.scope.kind, key));
                self.seen.extend(key);
                let sides = ("an object that cannot be read".into(), "its last known version".into());
                self.notices.push(row(what, None, sides, reason));
            }
            ListWatchEvent::Skipped { key, .. } => self.seen.extend(key),
            ListWatchEvent::ListDone(version) => self.version = version,
            ListWatchEvent::Delete(_) | ListWatchEvent::ListStart { .. } | ListWatchEvent::Bookmark(_) => {}
        }
    }

    fn compare(&mut self, Object { key, change, notices, left_out_of, .. }: Object) {
        let known = self.known.get(&key).copied();
        if self.is_narrow || left_out_of.as_ref().is_some_and(|service| self.serves(service)) {
            let room = MAX_NOTICES.saturating_sub(self.notices.len());
            let of_key = || ServiceName::of(Arc::clone(&key.namespace), Arc::clone(&key.name));
            let own = || (self.scope.kind == Kind::Service).then(of_key);
            let service = known.map(|known| known.service().clone()).or(left_out_of).or_else(own);
            let ignored = |notice| {
                let sides = ("has it".into(), "left out".into());
                Difference {
                    action: IGNORED.into(),
                    ..row(named(self.scope.kind, &key), service.clone(), sides, notice)
                }
            };
            self.notices.extend(notices.into_iter().take(room).map(ignored));
        }
        let is_same = match (&known, change.as_ref().and_then(Model::from_change)) {
            (None, None) => true,
            (Some(known), Some(listed)) => known.is_same(&listed),
            _ => false,
        };
        self.seen.insert(key.clone());
        if !is_same && self.suspects.len() <= MAX_REPORTED {
            let (kind, known) = (self.scope.kind, known.map(|known| known.version()));
            self.suspects.push(Suspect { kind, key, listed: change, known, list_version: Version::default() });
        }
    }

    /// Whether Kubernetes describes the service: what is left out of it is missing.
    fn serves(&self, service: &ServiceName) -> bool {
        self.facts.claims(service).iter().any(|it| it.source == Source::Kubernetes)
    }

    /// The differences, after the list is complete. Adds the objects that the list lacks, except those with a newer
    /// version than the list.
    fn end(mut self) -> Vec<Suspect> {
        let room = (MAX_REPORTED + 1).saturating_sub(self.suspects.len());
        let is_missing =
            |(key, known): &(&Key, &Model<'_>)| !self.seen.contains(*key) && known.version() <= self.version;
        let missing = self.known.iter().filter(is_missing).take(room).map(|(key, known)| Suspect {
            kind: self.scope.kind,
            key: key.clone(),
            listed: None,
            known: Some(known.version()),
            list_version: self.version,
        });
        self.suspects.extend(missing);
        self.suspects.into_iter().map(|suspect| Suspect { list_version: self.version, ..suspect }).collect()
    }
}

impl Suspect {
    /// The row for this object, if it still differs. An object that appeared or disappeared in the meantime is a change
    /// that is still being processed. If the watch has since delivered a version newer than the list, the watch works.
    fn judge(&self, known: Option<&Model<'_>>, at: SocketAddr) -> Option<Difference> {
        let listed = self.listed.as_ref().and_then(Model::from_change);
        let (sides, cause) = match (known, listed) {
            (None, Some(listed)) if self.known.is_none() => {
                let cause = format!("{} has not arrived by watch", cause(listed.origin()));
                ((listed.text(), "absent".to_owned()), cause)
            }
            (Some(known), None) if known.version() <= self.list_version => {
                let cause = "its deletion, or the change after which nodelb ignores it, has not arrived by watch";
                ((format!("absent at {at}, or left out"), known.text()), cause.to_owned())
            }
            (Some(known), Some(listed)) if self.known.is_some() && !known.is_same(&listed) => {
                let cause = match listed.version().cmp(&known.version()) {
                    Ordering::Greater => format!("{} has not arrived by watch", cause(listed.origin())),
                    Ordering::Less if self.known != Some(known.version()) => return None,
                    Ordering::Less => {
                        format!("{at} is behind the apiserver that was watched, or the cluster was restored")
                    }
                    Ordering::Equal => {
                        "the same resourceVersion has two contents, which is a bug of nodelb: please report it"
                            .to_owned()
                    }
                };
                ((listed.text(), known.text()), cause)
            }
            _ => return None,
        };
        let service = known.copied().or(listed).map(|model| model.service().clone());
        Some(row(named(self.kind, &self.key), service, sides, cause))
    }
}

fn cause(origin: &Origin) -> Cause {
    Cause { origin: origin.clone(), is_removed: false }
}

fn named(kind: Kind, key: &Key) -> String {
    format!("{} {key}", kind.name())
}

fn row(
    what: impl Into<String>,
    service: Option<ServiceName>,
    (source, memory): (String, String),
    cause: String,
) -> Difference {
    Difference {
        between: Between::SourceMemory,
        what: what.into(),
        service,
        source: Some(source),
        memory: Some(memory),
        kernel: None,
        cause,
        action:
            "the watch continues (`nodelb sources` shows its age); restarting nodelb lists all objects again and does \
             not interrupt connections"
                .into(),
    }
}

#[cfg(test)]
#[path = "tests/live.rs"]
mod tests;
