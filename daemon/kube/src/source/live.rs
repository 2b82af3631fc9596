//! Compares the table with the apiserver: lists Services and EndpointSlices once over the session in use and reports
//! the differences. Limits how often it sends such requests, and changes nothing.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::explain::rows::{Between, Difference};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{Origin, Service, ServiceName, Slice, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::table::{Facts, same_service, same_slice};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::api::decode::{Decoder, Item, Key, Kind, Object, ObjectEvent, Version};
use crate::api::page::Page;
use crate::api::request::Query;
use crate::apiserver::error::LinkError;
use crate::apiserver::session::{Apiservers, Session};

/// Time limits of a comparison.
#[derive(Clone, Debug)]
pub struct LiveTimeouts {
    /// The time limit of the whole comparison; shorter than that of a request to the admin API.
    pub whole: Duration,
    /// The timeout for the head of a response, and for each further frame.
    pub timeout: Duration,
    /// The minimum time between two comparisons of all services.
    pub between: Duration,
    /// The time that a watch has to deliver changes that a list contains.
    pub lag: Duration,
}

impl Default for LiveTimeouts {
    fn default() -> Self {
        Self {
            whole: Duration::from_secs(8),
            timeout: Duration::from_secs(5),
            between: Duration::from_secs(10),
            lag: Duration::from_secs(1),
        }
    }
}

/// The number of objects in a page.
const PAGE: u32 = 500;

/// The maximum number of reported objects.
const MAX_REPORTED: usize = 1_000;

/// The maximum number of reported notices about objects that could not be decoded or are ignored.
const MAX_NOTICES: usize = 20;

/// Compares the table with the apiserver on request.
#[derive(Debug)]
pub struct Live {
    apiservers: Apiservers,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    timeouts: LiveTimeouts,
    /// The start of the latest comparison of all services. The lock is held during a comparison.
    last_whole: Mutex<Option<Instant>>,
}

/// The reason why there is no result, and the remedy.
struct Unanswered {
    cause: String,
    action: String,
}

impl Live {
    /// A comparison over the session in use at the time of the request.
    pub fn new(apiservers: Apiservers, snapshot: watch::Receiver<Arc<Snapshot>>, timeouts: LiveTimeouts) -> Self {
        Self { apiservers, snapshot, timeouts, last_whole: Mutex::new(None) }
    }

    /// The differences between the table and the apiserver, for one service or for all. If the comparison fails, the
    /// only row contains the reason.
    pub async fn differences(&self, service: Option<&ServiceName>) -> Vec<Difference> {
        match self.ask(service).await {
            Ok(rows) => rows,
            Err(Unanswered { cause, action }) => vec![Difference {
                between: Between::SourceMemory,
                what: "apiserver".into(),
                service: service.cloned(),
                source: Some("cannot be asked".into()),
                memory: Some("as last reported".into()),
                kernel: None,
                cause,
                action,
            }],
        }
    }

    async fn ask(&self, service: Option<&ServiceName>) -> Result<Vec<Difference>, Unanswered> {
        let refused = |cause: &str, action: &str| Unanswered { cause: cause.into(), action: action.into() };
        let Ok(mut last_whole) = self.last_whole.try_lock() else {
            return Err(refused("somebody else is asking just now", "ask again when that is answered"));
        };
        if service.is_none() {
            if last_whole.is_some_and(|last| last.elapsed() < self.timeouts.between) {
                let seconds = self.timeouts.between.as_secs();
                let action = format!("ask again in {seconds} s, or of one service only");
                return Err(refused("everything was asked for a moment ago, which is work for an apiserver", &action));
            }
            *last_whole = Some(Instant::now());
        }
        let Some(session) = self.apiservers.session.borrow().clone() else {
            return Err(refused(
                "no apiserver can be reached",
                "what was known before stays served; see `nodelb apiservers`",
            ));
        };
        match timeout(self.timeouts.whole, self.compare(&session, service)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(unanswered(&error)),
            Err(_elapsed) => {
                let cause = format!("{} took longer than {} s", session.link.at(), self.timeouts.whole.as_secs());
                Err(refused(&cause, "ask of one service only"))
            }
        }
    }

    async fn compare(&self, session: &Session, of: Option<&ServiceName>) -> Result<Vec<Difference>, LinkError> {
        let before = Arc::clone(&self.snapshot.borrow());
        let mut rows = Vec::new();
        let mut suspects = Vec::new();
        for kind in Kind::SERVED {
            let query = of.map_or_else(|| Query::all(kind), |name| Query::of_service(kind, name));
            let mut list = List::new(kind, before.facts(), of);
            self.read(session, query, &mut list).await?;
            rows.append(&mut list.notices);
            suspects.append(&mut list.end());
        }
        if suspects.is_empty() {
            return Ok(rows);
        }
        // A watch may deliver a change later than a list. Only differences that still exist after this delay count.
        sleep(self.timeouts.lag).await;
        let now = Arc::clone(&self.snapshot.borrow());
        let known = BTreeMap::from(Kind::SERVED.map(|kind| (kind, held(kind, now.facts(), of))));
        let at = session.link.at();
        let more = suspects.len().saturating_sub(MAX_REPORTED);
        let judged = |suspect: &Suspect| suspect.judge(known.get(&suspect.kind)?.get(&suspect.key), at);
        rows.extend(suspects.iter().take(MAX_REPORTED).filter_map(judged));
        if more > 0 {
            rows.push(row("objects", None, (format!("{more} more differ"), "as above".into()), String::new()));
        }
        Ok(rows)
    }

