//! Lists and watches the objects of one kind over one connection, and decodes the responses while they arrive. Does not
//! retry: its users decide when to resume and when to list again.

use std::time::Duration;

use http_body_util::BodyExt;
use nodelb_host::messages;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;
use tracing::warn;

use super::decode::{Decode, ListWatchEvent, Version, invalid, list_metadata};
use super::objects::ListMetadata;
use super::request::Query;
use super::splitter::{Lines, MAX_OBJECT, Piece, SplitError, Splitter};
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::connection::link::{Body, Link};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// All objects, and nothing after them, in pages of this many objects; 0 for one page.
    List { page: u32 },
    /// All objects and then all changes (KEP-3157).
    StreamingList,
    /// All changes after this version.
    Version(Version),
}

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The timeout for the head of each response.
    pub head: Duration,
    /// The maximum time between two chunks of a response.
    pub silence: Duration,
    /// The minimum duration of a watch. The requested duration is random, up to twice as long.
    pub watch: Duration,
}

/// A list or watch. [`Self::next`] returns its events.
pub struct ListWatch<'l> {
    link: &'l Link,
    query: Query,
    /// The time limits. The caller may change them while the response arrives.
    pub timeouts: Timeouts,
    body: Body,
    response: Response,
    /// The error that follows the events of the latest chunk.
    error: Option<LinkError>,
    /// Whether events were lost because they could not be decoded, so that only another list shows their content.
    pub has_lost_events: bool,
}

enum Response {
    Page { size: u32, splitter: Splitter, metadata: Option<Result<ListMetadata, LinkError>> },
    Stream { lines: Lines, is_list: bool },
    Done,
}

impl Response {
    fn page(size: u32) -> Self {
        Self::Page { size, splitter: Splitter::default(), metadata: None }
    }

    fn stream(is_list: bool) -> Self {
        Self::Stream { lines: Lines::default(), is_list }
    }
}

impl<'l> ListWatch<'l> {
    /// Sends the request, and waits for the head of the response.
    pub async fn open(link: &'l Link, query: Query, start: Start, timeouts: Timeouts) -> Result<Self, LinkError> {
        let (path, response) = match start {
            Start::List { page } => (query.page("", page)?, Response::page(page)),
            Start::StreamingList => (query.stream(timeouts.watch)?, Response::stream(true)),
            Start::Version(Version(after)) => {
                (query.watch(&after.to_string(), timeouts.watch)?, Response::stream(false))
            }
        };
        let body = link.get(&path, timeouts.head).await?.into_body();
        Ok(Self { link, query, timeouts, body, response, error: None, has_lost_events: false })
    }

    /// Whether the response continues with changes as they happen.
    pub fn is_streaming(&self) -> bool {
        matches!(self.response, Response::Stream { .. })
    }

    /// The events in the next chunk of the response, which may be none. `None` at the end of the list or watch.
    ///
    /// # Errors
    /// The response ended prematurely or cannot be decoded, the server ended it with an error, or no chunk arrived in
    /// time ([`LinkError::TimedOut`]). In a list also the errors of [`Link::get`], for the second and further pages.
    pub async fn next<D: Decode>(
        &mut self,
        decoder: &mut D,
    ) -> Result<Option<Vec<ListWatchEvent<D::Object>>>, LinkError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if matches!(self.response, Response::Done) {
            return Ok(None);
        }
        let Some(chunk) = self.chunk().await? else {
            return self.end_response().await;
        };
        let mut events = Vec::new();
        let mut error = None;
        let at = self.link.at();
        let split = match &mut self.response {
            Response::Page { splitter, metadata, .. } => splitter.feed(&chunk, |piece| match piece {
                Piece::Object(bytes) => events.push(decoder.item(bytes)),
                Piece::TooLong => events.push(too_long(at)),
                Piece::ListFields(bytes) => *metadata = Some(list_metadata(bytes)),
            }),
            Response::Stream { lines, is_list } => lines.feed(&chunk, |piece| match piece {
                _ if error.is_some() => {}
                Piece::TooLong => events.push(too_long(at)),
                Piece::Object(bytes) | Piece::ListFields(bytes) => match decoder.event(bytes) {
                    // After the list, such a bookmark is an ordinary one.
                    Ok(ListWatchEvent::ListDone(version)) if !*is_list => {
                        events.push(ListWatchEvent::Bookmark(version));
                    }
                    Ok(event) => {
                        *is_list &= !matches!(event, ListWatchEvent::ListDone(_));
                        events.push(event);
                    }
                    Err(lost) => error = Some(lost),
                },
            }),
            Response::Done => Ok(()),
        };
        self.error = error.or_else(|| split.err().map(|error: SplitError| invalid(&error.to_string())));
        self.has_lost_events = self.error.is_some();
        Ok(Some(events))
    }

    /// The next chunk of the response; `None` at its end.
    async fn chunk(&mut self) -> Result<Option<Bytes>, LinkError> {
        loop {
            let frame = timeout(self.timeouts.silence, self.body.frame()).await;
            let late = |_elapsed| LinkError::TimedOut(format!("{} has sent nothing more", self.link.at()));
            match frame.map_err(late)? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Requests the next page of a list, or completes the list. `None` at the end of a watch.
    async fn end_response<O>(&mut self) -> Result<Option<Vec<ListWatchEvent<O>>>, LinkError> {
        let size = match self.response {
            Response::Page { size, .. } => size,
            Response::Stream { is_list: true, .. } => return Err(incomplete()),
            Response::Stream { .. } | Response::Done => return Ok(None),
        };
        let metadata = self.end_page()?;
        if metadata.next.is_empty() {
            self.response = Response::Done;
            return Ok(Some(vec![ListWatchEvent::ListDone(Version::parse(&metadata.resource_version))]));
        }
        let path = self.query.page(&metadata.next, size)?;
        self.body = self.link.get(&path, self.timeouts.head).await?.into_body();
        self.response = Response::page(size);
        Ok(Some(Vec::new()))
    }

    fn end_page(&mut self) -> Result<ListMetadata, LinkError> {
        match &mut self.response {
            Response::Page { splitter, metadata, .. } if splitter.is_between_objects() => {
                metadata.take().unwrap_or_else(|| Err(incomplete()))
            }
            _ => Err(incomplete()),
        }
    }
}

/// The current resourceVersion of a kind, from a consistent list with a limit of one object.
pub async fn current_version(link: &Link, query: Query, timeouts: Timeouts) -> Result<Version, LinkError> {
    let mut list = ListWatch::open(link, query, Start::List { page: 1 }, timeouts).await?;
    while let Some(chunk) = list.chunk().await? {
        let Response::Page { splitter, metadata, .. } = &mut list.response else { break };
        let split = splitter.feed(&chunk, |piece| {
            if let Piece::ListFields(bytes) = piece {
                *metadata = Some(list_metadata(bytes));
            }
        });
        split.map_err(|error| invalid(&error.to_string()))?;
    }
    Ok(Version::parse(&list.end_page()?.resource_version))
}

fn incomplete() -> LinkError {
    LinkError::Broken("the list ended before it was complete".into())
}

fn too_long<O>(at: std::net::SocketAddr) -> ListWatchEvent<O> {
    let reason = format!("an object of more than {MAX_OBJECT} bytes, which is not read");
    warn!(message_id = %messages::OBJECT_TOO_LONG, "skipped {reason}, from {at}; still serving its last known version");
    ListWatchEvent::Skipped { key: None, reason }
}
