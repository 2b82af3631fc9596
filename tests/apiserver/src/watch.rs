//! Watches: sends the events that a client has not received yet, in order, one JSON line each;
//! bookmarks; and injected faults.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::cluster::Cluster;
use crate::faults::{Behaviour, EventFault, Fault, Faults, Interrupt, WatchList};
use crate::list::{check_not_ahead, chosen, revision, selector, store_revision};
use crate::reply::{Broken, FLUSH, Piece};
use crate::request::Request;
use crate::resource::Resource;
use crate::selector::Selector;
use crate::status::Status;
use crate::store::{Event, EventKind, Object, Objects};

/// A watch request that was accepted.
pub(crate) struct Watch {
    cluster: Cluster,
    faults: Arc<Faults>,
    request: Request,
    resource: &'static Resource,
    selector: Selector,
    /// The last revision that the client has received.
    seen: u64,
    initial: Initial,
    /// The content and revision at the time of the request, not at the time when the client starts
    /// to read.
    objects: Objects,
    current: u64,
    compacted: u64,
    /// The offset of the revisions that the client sees.
    offset: u64,
    bookmarks: Option<Duration>,
    deadline: Instant,
    fault: Option<Fault>,
    /// Signals since the time of the request.
    interrupts: watch::Receiver<(u64, Interrupt)>,
    /// An event that is sent after the next one.
    swapped: Option<Bytes>,
}

/// The initial events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Initial {
    Nothing,
    /// All objects.
    Objects,
    /// All objects, then a bookmark that marks their end.
    Marked,
}

/// Why a watch ends.
enum End {
    /// The timeout has expired, or the client has disconnected.
    Clean,
    /// The connection is broken by a fault.
    Broken,
}

type Step = Result<(), End>;

impl Watch {
    /// Validates a request.
    ///
    /// # Errors
    /// 400, 410, 422 or 504, as a real apiserver.
    pub(crate) fn new(
        cluster: &Cluster,
        faults: &Arc<Faults>,
        resource: &'static Resource,
        request: Request,
        fault: Option<Fault>,
    ) -> Result<Self, Status> {
        let behaviour = faults.behaviour();
        let interrupts = faults.interrupts.subscribe();
        let selector = selector(resource, &request)?;
        let asked = revision(request.parameter("resourceVersion"))?;
        let marked = streams_list(&request, behaviour.watch_list)?;
        let (objects, current, compacted) =
            cluster.read(|state| (state.store.objects(resource), state.store.revision(), state.store.compacted()));
        let (asked, offset) =
            cluster.read(|state| (store_revision(&state.store, resource, asked), state.store.offset(resource)));
        let initial = match (marked, asked) {
            (true, _) => Initial::Marked,
            (false, 0) => Initial::Objects,
            (false, _) => Initial::Nothing,
        };
        if marked {
            check_not_ahead(asked, current)?;
        }
        if behaviour.expired_as_status && initial == Initial::Nothing && asked < compacted {
            return Err(Status::expired(asked, compacted));
        }
        let bookmarks = behaviour.bookmarks.filter(|_| request.flag("allowWatchBookmarks"));
        let deadline = Instant::now() + lasts(&request, &behaviour)?;
        let (cluster, faults) = (cluster.clone(), faults.clone());
        Ok(Self {
            cluster,
            faults,
            request,
            resource,
            selector,
            seen: asked,
            objects,
            current,
            compacted,
            offset,
            initial,
            bookmarks,
            deadline,
            fault,
            interrupts,
            swapped: None,
        })
    }

    /// Sends events until the timeout, the end of the connection or a fault.
    pub(crate) async fn run(mut self, to: mpsc::Sender<Piece>) {
        let mut interrupts = self.interrupts.clone();
        let ended = tokio::select! {
            ended = self.send(&to) => ended,
            _ = interrupts.changed() => {
                let interrupt = interrupts.borrow().1;
                match interrupt {
                    Interrupt::End => Ok(()),
                    Interrupt::Expire => self.error(&to, &Status::expired(self.seen, self.seen + 1)).await,
                }
            }
            () = to.closed() => Ok(()),
        };
        if let Err(End::Broken) = ended {
            tokio::time::sleep(FLUSH).await;
            let _ = to.send(Err(Broken)).await;
        }
    }