    /// Reads all pages of the list.
    async fn read(&self, session: &Session, mut query: Query, list: &mut List<'_>) -> Result<(), LinkError> {
        let mut decoder = Decoder::new(list.kind);
        let mut next = String::new();
        loop {
            let body = match session.link.get(&query.page(&next, PAGE)?, self.timeouts.timeout).await {
                Ok(answer) => answer.into_body(),
                Err(error) if next.is_empty() && query.make_do_without(&error) => continue,
                Err(error) => return Err(error),
            };
            let mut page = Page::new(body);
            while let Some(arrived) = page.more(&mut decoder, self.timeouts.timeout).await? {
                arrived.heard.into_iter().for_each(|heard| list.take(heard));
            }
            let shell = page.end()?;
            list.version = shell.version;
            next = shell.next;
            if next.is_empty() {
                return Ok(());
            }
        }
    }
}

fn unanswered(error: &LinkError) -> Unanswered {
    let action = match error {
        LinkError::Forbidden(_) => "give nodelb's user `list` on services and endpointslices (contrib/kubernetes)",
        LinkError::Unauthorized(_) => "see `nodelb apiservers`, and whether the credentials are still good",
        _ => "ask again; see `nodelb apiservers`",
    };
    Unanswered { cause: error.to_string(), action: format!("what was known before stays served; {action}") }
}

/// An object in the table.
#[derive(Clone, Copy)]
enum Held<'a> {
    Service(&'a Service),
    Slice(&'a Slice),
}

impl Held<'_> {
    fn origin(&self) -> &Origin {
        match self {
            Self::Service(service) => &service.origin,
            Self::Slice(slice) => &slice.origin,
        }
    }

    fn version(&self) -> Version {
        Version::of(&self.origin().resource_version)
    }

    fn key(&self) -> Key {
        let (namespace, name) = match self {
            Self::Service(service) => (&service.name.namespace, &service.name.name),
            Self::Slice(slice) => (&slice.name.namespace, &slice.name.name),
        };
        Key { namespace: namespace.clone(), name: name.clone() }
    }

    fn service(&self) -> &ServiceName {
        match self {
            Self::Service(service) => &service.name,
            Self::Slice(slice) => &slice.service,
        }
    }

    /// Whether a difference between the objects would not affect any connection.
    fn is_same(&self, object: &Object) -> bool {
        match (self, object) {
            (Self::Service(held), Object::Service(reported)) => same_service(held, reported),
            (Self::Slice(held), Object::Slice(reported)) => same_slice(held, reported),
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

/// The objects of one kind from Kubernetes in the table, for one service or for all.
fn held<'a>(kind: Kind, facts: &'a Facts, of: Option<&ServiceName>) -> BTreeMap<Key, Held<'a>> {
    let is_meant = |held: &Held<'_>| of.is_none_or(|of| of == held.service());
    let keyed = |held: Held<'a>| (held.key(), held);
    match kind {
        Kind::Service => facts.services_of(Source::Kubernetes).map(Held::Service).filter(is_meant).map(keyed).collect(),
        Kind::EndpointSlice => {
            facts.slices_of(Source::Kubernetes).map(Held::Slice).filter(is_meant).map(keyed).collect()
        }
        Kind::Node => BTreeMap::new(),
    }
}

/// An object that differs between the list and the table.
struct Suspect {
    kind: Kind,
    key: Key,
    /// The object in the list; `None` if the list lacks it or nodelb ignores it, as kube-proxy does.
    reported: Option<Object>,
    /// The version in the table before the list request.
    known: Option<Version>,
    /// The version of the list.
    listed: Version,
}

/// The list of one kind, compared with the table while it arrives.
struct List<'a> {
    kind: Kind,
    known: BTreeMap<Key, Held<'a>>,
    is_narrow: bool,
    seen: HashSet<Key>,
    version: Version,
    suspects: Vec<Suspect>,
    notices: Vec<Difference>,
}

