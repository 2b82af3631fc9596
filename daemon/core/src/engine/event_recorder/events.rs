//! The events of a round during assembly: one for each port for changes of its list, and at most [`MAX_EVENTS`] in
//! total.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::history::Event;
use crate::model::service::PortKey;

/// The maximum number of events in one round, and of changed lists that it compares. Further ones are only counted.
pub(super) const MAX_EVENTS: usize = 512;

#[derive(Default)]
pub(super) struct Events {
    pub(super) events: Vec<Event>,
    of_port: BTreeMap<Arc<PortKey>, usize>,
    /// The number of events that exceeded the limit.
    pub(super) omitted: usize,
}

impl Events {
    /// The port's event, or a new one of this kind.
    pub(super) fn entry(&mut self, key: &Arc<PortKey>, new: impl FnOnce() -> Event) -> Option<&mut Event> {
        let place = match self.of_port.get(key) {
            Some(place) => *place,
            None if self.events.len() >= MAX_EVENTS => {
                self.omitted += 1;
                return None;
            }
            None => {
                self.of_port.insert(Arc::clone(key), self.events.len());
                self.events.push(new());
                self.events.len() - 1
            }
        };
        self.events.get_mut(place)
    }

    /// Adds an event, regardless of other events of the same port.
    pub(super) fn push(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        } else {
            self.omitted += 1;
        }
    }
}