    async fn send(&mut self, to: &mpsc::Sender<Piece>) -> Step {
        match self.fault.clone() {
            Some(Fault::Silence) => return self.silence().await,
            Some(Fault::ErrorEvent { code: 410 }) => {
                return self.error(to, &Status::expired(self.seen, self.seen + 1)).await;
            }
            Some(Fault::ErrorEvent { code }) => {
                return self.error(to, &Status::new(code, "injected fault: ERROR event")).await;
            }
            Some(Fault::Garbage { bytes }) => self.line(to, Bytes::from(bytes)).await?,
            _ => {}
        }
        let mut changed = self.cluster.changes();
        changed.mark_unchanged();
        let started = self.begin(to).await?;
        self.seen = started;
        let mut bookmarked = self.seen;
        let mut next_bookmark = self.bookmarks.map(|every| Instant::now() + every);
        loop {
            let (events, now) =
                self.cluster.read(|state| (state.store.since(self.resource, self.seen), state.store.revision()));
            let events = match events {
                Ok(events) => events,
                Err(status) => return self.error(to, &status).await,
            };
            for event in events {
                self.seen = event.revision;
                self.event(to, &event).await?;
            }
            self.seen = self.seen.max(now);
            let bookmark_at = next_bookmark.unwrap_or(self.deadline).min(self.deadline);
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep_until(bookmark_at) => {
                    let over = Instant::now() >= self.deadline;
                    if self.bookmarks.is_some() && self.seen > bookmarked && self.swapped.is_none() {
                        bookmarked = self.seen;
                        self.bookmark(to, false).await?;
                    }
                    if over {
                        return Ok(());
                    }
                    next_bookmark = self.bookmarks.map(|every| Instant::now() + every);
                }
            }
        }
    }

    /// Sends the initial events; returns their revision.
    async fn begin(&mut self, to: &mpsc::Sender<Piece>) -> Result<u64, End> {
        if self.initial == Initial::Nothing {
            if self.seen < self.compacted {
                self.error(to, &Status::expired(self.seen, self.compacted)).await?;
                return Err(End::Clean);
            }
            return Ok(self.seen);
        }
        let objects = std::mem::take(&mut self.objects);
        let mut chosen = chosen(&objects, &self.request, &self.selector, None);
        if let Some(Fault::Keep { items }) = self.fault {
            chosen.truncate(items);
        }
        for (_, object) in chosen {
            self.line(to, encode("ADDED", object)).await?;
        }
        self.seen = self.current;
        if self.initial == Initial::Marked && self.request.flag("allowWatchBookmarks") {
            self.bookmark(to, true).await?;
        }
        Ok(self.current)
    }

    /// Sends one event if the client has selected the object.
    async fn event(&mut self, to: &mpsc::Sender<Piece>, event: &Event) -> Step {
        let sees = |object: &Object| {
            let metadata = &object.value["metadata"];
            let part = |name: &str| metadata[name].as_str().unwrap_or_default();
            self.request.covers(part("namespace"), part("name")) && self.selector.matches(&object.value)
        };
        let before = event.previous.as_deref().is_some_and(sees);
        let after = event.kind != EventKind::Deleted && sees(&event.object);
        let bytes = match (before, after) {
            (false, false) => return Ok(()),
            (false, true) => encode("ADDED", &event.object),
            (true, true) => encode("MODIFIED", &event.object),
            (true, false) if event.kind == EventKind::Deleted => encode("DELETED", &event.object),
            // The object still exists but is no longer selected: send the old content with the new
            // revision.
            (true, false) => encode("DELETED", &self.as_it_was(event)),
        };
        match self.faults.for_event(self.resource.plural, false) {
            Some(EventFault::Swap) => {
                if let Some(earlier) = self.swapped.replace(bytes) {
                    self.line(to, earlier).await?;
                }
                return Ok(());
            }
            Some(EventFault::Duplicate) => self.line(to, bytes.clone()).await?,
            Some(fault) => self.inject(to, fault, &bytes).await?,
            None => {}
        }
        self.line(to, bytes).await?;
        match self.swapped.take() {
            Some(earlier) => self.line(to, earlier).await,
            None => Ok(()),
        }
    }

    fn as_it_was(&self, event: &Event) -> Object {
        let mut value = event.previous.as_ref().map_or(Value::Null, |previous| previous.value.clone());
        value["metadata"]["resourceVersion"] = (event.revision + self.offset).to_string().into();
        Object { bytes: value.to_string().into(), value }
    }

    /// Injects a fault in addition to a line or instead of it.
    async fn inject(&mut self, to: &mpsc::Sender<Piece>, fault: EventFault, line: &Bytes) -> Step {
        match fault {
            EventFault::Duplicate | EventFault::Swap => Ok(()),
            EventFault::Silence => self.silence().await,
            EventFault::Cut { after } => {
                self.line(to, line.slice(..after.min(line.len()))).await?;
                Err(End::Broken)
            }
            EventFault::Error { code } => {
                let status = match code {
                    410 => Status::expired(self.seen, self.seen + 1),
                    code => Status::new(code, "injected fault: ERROR event"),
                };
                self.error(to, &status).await?;
                Err(End::Clean)
            }
            EventFault::Garbage { bytes } => self.line(to, format!("{bytes}\n").into()).await,
        }
    }

    /// Sends nothing more until the client disconnects.
    async fn silence(&self) -> Step {
        std::future::pending().await
    }

    async fn bookmark(&mut self, to: &mpsc::Sender<Piece>, ends_list: bool) -> Step {
        let mut metadata = json!({"resourceVersion": (self.seen + self.offset).to_string(), "creationTimestamp": null});
        if ends_list {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, version) = (self.resource.kind, self.resource.api_version());
        let object = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        let line = Bytes::from(format!("{}\n", json!({"type": "BOOKMARK", "object": object})));
        if !ends_list && let Some(fault) = self.faults.for_event(self.resource.plural, true) {
            self.inject(to, fault, &line).await?;
        }
        self.line(to, line).await
    }

    async fn error(&self, to: &mpsc::Sender<Piece>, status: &Status) -> Step {
        self.send_line(to, format!("{}\n", json!({"type": "ERROR", "object": status.body()})).into()).await
    }

    async fn line(&mut self, to: &mpsc::Sender<Piece>, mut line: Bytes) -> Step {
        let (left, end) = match &mut self.fault {
            Some(Fault::Cut { after }) => (after, End::Broken),
            Some(Fault::Truncate { after }) => (after, End::Clean),
            _ => return self.send_line(to, line).await,
        };
        let is_last = line.len() > *left;
        line.truncate(*left);
        *left -= line.len();
        to.send(Ok(line)).await.or(Err(End::Clean))?;
        if is_last { Err(end) } else { Ok(()) }
    }

    async fn send_line(&self, to: &mpsc::Sender<Piece>, line: Bytes) -> Step {
        to.send(Ok(line)).await.or(Err(End::Clean))
    }
}

