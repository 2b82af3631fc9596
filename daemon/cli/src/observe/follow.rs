//! Lists and watches one kind over one link. Owns the position in the cluster's history; [`known`](super::known) finds
//! the differences.

use std::time::{Duration, SystemTime};

use http_body_util::BodyExt;
use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::decode::Kind;
use nodelb_kube::api::objects::ListMetadata;
use nodelb_kube::api::request::Query;
use nodelb_kube::api::splitter::{Lines, Piece, Splitter};
use nodelb_kube::apiserver::error::LinkError;
use nodelb_kube::apiserver::link::Link;
use nodelb_kube::apiserver::one_shot::{ANSWER, Connected};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::cache::Cache;
use super::line::{Event, Line};

/// Time without an event after which the watch is opened again. Bookmarks arrive about once a minute.
const SILENCE: Duration = Duration::from_secs(90);

/// Minimum duration of a watch that is requested.
const WATCH: Duration = Duration::from_secs(300);

/// Number of objects per page.
const PAGE: u32 = 500;

/// Pause after a watch that ended immediately.
const PAUSE: Duration = Duration::from_millis(500);

/// The list and watch of one kind.
#[derive(Debug)]
pub(super) struct Follower {
    kind: &'static str,
    query: Query,
    known: Cache,
    /// The version up to which every event was received; `None` if a list comes first.
    version: Option<String>,
    /// Whether the objects of the first list are printed one by one.
    tells_all: bool,
}

/// How a list or a watch ended without an error.
enum End {
    /// The watch can continue from here.
    Resume,
    /// The apiserver no longer has the version.
    TooOld,
}

/// An event of a watch.
#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// A list without its items.
#[derive(Deserialize)]
struct Shell {
    metadata: ListMetadata,
}

impl Follower {
    /// Creates a follower of Services and one of EndpointSlices: of one service, or of all.
    pub(super) fn both(service: Option<&ServiceName>) -> [Self; 2] {
        Kind::SERVED.map(|kind| Self {
            kind: kind.name(),
            query: Query::unfiltered(kind, service),
            known: Cache::default(),
            version: None,
            tells_all: service.is_some(),
        })
    }

    /// Lists and watches until the link cannot be used any more.
    async fn go_on(&mut self, link: &Link, lines: &mpsc::Sender<Line>) -> LinkError {
        loop {
            let end = match self.version.clone() {
                None => self.list(link, lines).await,
                Some(version) => self.watch(link, &version, lines).await,
            };
            match end {
                Ok(End::Resume) => {}
                Ok(End::TooOld) => self.version = None,
                Err(error) => return error,
            }
            sleep(PAUSE).await;
        }
    }

    /// Lists all pages. Differences from the known objects are printed, because they happened while there was no watch.
    async fn list(&mut self, link: &Link, lines: &mpsc::Sender<Line>) -> Result<End, LinkError> {
        let tells = self.tells_all || self.known.is_informed();
        self.known.begin_list();
        let mut next = String::new();
        loop {
            let answer = match link.get(&self.query.page(&next, PAGE)?, ANSWER).await {
                Err(LinkError::Gone(_)) => return Ok(End::TooOld),
                answer => answer?,
            };
            let mut found = Page::default();
            self.read(answer.into_body(), &mut found).await?;
            let reported = found.objects.into_iter().filter_map(|object| self.known.listed(self.kind, object));
            let reported: Vec<Event> = reported.filter(|_| tells).collect();
            send(lines, reported).await;
            let Some(Shell { metadata }) = found.shell else {
                return Err(LinkError::Broken("a list ended before it was complete".into()));
            };
            if metadata.next.is_empty() {
                let gone = self.known.end_list(self.kind);
                send(lines, gone).await;
                self.version = Some(metadata.resource_version);
                let text = format!("listed {} objects of kind {}; watching", self.known.len(), self.kind);
                // The channel is closed only when the command ends.
                let _ = lines.send(Line::notice(SystemTime::now(), text)).await;
                return Ok(End::Resume);
            }
            next = metadata.next;
        }
    }

