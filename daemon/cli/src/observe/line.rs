//! One line of output: an event with its differences, or a notice about the watch itself. Pure.

use nodelb_core::text;
use nodelb_kube::api::difference::{Difference, differences, is_annotations_only};
use nodelb_kube::api::objects::last_write;
use nodelb_report::time::Time;
use serde::Serialize;
use serde_json::Value;

/// An event or a notice, with its time.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    at: Time,
    #[serde(flatten)]
    said: Said,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Said {
    Notice { notice: String },
    Event(Box<Event>),
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    kind: &'static str,
    namespace: String,
    name: String,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    event: &'static str,
    resource_version: String,
    generation: Option<u64>,
    /// The writer of the latest entry in `managedFields`.
    writer: Option<String>,
    /// Whether the event comes from a list: it happened while there was no watch, or the object existed before.
    from_list: bool,
    annotations_only: bool,
    differences: Vec<Difference>,
    /// The number of differences that are left out.
    more: usize,
}

impl Event {
    /// Returns the event for the step from `before` to `after`. At least one of the two is present.
    pub(super) fn between(kind: &'static str, before: Option<&Value>, after: Option<&Value>, from_list: bool) -> Self {
        let object = after.or(before).unwrap_or(&Value::Null);
        let metadata = &object["metadata"];
        let text = |field: &str| text::name(metadata[field].as_str().unwrap_or_default()).into_owned();
        let (mut differences, more) = differences(before, after);
        if before.is_none() || after.is_none() {
            // Every object has a uid and similar fields.
            differences.retain(|difference| !difference.field.starts_with("metadata."));
        }
        Self {
            kind,
            namespace: text("namespace"),
            name: text("name"),
            event: match (before, after) {
                (None, _) => "ADDED",
                (_, None) => "DELETED",
                _ => "MODIFIED",
            },
            resource_version: text("resourceVersion"),
            generation: metadata["generation"].as_u64(),
            writer: writer(metadata),
            from_list,
            annotations_only: is_annotations_only(&differences),
            differences,
            more,
        }
    }

    /// Returns the event of a deletion, with its version. Of the fields that it removes, only backends are shown.
    pub(super) fn deleted(kind: &'static str, last: &Value) -> Self {
        let mut event = Self::between(kind, Some(last), None, false);
        event.differences.retain(|difference| difference.field == "backends");
        Self { more: 0, ..event }
    }

    fn reported(&self) -> String {
        let Self { kind, namespace, name, event, resource_version, .. } = self;
        let mut text = format!("{kind} {namespace}/{name} {event} rv={resource_version}");
        text.extend(self.generation.map(|generation| format!(" gen={generation}")));
        text.extend(self.writer.as_ref().map(|writer| format!(" by={writer}")));
        if self.from_list {
            text.push_str(" (listed)");
        }
        let each: Vec<String> = self.differences.iter().map(ToString::to_string).collect();
        let only = if self.annotations_only { "only annotations: " } else { "" };
        match (each.is_empty(), *event) {
            (true, "MODIFIED") => text.push_str(": no relevant difference"),
            (true, _) => {}
            (false, _) => text.push_str(&format!(": {only}{}", each.join("; "))),
        }
        if self.more > 0 {
            text.push_str(&format!("; and {} more", self.more));
        }
        text
    }
}

fn writer(metadata: &Value) -> Option<String> {
    let write = last_write(metadata["managedFields"].clone()).ok()?;
    (!write.manager.is_empty()).then(|| text::name(&write.manager).into_owned())
}

impl Line {
    pub(super) fn notice(at: Time, notice: String) -> Self {
        Self { at, said: Said::Notice { notice } }
    }

    pub(super) fn event(at: Time, event: Event) -> Self {
        Self { at, said: Said::Event(Box::new(event)) }
    }

    /// Returns the line as text, with its line end. A notice begins with a `#`.
    pub(super) fn to_text(&self) -> String {
        match &self.said {
            Said::Notice { notice } => format!("{} # {notice}\n", self.at),
            Said::Event(event) => format!("{} {}\n", self.at, event.reported()),
        }
    }

    /// Returns the line as one JSON object, with its line end. A notice has the field `notice` in addition to `at`, and
    /// no other.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }
}

#[cfg(test)]
#[path = "tests/line.rs"]
mod tests;
