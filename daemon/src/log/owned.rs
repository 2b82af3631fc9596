//! An event that outlives the statement that logged it: its values are formatted immediately, and another thread passes
//! it to a subscriber later, with the same metadata and fields.

use std::fmt;

use tracing::field::{self, DebugValue, Field, Value, Visit};
use tracing::{Event, Metadata, Subscriber};

/// The maximum number of fields of an event; more than the `tracing` macros allow.
const FIELDS: usize = 32;

/// An event with its values as text.
#[derive(Debug)]
pub(super) struct Owned {
    metadata: &'static Metadata<'static>,
    values: Vec<(Field, DebugValue<Verbatim>)>,
    /// The size of its values.
    pub(super) bytes: usize,
}

/// Text with a debug form that is the text itself.
struct Verbatim(String);

impl fmt::Debug for Verbatim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Owned {
    pub(super) fn new(event: &Event<'_>) -> Self {
        let mut copy = Self { metadata: event.metadata(), values: Vec::new(), bytes: 0 };
        event.record(&mut copy);
        copy
    }

    /// Passes the event to the subscriber, in this thread.
    pub(super) fn replay(&self, subscriber: &impl Subscriber) {
        let Some((first, _)) = self.values.first() else { return };
        // Subscribers skip fields without a value.
        let mut values: [(&Field, Option<&dyn Value>); FIELDS] = [(first, None); FIELDS];
        for (place, (field, text)) in values.iter_mut().zip(&self.values) {
            *place = (field, Some(text));
        }
        subscriber.event(&Event::new(self.metadata, &self.metadata.fields().value_set(&values)));
    }

    fn keep(&mut self, field: &Field, text: String) {
        self.bytes += field.name().len() + text.len();
        self.values.push((field.clone(), field::debug(Verbatim(text))));
    }
}

impl Visit for Owned {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, format!("{value:?}"));
    }
}

#[cfg(test)]
#[path = "tests/owned.rs"]
mod tests;