    async fn watch(&mut self, link: &Link, version: &str, lines: &mpsc::Sender<Line>) -> Result<End, LinkError> {
        let answer = match link.get(&self.query.watch(version, WATCH)?, ANSWER).await {
            Err(LinkError::Gone(_)) => return Ok(End::TooOld),
            answer => answer?,
        };
        let (mut body, mut arrived) = (answer.into_body(), Lines::default());
        loop {
            let frame = match timeout(SILENCE, body.frame()).await {
                Ok(Some(frame)) => frame?,
                Ok(None) | Err(_) => return Ok(End::Resume),
            };
            let Ok(data) = frame.into_data() else { continue };
            let mut events = Vec::new();
            arrived.feed(&data, |piece| events.extend(decode_event(&piece))).map_err(|error| broken(&error))?;
            for event in events {
                if let Some(end) = self.receive(event?, lines).await? {
                    return Ok(end);
                }
            }
        }
    }

    async fn receive(
        &mut self,
        WatchEvent { kind, object }: WatchEvent,
        lines: &mpsc::Sender<Line>,
    ) -> Result<Option<End>, LinkError> {
        let version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let event = match kind.as_str() {
            "ADDED" | "MODIFIED" => Some(self.known.changed(self.kind, object)),
            "DELETED" => Some(self.known.deleted(self.kind, &object)),
            "ERROR" if object["code"] == 410 => return Ok(Some(End::TooOld)),
            "ERROR" => return Err(LinkError::Broken(format!("the watch ended: {}", object["message"]))),
            _ => None,
        };
        self.version = version.or(self.version.take());
        send(lines, event).await;
        Ok(None)
    }

    async fn read(&self, mut body: nodelb_kube::apiserver::link::Body, found: &mut Page) -> Result<(), LinkError> {
        let mut splitter = Splitter::default();
        loop {
            let frame = match timeout(ANSWER, body.frame()).await {
                Ok(Some(frame)) => frame?,
                Ok(None) => return Ok(()),
                Err(_elapsed) => {
                    return Err(LinkError::TimedOut(format!(
                        "the list of {} goes on for more than {ANSWER:?}",
                        self.kind
                    )));
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            splitter.feed(&data, |piece| found.take(&piece)).map_err(|error| broken(&error))?;
        }
    }
}

/// The content of one page.
#[derive(Default)]
struct Page {
    objects: Vec<Value>,
    shell: Option<Shell>,
}

impl Page {
    /// Takes one object. One that cannot be read or is too long is left out: the others are still worth showing.
    fn take(&mut self, piece: &Piece<'_>) {
        match piece {
            Piece::Object(bytes) => self.objects.extend(serde_json::from_slice::<Value>(bytes).ok()),
            Piece::Shell(bytes) => self.shell = serde_json::from_slice(bytes).ok(),
            Piece::TooLong => {}
        }
    }
}

fn decode_event(piece: &Piece<'_>) -> Option<Result<WatchEvent, LinkError>> {
    match piece {
        Piece::Object(bytes) => Some(serde_json::from_slice(bytes).map_err(|error| broken(&error))),
        Piece::TooLong | Piece::Shell(_) => None,
    }
}

fn broken(error: &dyn std::error::Error) -> LinkError {
    LinkError::Broken(format!("cannot decode the response: {error}"))
}

async fn send(lines: &mpsc::Sender<Line>, events: impl IntoIterator<Item = Event>) {
    for event in events {
        // The channel is closed only when the command ends.
        let _ = lines.send(Line::event(SystemTime::now(), event)).await;
    }
}

/// Follows both kinds until the link breaks, and returns the reason.
pub(super) async fn over(
    connected: &Connected,
    followers: &mut [Follower; 2],
    lines: &mpsc::Sender<Line>,
) -> LinkError {
    let [services, slices] = followers;
    tokio::select! {
        error = connected.link.ended() => error,
        error = services.go_on(&connected.link, lines) => error,
        error = slices.go_on(&connected.link, lines) => error,
    }
}
