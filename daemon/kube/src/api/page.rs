//! Reads one page of a list while it arrives.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::time::timeout;

use super::decode::{Decoder, ObjectEvent, Shell, Version, shell};
use super::splitter::{MAX_OBJECT, Piece, Splitter};
use crate::apiserver::error::LinkError;
use crate::apiserver::link::Body;

/// The objects in one frame of the response, and the highest version among them.
#[derive(Default)]
pub(crate) struct Arrived {
    pub(crate) heard: Vec<ObjectEvent>,
    pub(crate) newest: Version,
}

/// One page of a list.
pub(crate) struct Page {
    body: Body,
    splitter: Splitter,
    shell: Option<Result<Shell, String>>,
}

impl Page {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, splitter: Splitter::default(), shell: None }
    }

    /// Reads the next frame; it may complete no object. `None` at the end of the response. Waits at most `silence`.
    pub(crate) async fn more(
        &mut self,
        decoder: &mut Decoder,
        silence: Duration,
    ) -> Result<Option<Arrived>, LinkError> {
        let frame = timeout(silence, self.body.frame());
        let Some(frame) = frame.await.map_err(|_elapsed| LinkError::TimedOut("the rest of a list".into()))? else {
            return Ok(None);
        };
        let mut arrived = Arrived::default();
        let Ok(data) = frame?.into_data() else { return Ok(Some(arrived)) };
        let split = self.splitter.feed(&data, |piece| match piece {
            Piece::Object(bytes) => {
                let (item, version) = decoder.item(bytes);
                arrived.newest = version.max(arrived.newest);
                arrived.heard.push(item);
            }
            Piece::TooLong => arrived.heard.push(too_long()),
            Piece::Shell(bytes) => self.shell = Some(shell(bytes)),
        });
        split.map_err(|error| LinkError::Broken(error.to_string()))?;
        Ok(Some(arrived))
    }

    /// The metadata of the list.
    pub(crate) fn end(self) -> Result<Shell, LinkError> {
        match self.shell {
            Some(Ok(shell)) if self.splitter.is_between_objects() => Ok(shell),
            Some(Err(error)) => Err(LinkError::Broken(error)),
            _ => Err(LinkError::Broken("the list ended before it was complete".into())),
        }
    }
}

pub(crate) fn too_long() -> ObjectEvent {
    let reason = format!("an object of more than {MAX_OBJECT} bytes, which is not read");
    ObjectEvent::Skipped { key: None, reason }
}