/// Whether the client requests a streaming list; 422 if the server does not support it.
fn streams_list(request: &Request, watch_list: WatchList) -> Result<bool, Status> {
    let asked = request.flag("sendInitialEvents");
    let named = !request.parameter("sendInitialEvents").is_empty();
    let matching = request.parameter("resourceVersionMatch");
    let invalid = |why: &str| Err(Status::new(422, format!("ListOptions.meta.k8s.io \"\" is invalid: {why}")));
    match watch_list {
        WatchList::Unsupported => Ok(false),
        WatchList::Off if named => invalid(
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ),
        _ if !named && !matching.is_empty() => invalid(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        _ if named && matching != "NotOlderThan" => invalid(
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        _ => Ok(asked),
    }
}

fn lasts(request: &Request, behaviour: &Behaviour) -> Result<Duration, Status> {
    let asked = match request.parameter("timeoutSeconds") {
        "" | "0" => return Ok(behaviour.watch_timeout),
        text => text.parse().map_err(|error| Status::new(400, format!("timeoutSeconds {text:?}: {error}")))?,
    };
    Ok(Duration::from_secs(asked).min(behaviour.watch_timeout))
}

fn encode(kind: &str, object: &Object) -> Bytes {
    let mut line = Vec::with_capacity(object.bytes.len() + 40);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(&object.bytes);
    line.extend_from_slice(b"}\n");
    line.into()
}
