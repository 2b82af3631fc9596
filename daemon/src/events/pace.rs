//! Decides when writing pauses: the apiserver is absent or busy, or does not permit nodelb to write. Pure; time is in
//! seconds on a clock that never goes back.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The first pause in seconds after an error that is not about the written Event, and the longest.
const FIRST_PAUSE: u64 = 5;
const LONGEST_PAUSE: u64 = 300;

/// How long a refused write is not repeated, in seconds: permissions change rarely.
pub(super) const REFUSED_FOR: u64 = 3_600;

/// If this many namespaces refuse, and none in between accepts, all are assumed to refuse.
const SEVERAL: usize = 3;

/// The texts by which RBAC reports a missing permission. Namespaces that are being terminated and exceeded quotas
/// answer 403 too.
const BY_RBAC: [&str; 2] = ["cannot create resource", "cannot patch resource"];

/// The state of the pauses; see the module.
#[derive(Debug, Default)]
pub(super) struct Pace {
    quiet_until: u64,
    /// The pause in seconds after the next consecutive error.
    pause: u64,
    /// The namespaces that have refused, and the time.
    refusing: BTreeMap<Arc<str>, u64>,
}

impl Pace {
    /// Whether nothing may be written now.
    pub(super) fn is_quiet(&self, now: u64) -> bool {
        now < self.quiet_until
    }

    /// Records a successful write.
    pub(super) fn written(&mut self) {
        *self = Self::default();
    }

    /// Records that the apiserver has not answered, or has asked to wait for `wanted` seconds.
    pub(super) fn failed(&mut self, now: u64, wanted: u64) {
        let pause = self.pause.clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.pause = pause * 2;
        self.quiet_until = now + pause.max(wanted);
    }

    /// Records a refused write; returns whether all others would be refused too.
    pub(super) fn refused(&mut self, now: u64, namespace: &Arc<str>, why: &str) -> bool {
        self.refusing.retain(|_, at| now.saturating_sub(*at) < REFUSED_FOR);
        self.refusing.insert(Arc::clone(namespace), now);
        let is_general = self.refusing.len() >= SEVERAL || BY_RBAC.iter().any(|words| why.contains(words));
        if is_general {
            self.refusing.clear();
            self.quiet_until = now + REFUSED_FOR;
        }
        is_general
    }
}

#[cfg(test)]
#[path = "tests/pace.rs"]
mod tests;
