//! The events of a round while they are put together: one for each port as far as they are about its list, and no more
//! than there is room for.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::history::Event;
use crate::model::service::PortKey;

/// The most events of one round, and the most changed lists it compares; what is beyond them is counted.
pub(super) const MAX_EVENTS: usize = 512;

/// The events of a round while they are put together, each port's findable.
#[derive(Default)]
pub(super) struct Events {
    pub(super) events: Vec<Event>,
    of_port: BTreeMap<Arc<PortKey>, usize>,
    /// How many found no room.
    pub(super) untold: usize,
}

impl Events {
    /// The port's event, or a new one of this kind.
    pub(super) fn of(&mut self, key: &Arc<PortKey>, new: impl FnOnce() -> Event) -> Option<&mut Event> {
        let place = match self.of_port.get(key) {
            Some(place) => *place,
            None if self.events.len() >= MAX_EVENTS => {
                self.untold += 1;
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

    /// One more, whatever else happened to its port.
    pub(super) fn push(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        } else {
            self.untold += 1;
        }
    }
}
