//! The Events that nodelb itself writes if `kubernetes.events` is set.

use super::Entry;
use crate::diagnose::finding::Severity;

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        reason: "BackendsHeld",
        kind: "Warning",
        source: "nodelb",
        severity: Severity::Warning,
        meaning: "the service leads to an apiserver and was emptied: its last known backends are still used on that node",
        causes: &[],
        remedy: "find out who emptied its EndpointSlice; it ends when there are backends again or the service is deleted",
    },
    Entry {
        reason: "AddressRefused",
        kind: "Warning",
        source: "nodelb",
        severity: Severity::Warning,
        meaning: "an address of the service is not served on that node",
        causes: &[],
        remedy: "do what the message says, or take the address out of the service",
    },
    Entry {
        reason: "AddressConflict",
        kind: "Warning",
        source: "nodelb",
        severity: Severity::Warning,
        meaning: "an address of the service belongs to another, older service, which gets its connections",
        causes: &[],
        remedy: "give one of the two another address",
    },
    Entry {
        reason: "NoBackends",
        kind: "Warning",
        source: "nodelb",
        severity: Severity::Critical,
        meaning: "the service had backends on that node and has none any more: connections to it are refused",
        causes: &[],
        remedy: "see the service's pods and EndpointSlices",
    },
];
