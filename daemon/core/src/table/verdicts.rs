//! The results of nodelb's own health checks, and what follows for backends that have none yet: they are as their service
//! says, and healthy if the maps had them at the start.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use foldhash::fast::RandomState;

use super::record::Owner;
use crate::model::addr::Addr;
use crate::model::health_check::Quarantine;
use crate::model::service::{ServiceName, Source};
use crate::state::used::Used;

/// The error of a backend that may not be used before its first check.
static NOT_CHECKED: LazyLock<Arc<str>> = LazyLock::new(|| "not checked yet".into());

#[derive(Debug, Default)]
pub(super) struct Verdicts {
    by_service: HashMap<ServiceName, Verdict, RandomState>,
    used: Used,
    /// The sources that get no checks.
    unchecked: BTreeSet<Source>,
}

/// The last results of a service.
#[derive(Debug, Default)]
struct Verdict {
    failed: Quarantine,
    passed: BTreeSet<(Addr, u16)>,
}

impl Verdicts {
    pub(super) fn new(used: Used, unchecked: BTreeSet<Source>) -> Self {
        Self { used, unchecked, ..Self::default() }
    }

    pub(super) fn set_failed(&mut self, name: &ServiceName, failed: Quarantine) {
        self.set(name, |verdict| verdict.failed = failed);
    }

    pub(super) fn set_passed(&mut self, name: &ServiceName, passed: BTreeSet<(Addr, u16)>) {
        self.set(name, |verdict| verdict.passed = passed);
    }

    fn set(&mut self, name: &ServiceName, set: impl FnOnce(&mut Verdict)) {
        let verdict = self.by_service.entry(name.clone()).or_default();
        set(verdict);
        if verdict.failed.is_empty() && verdict.passed.is_empty() {
            self.by_service.remove(name);
        }
    }

    /// The source has reported everything, of which these services have checks.
    pub(super) fn settle(&mut self, source: Source, checked: &BTreeSet<u32>) {
        self.used.retain(|of, name| of != source || checked.contains(&name));
    }

    /// Whatever this source describes under the name from now on is new.
    pub(super) fn forget(&mut self, name: &ServiceName, source: Source) {
        self.used.forget(name, source);
    }

    /// The unhealthy backends of the service. `is_read` says whether its source has reported everything about it, and its
    /// names have answers: a backend that is listed later is new.
    pub(super) fn judge(&mut self, name: &ServiceName, owner: Option<Owner<'_>>, is_read: bool) -> Quarantine {
        let Self { by_service, used, unchecked } = self;
        let verdict = by_service.get(name);
        let mut judged = verdict.map(|verdict| verdict.failed.clone()).unwrap_or_default();
        let Some((service, slices)) = owner else { return judged };
        let Some(check) = &service.health_check else { return judged };
        if check.starts_healthy || unchecked.contains(&service.source) {
            return judged;
        }
        let ports = || slices.iter().flat_map(|slice| &slice.ports);
        let all = || ports().flat_map(|port| port.backends.iter().map(|backend| (port.protocol, backend)));
        if is_read && !used.is_empty() {
            let listed: BTreeSet<_> = all().map(|(_, backend)| (backend.addr, backend.port)).collect();
            used.retain_backends(name, service.source, |backend| listed.contains(&backend));
        }
        let concerned = all().filter(|(protocol, backend)| backend.is_checked(check, *protocol));
        for backend in concerned.map(|(_, backend)| (backend.addr, backend.port)) {
            let has_passed = verdict.is_some_and(|verdict| verdict.passed.contains(&backend));
            if !has_passed && !used.has(name, service.source, backend) {
                judged.entry(backend).or_insert_with(|| Arc::clone(&NOT_CHECKED));
            }
        }
        judged
    }
}

#[cfg(test)]
#[path = "tests/verdicts.rs"]
mod tests;