impl<'a> List<'a> {
    fn new(kind: Kind, facts: &'a Facts, of: Option<&ServiceName>) -> Self {
        Self {
            kind,
            known: held(kind, facts, of),
            is_narrow: of.is_some(),
            seen: HashSet::new(),
            version: Version::default(),
            suspects: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn take(&mut self, heard: ObjectEvent) {
        match heard {
            ObjectEvent::Upsert(item) => self.take_item(*item),
            ObjectEvent::Skipped { key, reason } if self.notices.len() < MAX_NOTICES => {
                let what = key.as_ref().map_or_else(|| self.kind.name().to_owned(), |key| named(self.kind, key));
                self.seen.extend(key);
                let sides = ("an object that cannot be read".into(), "as it was known before".into());
                self.notices.push(row(what, None, sides, reason));
            }
            ObjectEvent::Skipped { key, .. } => self.seen.extend(key),
            ObjectEvent::Delete(_) | ObjectEvent::ListBegins { .. } | ObjectEvent::Listed(_) => {}
        }
    }

    fn take_item(&mut self, Item { identity, object, notices }: Item) {
        let key = identity.key;
        let held = self.known.get(&key).copied();
        if self.is_narrow {
            let room = MAX_NOTICES.saturating_sub(self.notices.len());
            let name = held.map(|held| held.service().clone());
            let sides = || ("has it".into(), "left out".into());
            self.notices.extend(
                notices.into_iter().take(room).map(|notice| row(named(self.kind, &key), name.clone(), sides(), notice)),
            );
        }
        let is_same = match (&held, &object) {
            (None, None) => true,
            (Some(held), Some(object)) => held.is_same(object),
            _ => false,
        };
        if !is_same && self.suspects.len() <= MAX_REPORTED {
            let known = held.map(|held| held.version());
            let suspect =
                Suspect { kind: self.kind, key: key.clone(), reported: object, known, listed: Version::default() };
            self.suspects.push(suspect);
        }
        self.seen.insert(key);
    }

    /// The differences, after the list is complete.
    fn end(mut self) -> Vec<Suspect> {
        self.add_gone();
        let listed = self.version;
        self.suspects.into_iter().map(|suspect| Suspect { listed, ..suspect }).collect()
    }

    /// Adds the objects that the list lacks, except those with a newer version than the list.
    fn add_gone(&mut self) {
        let gone = self.known.iter().filter(|(key, held)| !self.seen.contains(*key) && held.version() <= self.version);
        let room = (MAX_REPORTED + 1).saturating_sub(self.suspects.len());
        self.suspects.extend(gone.take(room).map(|(key, held)| Suspect {
            kind: self.kind,
            key: key.clone(),
            reported: None,
            known: Some(held.version()),
            listed: self.version,
        }));
    }
}

impl Suspect {
    /// The row for this object, if it still differs. An object that appeared or disappeared in the meantime is a change
    /// that is still being processed. If the watch has since delivered a version newer than the list, the watch works.
    fn judge(&self, held: Option<&Held<'_>>, at: SocketAddr) -> Option<Difference> {
        let (sides, cause) = match (held, &self.reported) {
            (None, Some(reported)) if self.known.is_none() => {
                let reported = listed_as_held(reported)?;
                let cause = format!("{} has not arrived by watch", cause(reported.origin()));
                ((reported.text(), "absent".to_owned()), cause)
            }
            (Some(held), None) if held.version() <= self.listed => {
                let cause = "its removal, or the change that made it none of nodelb's, has not arrived by watch";
                ((format!("absent at {at}, or left out"), held.text()), cause.to_owned())
            }
            (Some(held), Some(reported)) if self.known.is_some() && !held.is_same(reported) => {
                let reported = listed_as_held(reported)?;
                let cause = match reported.version().cmp(&held.version()) {
                    std::cmp::Ordering::Greater => format!("{} has not arrived by watch", cause(reported.origin())),
                    std::cmp::Ordering::Less if self.known != Some(held.version()) => return None,
                    std::cmp::Ordering::Less => {
                        format!("{at} is behind the apiserver that was watched, or the cluster was restored")
                    }
                    std::cmp::Ordering::Equal => {
                        "the same resourceVersion reads differently: please report this bug of nodelb".to_owned()
                    }
                };
                ((reported.text(), held.text()), cause)
            }
            _ => return None,
        };
        let service = held.map(|held| held.service().clone());
        let service = service.or_else(|| Some(listed_as_held(self.reported.as_ref()?)?.service().clone()));
        Some(row(named(self.kind, &self.key), service, sides, cause))
    }
}

fn listed_as_held(object: &Object) -> Option<Held<'_>> {
    match object {
        Object::Service(service) => Some(Held::Service(service)),
        Object::Slice(slice) => Some(Held::Slice(slice)),
        Object::Node(_) => None,
    }
}

fn cause(origin: &Origin) -> Cause {
    Cause { origin: origin.clone(), is_removed: false }
}

fn named(kind: Kind, key: &Key) -> String {
    format!("{} {}/{}", kind.name(), key.namespace, key.name)
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
            "the watch goes on (`nodelb sources` tells how old it is); a restart of nodelb lists everything anew, and \
                 connections go on"
                .into(),
    }
}

#[cfg(test)]
#[path = "tests/live.rs"]
mod tests;
