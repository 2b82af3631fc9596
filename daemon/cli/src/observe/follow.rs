//! Lists and watches one kind over one link. Owns where it is in the cluster's history; what differs is told by
//! [`known`](super::known).

use std::time::{Duration, SystemTime};

use http_body_util::BodyExt;
use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::decode::Kind;
use nodelb_kube::api::objects::ListMetadata;
use nodelb_kube::api::request::{path, question, selector};
use nodelb_kube::api::splitter::{Lines, Piece, Splitter};
use nodelb_kube::apiserver::error::LinkError;
use nodelb_kube::apiserver::link::Link;
use nodelb_kube::apiserver::visit::{ANSWER, Visit};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::known::Known;
use super::line::{Event, Line};

/// Bookmarks come about once a minute; then the watch is made again.
const SILENCE: Duration = Duration::from_secs(90);

/// How long a watch is asked for.
const WATCH_SECONDS: &str = "300";

/// Objects a page.
const PAGE: &str = "500";

/// Between two watches that ended at once.
const PAUSE: Duration = Duration::from_millis(500);

/// One kind.
#[derive(Debug)]
pub(super) struct Follower {
    kind: &'static str,
    path: String,
    /// Which of them.
    selector: Option<(&'static str, String)>,
    known: Known,
    /// Up to where everything was heard; `None`: list first.
    version: Option<String>,
    /// Whether the objects of the first list are told one by one.
    tells_all: bool,
}

/// How a list or a watch ended without an error.
enum End {
    /// Watch from here on.
    Resume,
    /// The version is too old.
    TooOld,
}

/// What a watch sends.
#[derive(Deserialize)]
struct Heard {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// A list beside its items.
#[derive(Deserialize)]
struct Shell {
    metadata: ListMetadata,
}

impl Follower {
    /// One of Services and one of EndpointSlices: of one service, or of all.
    pub(super) fn both(service: Option<&ServiceName>) -> [Self; 2] {
        Kind::SERVED.map(|kind| Self {
            kind: kind.name(),
            path: path(kind, service.map(|name| &*name.namespace)),
            selector: service.map(|name| selector(kind, name)),
            known: Known::default(),
            version: None,
            tells_all: service.is_some(),
        })
    }

    /// Until the link is of no more use.
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

    fn question(&self, more: &[(&str, &str)]) -> String {
        let selector = self.selector.iter().map(|(key, value)| (*key, value.as_str()));
        question(&self.path, &selector.chain(more.iter().copied()).collect::<Vec<_>>())
    }

    /// All pages. What differs from what was known is told, since that happened while nobody watched.
    async fn list(&mut self, link: &Link, lines: &mpsc::Sender<Line>) -> Result<End, LinkError> {
        let tells = self.tells_all || self.known.is_informed();
        self.known.begin_list();
        let mut next = String::new();
        loop {
            let mut more = vec![("limit", PAGE)];
            if !next.is_empty() {
                more.push(("continue", &next));
            }
            let answer = match link.get(&self.question(&more), ANSWER).await {
                Err(LinkError::Gone(_)) => return Ok(End::TooOld),
                answer => answer?,
            };
            let mut found = Page::default();
            self.read(answer.into_body(), &mut found).await?;
            let told = found.objects.into_iter().filter_map(|object| self.known.listed(self.kind, object));
            let told: Vec<Event> = told.filter(|_| tells).collect();
            tell(lines, told).await;
            let Some(Shell { metadata }) = found.shell else {
                return Err(LinkError::Broken("a list ended before it was complete".into()));
            };
            if metadata.next.is_empty() {
                let gone = self.known.end_list(self.kind);
                tell(lines, gone).await;
                self.version = Some(metadata.resource_version);
                let text = format!("{} of kind {} listed, watching them", self.known.len(), self.kind);
                // Nobody listens any more only when the command ends.
                let _ = lines.send(Line::notice(SystemTime::now(), text)).await;
                return Ok(End::Resume);
            }
            next = metadata.next;
        }
    }

    async fn watch(&mut self, link: &Link, version: &str, lines: &mpsc::Sender<Line>) -> Result<End, LinkError> {
        let parameters = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", WATCH_SECONDS),
            ("resourceVersion", version),
        ];
        let answer = match link.get(&self.question(&parameters), ANSWER).await {
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
            arrived.feed(&data, |piece| events.extend(heard(&piece))).map_err(|error| broken(&error))?;
            for event in events {
                if let Some(end) = self.hear(event?, lines).await? {
                    return Ok(end);
                }
            }
        }
    }

    async fn hear(
        &mut self,
        Heard { kind, object }: Heard,
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
        tell(lines, event).await;
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

/// What a page holds.
#[derive(Default)]
struct Page {
    objects: Vec<Value>,
    shell: Option<Shell>,
}

impl Page {
    /// An object that cannot be read, or is too long, is left out: the others are worth showing.
    fn take(&mut self, piece: &Piece<'_>) {
        match piece {
            Piece::Object(bytes) => self.objects.extend(serde_json::from_slice::<Value>(bytes).ok()),
            Piece::Shell(bytes) => self.shell = serde_json::from_slice(bytes).ok(),
            Piece::TooLong => {}
        }
    }
}

fn heard(piece: &Piece<'_>) -> Option<Result<Heard, LinkError>> {
    match piece {
        Piece::Object(bytes) => Some(serde_json::from_slice(bytes).map_err(|error| broken(&error))),
        Piece::TooLong | Piece::Shell(_) => None,
    }
}

fn broken(error: &dyn std::error::Error) -> LinkError {
    LinkError::Broken(format!("what arrives makes no sense: {error}"))
}

async fn tell(lines: &mpsc::Sender<Line>, events: impl IntoIterator<Item = Event>) {
    for event in events {
        // Nobody listens any more only when the command ends.
        let _ = lines.send(Line::event(SystemTime::now(), event)).await;
    }
}

/// Follows both kinds until the link breaks; why it did.
pub(super) async fn over(visit: &Visit, followers: &mut [Follower; 2], lines: &mpsc::Sender<Line>) -> LinkError {
    let [services, slices] = followers;
    tokio::select! {
        error = visit.link.ended() => error,
        error = services.go_on(&visit.link, lines) => error,
        error = slices.go_on(&visit.link, lines) => error,
    }
}
