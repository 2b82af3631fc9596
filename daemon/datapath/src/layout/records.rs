//! What `bpf/flows.bpf.c` and `bpf/sweep.bpf.c` report.

use std::mem::offset_of;

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::packets::outcomes::{Outcome, Outcomes};
use nodelb_core::packets::sweep::{Interval, SweepReason, SweepTimeouts};
use nodelb_core::stale::{Flow, Socket};
use nodelb_core::state::entries::{BackendId, ServiceId};

use super::services::parse_frontend_key;
use crate::skeleton::flows::types as flows;
use crate::skeleton::sweep::types as sweep;

const _: () = assert!(FLOW_RECORD_SIZE == 80);
const _: () = assert!(SWEEP_RECORD_SIZE == 32);

/// Bytes of one record of `bpf/flows.bpf.c`, which describes one connection.
pub(crate) const FLOW_RECORD_SIZE: usize = size_of::<flows::flow_record>();

/// Bytes of one record of `bpf/sweep.bpf.c`, which describes one deleted connection.
pub(crate) const SWEEP_RECORD_SIZE: usize = size_of::<sweep::sweep_record>();

/// A connection that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    pub service: ServiceId,
    pub backend: BackendId,
    pub protocol: Protocol,
    pub reason: SweepReason,
    /// Bytes of IP packets from the client.
    pub forward_bytes: u64,
    /// Bytes of IP packets from the backend.
    pub reverse_bytes: u64,
}

/// Decodes a record; `None` if it has unknown content.
pub(crate) fn parse_flow_record(record: &[u8; FLOW_RECORD_SIZE]) -> Option<Flow> {
    let translation: [u8; size_of::<flows::translation>()] = field_of!(record, flows::flow_record, translation);
    let frontend = parse_frontend_key(&field_of!(translation, flows::translation, frontend))?;
    let protocol = frontend.protocol;
    let address = |addr, port| L4Addr::new(Addr::from_octets(addr), u16::from_be_bytes(port), protocol);
    let [family] = field_of!(record, flows::flow_record, family);
    let socket = Socket {
        netns: u32::from_ne_bytes(field_of!(record, flows::flow_record, netns)),
        cookie: u64::from_ne_bytes(field_of!(record, flows::flow_record, cookie)),
        family: match i32::from(family) {
            libc::AF_INET => Family::Ipv4,
            libc::AF_INET6 => Family::Ipv6,
            _ => return None,
        },
        ifindex: u32::from_ne_bytes(field_of!(record, flows::flow_record, ifindex)),
        source: address(
            field_of!(record, flows::flow_record, source),
            field_of!(record, flows::flow_record, source_port_be),
        ),
    };
    let backend = address(
        field_of!(translation, flows::translation, backend),
        field_of!(translation, flows::translation, backend_port_be),
    );
    Some(Flow { socket, frontend, backend })
}

/// Bytes of the key and of the value of the map with outcomes.
pub(crate) const OUTCOME_SIZES: (usize, usize) = (size_of::<sweep::outcome_key>(), size_of::<sweep::outcomes>());

pub(crate) fn parse_outcome((key, value): &([u8; OUTCOME_SIZES.0], [u8; OUTCOME_SIZES.1])) -> Outcome {
    let number = |bytes: [u8; 4]| u64::from(u32::from_ne_bytes(bytes));
    let outcomes = Outcomes {
        answered: number(field_of!(value, sweep::outcomes, answered)),
        refused: number(field_of!(value, sweep::outcomes, refused)),
        unanswered: number(field_of!(value, sweep::outcomes, unanswered)),
    };
    (
        ServiceId(u32::from_ne_bytes(field_of!(key, sweep::outcome_key, service_id))),
        BackendId(u32::from_ne_bytes(field_of!(key, sweep::outcome_key, backend_id))),
        outcomes,
    )
}

pub(crate) fn sweep_timeouts(timeouts: &SweepTimeouts, counted: Interval) -> [u8; size_of::<sweep::sweep_timeouts>()] {
    bytes_of!(sweep::sweep_timeouts {
        handshake: timeouts.handshake.to_ne_bytes(),
        closed: timeouts.closed.to_ne_bytes(),
        reset: timeouts.reset.to_ne_bytes(),
        tcp_idle: timeouts.tcp_idle.to_ne_bytes(),
        udp_idle: timeouts.udp_idle.to_ne_bytes(),
        forwarded_idle: timeouts.forwarded_idle.to_ne_bytes(),
        counted_after: counted.after.to_ne_bytes(),
        counted_until: counted.until.to_ne_bytes(),
    })
}

/// [`sweep_timeouts`] for a run that only looks at handshakes.
pub(crate) fn sweep_look(counted: Interval) -> [u8; size_of::<sweep::sweep_timeouts>()] {
    bytes_of!(sweep::sweep_timeouts {
        counted_after: counted.after.to_ne_bytes(),
        counted_until: counted.until.to_ne_bytes(),
        is_look: 1_u32.to_ne_bytes(),
    })
}

/// Decodes a record; `None` if it has unknown content.
pub(crate) fn parse_sweep_record(record: &[u8; SWEEP_RECORD_SIZE]) -> Option<Swept> {
    use sweep::sweep_reason as reason;
    let [protocol] = field_of!(record, sweep::sweep_record, protocol);
    Some(Swept {
        service: ServiceId(u32::from_ne_bytes(field_of!(record, sweep::sweep_record, service_id))),
        backend: BackendId(u32::from_ne_bytes(field_of!(record, sweep::sweep_record, backend_id))),
        protocol: Protocol::from_repr(protocol)?,
        reason: match reason(u32::from_ne_bytes(field_of!(record, sweep::sweep_record, reason))) {
            reason::SWEEP_HANDSHAKE => SweepReason::Handshake,
            reason::SWEEP_CLOSED => SweepReason::Closed,
            reason::SWEEP_RESET => SweepReason::Reset,
            reason::SWEEP_IDLE => SweepReason::Idle,
            _ => return None,
        },
        forward_bytes: u64::from_ne_bytes(field_of!(record, sweep::sweep_record, forward_bytes)),
        reverse_bytes: u64::from_ne_bytes(field_of!(record, sweep::sweep_record, reverse_bytes)),
    })
}
