//! The combined content of one frame of a stream. Pure.

use super::End;
use crate::api::decode::{Event, ObjectEvent, Version};
use crate::api::printable;
use crate::apiserver::error::LinkError;

/// The events in one frame of a stream.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) heard: Vec<ObjectEvent>,
    pub(super) version: Option<Version>,
    pub(super) end: Option<Result<End, LinkError>>,
    /// Whether the frame contained invalid events. Their content is lost.
    pub(super) is_nonsense: bool,
}

impl Batch {
    pub(super) fn take(&mut self, event: Result<Event, String>, is_list: &mut bool) {
        match event {
            Ok(Event::ObjectEvent(heard, version)) => {
                self.heard.push(heard);
                if version != Version::default() {
                    self.version = self.version.max(Some(version));
                }
            }
            Ok(Event::Bookmark { version, is_end_of_list }) => {
                self.version = self.version.max(Some(version));
                if *is_list && is_end_of_list {
                    *is_list = false;
                    // The objects before this bookmark have their own versions.
                    self.version = Some(version);
                    self.heard.push(ObjectEvent::Listed(version));
                }
            }
            Ok(Event::Error { code: 410, .. }) => self.end = Some(Ok(End::TooOld)),
            Ok(Event::Error { code, message }) => self.end = Some(Err(LinkError::Status { code, message })),
            // The content is lost; only a list can replace it.
            Err(error) => self.nonsense(&error),
        }
    }

    pub(super) fn nonsense(&mut self, what: &str) {
        self.is_nonsense = true;
        let what = printable::sentence(what);
        self.end = Some(Err(LinkError::Broken(format!("what arrived makes no sense: {what}; it is listed again"))));
    }
}
