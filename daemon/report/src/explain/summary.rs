//! What a single pass over a snapshot finds: the numbers of objects, and where to look for problems. Readers of one
//! snapshot share it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoEnumIterator, VariantNames};

use crate::explain::reports;
use nodelb_core::compile::outside::is_outside;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::drain;
use nodelb_core::model::service::{BackendState, Service, ServiceName, Slice, Source, TrafficPolicy};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::backends_of;
use nodelb_core::state::status::Status;

/// The numbers of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectCounts {
    /// The number of services.
    pub services: usize,
    /// The number of services by status. A status without services is absent.
    pub services_by_status: BTreeMap<Status, usize>,
    /// The number of addresses that services claim.
    pub frontends: usize,
    /// The number of these addresses by status.
    pub frontends_by_status: BTreeMap<Status, usize>,
    /// The number of backends of all service ports.
    pub backends: usize,
    /// The number of these backends by state.
    pub backends_by_state: BTreeMap<BackendState, usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Each service counts with the worst status of its frontends. The backends are those in the slices of the services,
    /// counted once for each port; those that failed their checks count as quarantined.
    pub counts: ObjectCounts,
    /// The number of services with a held frontend.
    pub held: usize,
    /// The number of services with a port that has no backend for new connections.
    pub without_backends: usize,
    /// The number of services that wait for a load balancer's address, see
    /// [`nodelb_core::model::service::Service::awaits_load_balancer`].
    pub load_balancer_pending: usize,
    /// The number of rows in the status Refused that can never own their address.
    pub refused: usize,
    /// The number of backends that new connections can reach, counted once for each port and family.
    pub selectable: usize,
    /// The claims with a status other than OK: the address, and the position in its row.
    pub(crate) claims: Vec<(L4Addr, usize)>,
    /// Whether a file asks for clients outside the node to be served.
    pub(crate) serves_outside_from_files: bool,
    /// The services of files for clients outside the node with backends that those may not reach: with loopback addresses,
    /// or with the policy Local.
    pub(crate) outside_files: Vec<ServiceName>,
    /// The services that several sources describe, that wait for a load balancer, or that request health checks in a
    /// way that is not understood.
    pub(crate) descriptions: Vec<ServiceName>,
}

impl Summary {
    /// Reads everything once and builds no row.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut summary = Self::default();
        summary.add_services(snapshot);
        summary.add_frontends(snapshot);
        for entry in snapshot.desired.services.values() {
            summary.selectable += backends_of(&entry.cluster).count();
        }
        let without: BTreeSet<&ServiceName> = snapshot.empty_ports().map(|key| &key.service).collect();
        summary.without_backends = without.len();
        summary
    }

    fn add_services(&mut self, snapshot: &Snapshot) {
        let mut states = [0; BackendState::VARIANTS.len()];
        for (descriptions, slices) in snapshot.facts.described() {
            let Some(service) = descriptions.first() else { continue };
            let mut frontends = service.ports.iter().flat_map(|port| &port.frontends);
            let is_outside_file = service.source == Source::Files
                && frontends.any(|frontend| is_outside(service, frontend.kind, snapshot.config.packets));
            self.serves_outside_from_files |= is_outside_file;
            let has_loopback = || {
                let mut backends = slices.iter().flat_map(|slice| &slice.ports).flat_map(|port| &port.backends);
                backends.any(|backend| backend.addr.is_loopback())
            };
            if is_outside_file && (service.external_policy == TrafficPolicy::Local || has_loopback()) {
                self.outside_files.push(service.name.clone());
            }
            self.counts.services += 1;
            self.load_balancer_pending += usize::from(service.awaits_load_balancer);
            if descriptions.len() > 1 || service.awaits_load_balancer || service.health_check_error.is_some() {
                self.descriptions.push(service.name.clone());
            }
            add_backends(snapshot, service, slices, &mut states);
        }
        self.counts.backends = states.iter().sum();
        self.counts.backends_by_state = BackendState::iter().zip(states).filter(|(_, number)| *number > 0).collect();
    }

    fn add_frontends(&mut self, snapshot: &Snapshot) {
        let mut statuses = [0; Status::VARIANTS.len()];
        let mut worst: HashMap<&ServiceName, Status, RandomState> = HashMap::default();
        for (address, row) in &snapshot.rows {
            for (place, claim) in row.claims().iter().enumerate() {
                let status = snapshot.status_of(row, place, *address).status;
                statuses[status as usize] += 1;
                self.refused += usize::from(claim.target.is_err());
                if status != Status::Ok {
                    self.claims.push((*address, place));
                }
                let worst = worst.entry(&claim.key.service).or_insert(status);
                if status.badness() > worst.badness() {
                    *worst = status;
                }
            }
        }
        snapshot.kept().for_each(|(.., kept)| statuses[kept.status as usize] += 1);
        let held: BTreeSet<&ServiceName> = snapshot.held().map(|port| &port.key.service).collect();
        self.held = held.len();
        let counts = &mut self.counts;
        counts.frontends = statuses.iter().sum();
        counts.frontends_by_status = Status::iter().zip(statuses).filter(|(_, number)| *number > 0).collect();
        // A service without addresses has none with a problem.
        let without = counts.services.saturating_sub(worst.len());
        worst.into_values().for_each(|status| *counts.services_by_status.entry(status).or_default() += 1);
        if without > 0 {
            *counts.services_by_status.entry(Status::Ok).or_default() += without;
        }
    }
}

/// Counts the backends of a service by state.
fn add_backends(
    snapshot: &Snapshot,
    service: &Service,
    slices: &[Arc<Slice>],
    states: &mut [usize; BackendState::VARIANTS.len()],
) {
    let are_used =
        || reports::port_keys(service, slices, snapshot.config.packets).iter().any(|key| snapshot.uses_drained(key));
    let drains = snapshot.facts.drains(&service.name).filter(|_| !are_used());
    let failed = reports::checks_of(snapshot, service).and_then(|checks| checks.failed);
    for backend in slices.iter().flat_map(|slice| &slice.ports).flat_map(|port| &port.backends) {
        let has_failed = failed.is_some_and(|failed| failed.contains_key(&(backend.addr, backend.port)));
        let is_drained = drains.is_some_and(|drains| drain::find(drains, (backend.addr, backend.port)).is_some());
        let state = match backend.effective_state() {
            BackendState::Active | BackendState::Terminating if is_drained => BackendState::Maintenance,
            BackendState::Active | BackendState::Terminating if has_failed => BackendState::Quarantined,
            state => state,
        };
        states[state as usize] += 1;
    }
}
