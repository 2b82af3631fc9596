//! The catalogue of Kubernetes Events about services: what each reason means, what its message usually points to, what to
//! do. Data, and how it is looked up. A reason that is not in it is shown as Kubernetes says it.

mod endpoints;
mod load_balancers;
mod network;
mod own;

use nodelb_core::output::age;
use nodelb_kube::api::printable;
use nodelb_kube::api::seen::Event;

use super::finding::Severity;

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As in the field `reason`.
    pub reason: &'static str,
    /// As in the field `type`: `Normal` or `Warning`.
    pub kind: &'static str,
    /// Which component reports it.
    pub source: &'static str,
    /// How grave it is for the service.
    pub severity: Severity,
    /// What has happened.
    pub meaning: &'static str,
    /// What words in the message point to.
    pub causes: &'static [Cause],
    /// What to do when no word tells; empty where nothing is to be done.
    pub remedy: &'static str,
}

/// What a word in the message points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The word, compared without regard to case.
    pub word: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

impl Entry {
    /// The first cause whose word is in the message.
    pub fn cause_of(&self, message: &str) -> Option<&'static Cause> {
        let message = message.to_lowercase();
        self.causes.iter().find(|cause| message.contains(&cause.word.to_lowercase()))
    }
}

/// Every entry, by topic.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [load_balancers::ENTRIES, endpoints::ENTRIES, network::ENTRIES, own::ENTRIES].into_iter().flatten()
}

/// The entry of a reason.
pub fn find(reason: &str) -> Option<&'static Entry> {
    entries().find(|entry| entry.reason == reason)
}

/// An Event in one line: `SyncLoadBalancerFailed from service-controller, 12 times, last 30s ago: message`.
pub(super) fn told(event: &Event, now: u64) -> String {
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
