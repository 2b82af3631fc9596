//! Whether two reports of an object are equal in everything that affects connections.

use crate::model::service::{Service, Slice};

/// Whether the services are equal in everything that affects connections. All fields are listed, so that a new field
/// needs a decision here.
pub fn same_service(a: &Service, b: &Service) -> bool {
    let Service { name, source, origin, created, ports, internal_policy, external_policy, affinity_seconds, .. } = a;
    let Service { source_ranges, is_outside, health_check_port: _, health_check, health_check_error: _, .. } = a;
    let Service { forward, .. } = a;
    (name, source, created, ports) == (&b.name, &b.source, &b.created, &b.ports)
        && (internal_policy, external_policy) == (&b.internal_policy, &b.external_policy)
        && (*affinity_seconds, health_check) == (b.affinity_seconds, &b.health_check)
        && (source_ranges, *is_outside, *forward) == (&b.source_ranges, b.is_outside, b.forward)
        && origin.object == b.origin.object
}

/// Whether the slices are equal in everything that affects connections or their status, as [`same_service`].
pub fn same_slice(a: &Slice, b: &Slice) -> bool {
    let Slice { name, service, source, origin: _, ports, problem } = a;
    (name, service, source, ports, problem) == (&b.name, &b.service, &b.source, &b.ports, &b.problem)
}
