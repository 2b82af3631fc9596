//! The metrics of the packet path.

use strum::IntoEnumIterator;

use nodelb_core::packets::outcomes::Outcomes;
use nodelb_datapath::packets::{PacketCounts, REASONS, SweepReason};

use super::family::Exposition;
use super::table;
use crate::admin::state::latest;
use crate::devices::DeviceOutputs;
use crate::devices::report::HookState;
use crate::devices::sweep::SweepReport;

/// Why connections are forgotten, with the label values.
const SWEPT: [(SweepReason, &str); 4] = [
    (SweepReason::Handshake, "handshake"),
    (SweepReason::Closed, "closed"),
    (SweepReason::Reset, "reset"),
    (SweepReason::Idle, "idle"),
];

/// Why packets are passed on: shown even if none were.
const PASSED: [&str; 4] = ["short", "no-forwarding", "no-room", "unknown"];

pub(super) fn packets(exposition: &mut Exposition, packets: &DeviceOutputs) {
    if let Some(counts) = (packets.counts)() {
        counted(exposition, &counts);
    }
    if let Some(sweep) = &packets.sweep {
        swept(exposition, &latest(sweep));
    }
    let devices = latest(&packets.devices);
    let number = |state| devices.devices.iter().filter(|device| device.state() == state).count();
    exposition.each(&table::PACKET_DEVICES, HookState::iter().map(|state| ([state.name()], number(state))));
}

fn counted(exposition: &mut Exposition, counts: &PacketCounts) {
    let translated = [(["forward"], counts.forward), (["reverse"], counts.reverse)];
    exposition.each(&table::PACKET_TRANSLATED, translated);
    let dropped = REASONS.into_iter().zip(counts.dropped).map(|(reason, number)| ([reason], number));
    exposition.each(&table::PACKET_DROPPED, dropped);
    let passed =
        REASONS.into_iter().zip(counts.passed).filter(|(reason, number)| *number > 0 || PASSED.contains(reason));
    exposition.each(&table::PACKET_PASSED, passed.map(|(reason, number)| ([reason], number)));
    exposition.each(&table::PACKET_ANSWERED, [(["rst"], counts.resets), (["icmp"], counts.icmp_errors)]);
    exposition.one(&table::PACKET_CONNECTIONS_CREATED, counts.begun);
    exposition.one(&table::PACKET_SNAT_TRIES, counts.port_tries);
}

fn swept(exposition: &mut Exposition, report: &SweepReport) {
    exposition.optional(&table::PACKET_CONNECTIONS, report.count.map(|count| count.connections));
    exposition.optional(&table::PACKET_HANDSHAKES, report.count.map(|count| count.handshakes));
    exposition.optional(&table::PACKET_FORWARDED, report.count.map(|count| count.forwarded));
    exposition.one(&table::PACKET_CONNECTIONS_LIMIT, u64::from(report.limit));
    let number = |reason| report.swept.get(&reason).copied().unwrap_or_default();
    exposition.each(&table::PACKET_SWEPT, SWEPT.map(|(reason, name)| ([name], number(reason))));
    let Outcomes { answered, refused, unanswered } = report.outcomes;
    exposition.each(
        &table::PACKET_OUTCOMES,
        [(["answered"], answered), (["refused"], refused), (["unanswered"], unanswered)],
    );
    exposition.one(&table::PACKET_SWEEP_DURATION, report.duration.as_secs_f64());
    exposition.one(&table::PACKET_SWEEP_FAILURES, report.failures);
}

#[cfg(test)]
#[path = "tests/packets.rs"]
mod tests;
