//! The catalogue of Kubernetes Events about services: what each reason means, what its message usually points to, and
//! the remedy. Contains the data and the lookup. A reason without an entry is shown as Kubernetes reports it.

mod endpoints;
mod load_balancers;
mod network;
mod own;

use nodelb_core::output::age;
use nodelb_kube::api::printable;
use nodelb_kube::api::seen::Event;

use super::finding::Severity;

/// The explanation of one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value of the field `reason`.
    pub reason: &'static str,
    /// The value of the field `type`: `Normal` or `Warning`.
    pub kind: &'static str,
    /// The component that reports it.
    pub source: &'static str,
    /// The severity for the service.
    pub severity: Severity,
    /// The meaning of the reason.
    pub meaning: &'static str,
    /// The causes that words in the message point to.
    pub causes: &'static [Cause],
    /// The remedy if no word matches; empty if none is needed.
    pub remedy: &'static str,
}

/// A cause that a word in the message points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The word, in any case.
    pub word: &'static str,
    /// The meaning of the word.
    pub means: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

impl Entry {
    /// Returns the first cause with a word that the message contains.
    pub fn cause_of(&self, message: &str) -> Option<&'static Cause> {
        let message = message.to_lowercase();
        self.causes.iter().find(|cause| message.contains(&cause.word.to_lowercase()))
    }
}

/// Returns every entry, by topic.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [load_balancers::ENTRIES, endpoints::ENTRIES, network::ENTRIES, own::ENTRIES].into_iter().flatten()
}

/// Returns the entry of a reason.
pub fn find(reason: &str) -> Option<&'static Entry> {
    entries().find(|entry| entry.reason == reason)
}

/// Returns an Event as one line: `SyncLoadBalancerFailed from service-controller, 12 times, last 30s ago: message`.
pub(super) fn one_line(event: &Event, now: u64) -> String {
    let by = match event.component() {
        "" => String::new(),
        component => format!(" from {}", printable::name(component)),
    };
    let times = if event.count > 1 { format!(", {} times", event.count) } else { String::new() };
    let last = event.at().map(|at| format!(", last {} ago", age::human(now.saturating_sub(at).saturating_mul(1000))));
    let message = printable::sentence(event.message.trim());
    format!("{}{by}{times}{}: {message}", printable::name(&event.reason), last.unwrap_or_default())
}

#[cfg(test)]
#[path = "tests/catalogue.rs"]
mod tests;
