//! Lists and watches one kind over one connection. Owns the position in the cluster's history; [`cache`](super::cache)
//! finds the differences.

use std::time::Duration;

use futures_util::future::select_all;
use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::decode::{Decode, Kind, ListWatchEvent, Version, event_without_object, invalid};
use nodelb_kube::api::list_watch::{ListWatch, Start, Timeouts};
use nodelb_kube::api::objects::Envelope;
use nodelb_kube::api::request::Query;
use nodelb_kube::api::scope::Selection;
use nodelb_kube::apiserver::connection::error::LinkError;
use nodelb_kube::apiserver::connection::link::Link;
use nodelb_kube::apiserver::one_shot::{ANSWER, Connected};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::cache::Cache;
use super::line::Line;
use crate::answer::now;

/// The watch is restarted after this time without an event. Bookmarks arrive about once a minute.
const SILENCE: Duration = Duration::from_secs(90);

/// Minimum duration of a watch.
const WATCH: Duration = Duration::from_secs(300);

const PAGE: u32 = 500;

/// Pause after each list and watch.
const PAUSE: Duration = Duration::from_millis(500);

/// The list and watch of one kind.
#[derive(Debug)]
pub(super) struct Follower {
    query: Query,
    cache: Cache,
    /// Every event up to this version was received; `None` if a list comes first.
    version: Option<Version>,
    /// Whether the objects of the first list are printed one by one.
    prints_first_list: bool,
}

/// Decodes objects without interpreting them. Objects that cannot be decoded are left out.
struct Raw;

impl Decode for Raw {
    type Object = Value;

    fn item(&mut self, bytes: &[u8]) -> ListWatchEvent<Value> {
        match serde_json::from_slice(bytes) {
            Ok(object) => ListWatchEvent::Upsert(object),
            Err(error) => ListWatchEvent::Skipped { key: None, reason: error.to_string() },
        }
    }

    fn event(&mut self, bytes: &[u8]) -> Result<ListWatchEvent<Value>, LinkError> {
        let Envelope { kind, object }: Envelope<'_, Value> =
            serde_json::from_slice(bytes).map_err(|error| invalid(&format!("not a watch event: {error}")))?;
        match &*kind {
            "ADDED" | "MODIFIED" => Ok(ListWatchEvent::Upsert(object)),
            "DELETED" => Ok(ListWatchEvent::Delete(object)),
            kind => event_without_object(kind, object.to_string().as_bytes()),
        }
    }
}

impl Follower {
    /// Creates followers of Services and of EndpointSlices: of one service, or of all that nodelb may read.
    pub(super) fn all(service: Option<&ServiceName>, selection: &Selection) -> Vec<Self> {
        let queries = match service {
            None if *selection != Selection::default() => selection.scopes().iter().map(Query::of).collect(),
            _ => Vec::from(Kind::SERVED.map(|kind| Query::unfiltered(kind, service))),
        };
        let prints_first_list = service.is_some();
        let follower = |query: Query| {
            let cache = Cache::new(query.kind.name());
            Self { query, cache, version: None, prints_first_list }
        };
        queries.into_iter().map(follower).collect()
    }

    /// Lists and watches until the connection fails.
    async fn run(&mut self, link: &Link, lines: &mpsc::Sender<Line>) -> LinkError {
        loop {
            match self.list_or_watch(link, lines).await {
                Ok(()) => {}
                Err(LinkError::Gone(_)) => self.version = None,
                Err(error) => return error,
            }
            sleep(PAUSE).await;
        }
    }

    async fn list_or_watch(&mut self, link: &Link, lines: &mpsc::Sender<Line>) -> Result<(), LinkError> {
        let (start, silence) = match self.version {
            Some(version) => (Start::Version(version), SILENCE),
            None => (Start::List { page: PAGE }, ANSWER),
        };
        let timeouts = Timeouts { head: ANSWER, silence, watch: WATCH };
        let mut response = ListWatch::open(link, self.query.clone(), start, timeouts).await?;
        // Later lists show the differences that occurred while there was no watch.
        let prints = response.is_streaming() || self.prints_first_list || self.cache.was_listed;
        if !response.is_streaming() {
            self.cache.apply(ListWatchEvent::ListStart { is_rewound: false });
        }
        loop {
            let events = match response.next(&mut Raw).await {
                Ok(Some(events)) => events,
                Ok(None) => return Ok(()),
                Err(LinkError::TimedOut(_)) if response.is_streaming() => return Ok(()),
                Err(error) => return Err(error),
            };
            for event in events {
                let is_list_done = matches!(event, ListWatchEvent::ListDone(_));
                if is_list_done || response.is_streaming() {
                    self.version = self.version.max(Some(version_of(&event)));
                }
                let now = now();
                for change in self.cache.apply(event).into_iter().filter(|_| prints) {
                    send(lines, Line::event(now, change)).await;
                }
                if is_list_done {
                    let text =
                        format!("listed {} objects of kind {}; watching", self.cache.len(), self.query.kind.name());
                    send(lines, Line::notice(now, text)).await;
                }
            }
        }
    }
}

fn version_of(event: &ListWatchEvent<Value>) -> Version {
    match event {
        ListWatchEvent::Upsert(object) | ListWatchEvent::Delete(object) => {
            Version::parse(object["metadata"]["resourceVersion"].as_str().unwrap_or_default())
        }
        ListWatchEvent::ListDone(version) | ListWatchEvent::Bookmark(version) => *version,
        ListWatchEvent::ListStart { .. } | ListWatchEvent::Skipped { .. } => Version::default(),
    }
}

pub(super) async fn send(lines: &mpsc::Sender<Line>, line: Line) {
    // The channel is closed only when the command ends.
    let _ = lines.send(line).await;
}

/// Follows everything until the connection fails, and returns the reason.
pub(super) async fn over(connected: &Connected, followers: &mut [Follower], lines: &mpsc::Sender<Line>) -> LinkError {
    let link = &connected.link;
    let running = followers.iter_mut().map(|follower| Box::pin(follower.run(link, lines)));
    tokio::select! {
        error = link.ended() => error,
        (error, ..) = select_all(running) => error,
    }
}
