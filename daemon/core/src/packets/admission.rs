//! Whether a client may connect to a frontend, and to which slots: `admit()` of `bpf/begin.h`.

use crate::model::addr::Addr;
use crate::model::source_range::SourceRange;
use crate::state::entries::{Lead, MapState, Slot};

/// Who may connect to an address from outside the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Every client: the address has no source ranges.
    All,
    /// The client, because it is in this range, the longest one that contains it.
    Range(SourceRange),
    /// Not the client: it is in no range.
    No,
    /// Only clients in the ranges, and the address of the client is not given.
    Unknown,
}

/// Why a client gets no slot. Displayed as the error that a socket on this node gets; it is never EPERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Refusal {
    /// The client is in none of the service's source ranges.
    #[strum(to_string = "EHOSTUNREACH")]
    NotAdmitted,
    /// The service has no usable backend at all.
    #[strum(to_string = "ECONNREFUSED")]
    NoBackend,
    /// The service has usable backends, but the policy requires one on this node.
    #[strum(to_string = "EHOSTUNREACH")]
    NoLocalBackend,
}

pub fn admission(state: &MapState, lead: Lead, client: Option<Addr>) -> Admission {
    match client {
        _ if !lead.has_ranges => Admission::All,
        None => Admission::Unknown,
        Some(client) => {
            let admitting = state.ranges_of(lead.service).filter(|range| range.contains(client));
            admitting.max_by_key(|range| range.prefix).map_or(Admission::No, Admission::Range)
        }
    }
}

/// The slots that the client gets one of. A client without an address counts as admitted.
pub fn admit(state: &MapState, lead: Lead, client: Option<Addr>) -> Result<&[Slot], Refusal> {
    if admission(state, lead, client) == Admission::No {
        return Err(Refusal::NotAdmitted);
    }
    let service = state.services.get(&lead.service);
    match service.map_or(&[][..], |service| service.view(lead.local)) {
        [] if service.is_some_and(|service| service.has_backends) => Err(Refusal::NoLocalBackend),
        [] => Err(Refusal::NoBackend),
        view => Ok(view),
    }
}
