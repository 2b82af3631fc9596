//! When nothing is written for a while: the apiserver is away or busy, or it does not let nodelb write at all. Pure; time is
//! in seconds on a clock that never goes back.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The first pause after an error that says nothing about what was written, and the longest.
const FIRST_PAUSE: u64 = 5;
const LONGEST_PAUSE: u64 = 300;

/// A refusal is not asked about again for so long: a permission is not given every second.
pub(super) const REFUSED_FOR: u64 = 3_600;

/// As many namespaces that refuse, and none in between that does not, are all of them.
const SEVERAL: usize = 3;

/// How RBAC says that it is a matter of permission. A namespace that is being terminated and an exceeded quota answer 403 too.
const BY_RBAC: [&str; 2] = ["cannot create resource", "cannot patch resource"];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pace {
    quiet_until: u64,
    /// The pause after the next error in a row.
    pause: u64,
    /// Which namespaces have refused, and when.
    refusing: BTreeMap<Arc<str>, u64>,
}

impl Pace {
    /// Whether nothing is to be written now.
    pub(super) fn is_quiet(&self, now: u64) -> bool {
        now < self.quiet_until
    }

    /// One was written.
    pub(super) fn written(&mut self) {
        *self = Self::default();
    }

    /// The apiserver has not answered, or has asked to be spared, for as long as it says.
    pub(super) fn failed(&mut self, now: u64, wanted: u64) {
        let pause = self.pause.clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.pause = pause * 2;
        self.quiet_until = now + pause.max(wanted);
    }

    /// One was refused; whether all others would be.
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
