//! The journal's lines about rounds: what the owner task has done, and what it could not do.

use std::fmt;
use std::sync::Arc;

use nodelb_core::awaited::Awaited;
use nodelb_core::claims::Row;
use nodelb_core::engine::{AddressConflict, CompiledService, Kept, Round, Takeover};
use nodelb_core::history::{Event, What};
use nodelb_core::holds::{Emptied, Release};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{Origin, PortKey};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::text::{counted, listed, signed};
use nodelb_host::messages;
use tracing::{info, warn};

/// The maximum number of objects of one kind in a line, or in lines of their own.
const SHOWN: usize = 8;

/// Logs one line for each important change; a steady state logs nothing.
pub(super) fn report(round: &Round) {
    for (address, error) in round.errors.iter().take(SHOWN) {
        warn!(message_id = %messages::FRONTEND_REFUSED, frontend = %address, "{address} cannot be served: {error}");
    }
    if round.errors.len() > SHOWN {
        warn!(
            message_id = %messages::FRONTEND_REFUSED,
            "{} cannot be served: see `nodelb frontends`", counted(round.errors.len() - SHOWN, "more frontend")
        );
    }
    report_refusals(round);
    for address in round.healed.iter().take(SHOWN) {
        info!(message_id = %messages::FRONTEND_SERVED, frontend = %address, "{address} is served again");
    }
    report_node_addrs(round);
    report_uplinks(round);
    report_contests(round);
    if !round.pruned.is_empty() {
        info!(
            message_id = %messages::PRUNED,
            "removed {} that no source describes", counted(round.pruned.count(), "frontend")
        );
    }
    // The checker reports backends with a changed health.
    if round.done > 0 && round.compiled.len() > round.by_checks {
        info!(
            message_id = %messages::APPLIED,
            operations = round.done, failed = round.failed, "applied: {}", AllApplied(round)
        );
    }
}

/// The maximum number of backends of one service in a line.
const BACKENDS: usize = 4;

/// The services of a round. Formatted only when the line is written: most lines of a busy time are left out.
struct AllApplied<'r>(&'r Round);

impl fmt::Display for AllApplied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(round) = self;
        let services = round.compiled.iter().map(|service| Applied { service, events: &round.events });
        f.write_str(&listed(services, SHOWN))
    }
}

/// Formats as `shop/web changed (+10.1.0.3:8080/TCP -10.1.0.2:8080/TCP)`, with the backends of all its ports. This searches
/// the events of the round, so a service that is only counted is not formatted.
struct Applied<'r> {
    service: &'r CompiledService,
    events: &'r [Event],
}

impl fmt::Display for Applied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompiledService { name, what } = self.service;
        write!(f, "{name}")?;
        let Some(what) = what else { return Ok(()) };
        write!(f, " {}", what.to_string().to_lowercase())?;
        let (backends, more) = self.backends();
        match (backends.is_empty(), more) {
            (true, _) => {}
            (false, 0) => write!(f, " ({})", backends.join(" "))?,
            (false, more) => write!(f, " ({} and {more} more)", backends.join(" "))?,
        }
        match self.own_events().filter(|event| event.what == What::Refused).count() {
            0 => Ok(()),
            refused => write!(f, ", not served at {}", counted(refused, "address")),
        }
    }
}

impl Applied<'_> {
    fn own_events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| event.port.as_ref().is_some_and(|port| port.service == self.service.name))
    }

    /// The first backends that the service has gained or lost, and the number of the others.
    fn backends(&self) -> (Vec<String>, usize) {
        let (mut backends, mut more) = (Vec::new(), 0);
        for (sign, list) in self.own_events().flat_map(|event| [('+', &event.added), ('-', &event.removed)]) {
            backends.extend(signed(sign, &list.shown));
            more += list.more;
        }
        more += backends.len().saturating_sub(BACKENDS);
        backends.truncate(BACKENDS);
        (backends, more)
    }
}

/// Reports the addresses that nodelb refuses to serve from the start on: the history has no event of them.
pub(super) fn warn_of_refused(snapshot: &Snapshot) {
    let mut refused = refused(snapshot);
    refused.by_ref().take(SHOWN).for_each(|text| warn!(message_id = %messages::FRONTEND_REFUSED, "{text}"));
    warn_of_more_refused(refused.count());
}

fn warn_of_more_refused(more: usize) {
    if more > 0 {
        warn!(
            message_id = %messages::FRONTEND_REFUSED,
            "not served: {}, see `nodelb frontends`", counted(more, "more frontend")
        );
    }
}

fn refused(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let of_row = |(address, row): (&L4Addr, &Arc<Row>)| -> Vec<String> {
        let refused = row.claims().iter().enumerate().filter(|(_, claim)| claim.target.is_err());
        let text = refused.filter_map(|(place, claim)| {
            let error = row.status_of(place, *address).error?;
            Some(format!("{} is not served at {address}: {error}", claim.key.service))
        });
        text.collect()
    };
    snapshot.rows.iter().flat_map(of_row)
}

/// Reports addresses that nodelb refuses to serve, whatever the kernel accepts, and those that it now serves.
fn report_refusals(round: &Round) {
    let of = |what| round.events.iter().filter(move |event| event.what == what);
    let service = |event: &Event| event.port.as_ref().map(|port| port.service.to_string()).unwrap_or_default();
    for event in of(What::Refused).take(SHOWN) {
        let (service, detail) = (service(event), event.detail.as_deref().unwrap_or_default());
        warn!(message_id = %messages::FRONTEND_REFUSED, service, "{service} is not served at {detail}");
    }
    warn_of_more_refused(of(What::Refused).skip(SHOWN).count());
    for event in of(What::Admitted).take(SHOWN) {
        let (service, detail) = (service(event), event.detail.as_deref().unwrap_or_default());
        info!(message_id = %messages::FRONTEND_SERVED, service, "{service}: {detail}");
    }
}

/// Reports addresses of the node that should answer NodePorts but do not.
fn report_node_addrs(round: &Round) {
    for (addr, error) in round.unanswered.iter().take(SHOWN) {
        warn!(
            message_id = %messages::NODE_ADDRESS_REFUSED,
            "NodePorts do not work on {addr}: {error}"
        );
    }
    if round.unanswered.len() > SHOWN {
        warn!(
            message_id = %messages::NODE_ADDRESS_REFUSED,
            "NodePorts do not work on {} more of this node's addresses: see `nodelb diff`",
            round.unanswered.len() - SHOWN
        );
    }
    match &round.answered[..] {
        [] => {}
        [addr] => info!(message_id = %messages::NODE_ADDRESS_SERVED, "NodePorts now work on {addr}"),
        [addr, more @ ..] => info!(
            message_id = %messages::NODE_ADDRESS_SERVED,
            "NodePorts now work on {addr} and {} more of this node's addresses", more.len()
        ),
    }
}

/// Reports devices that should serve clients outside the node, but do not.
fn report_uplinks(round: &Round) {
    for (name, error) in round.refused_uplinks.iter().take(SHOWN) {
        warn!(message_id = %messages::UPLINK_REFUSED, "backends beyond {name} cannot be reached from outside: {error}");
    }
    if !round.accepted_uplinks.is_empty() {
        let names = listed(&round.accepted_uplinks, SHOWN);
        info!(message_id = %messages::UPLINK_SERVED, "backends can be reached from outside again by {names}");
    }
}

/// Reports services that lose or regain an address because another service owns it or no longer owns it.
fn report_contests(round: &Round) {
    for AddressConflict { address, claimant, owner, text, described } in round.conflicts.iter().take(SHOWN) {
        warn!(
            message_id = %messages::FRONTEND_CONFLICT,
            frontend = %address, service = %claimant.service, owner = %owner.service,
            "address conflict: {text}; {described} is not served there; remove the address from one of the two"
        );
    }
    if round.conflicts.len() > SHOWN {
        warn!(
            message_id = %messages::FRONTEND_CONFLICT,
            "{}: see `nodelb frontends`", counted(round.conflicts.len() - SHOWN, "more address conflict")
        );
    }
    for takeover in round.takeovers.iter().take(SHOWN) {
        let Takeover { address, owner, .. } = takeover;
        info!(
            message_id = %messages::FRONTEND_TAKEN_OVER,
            frontend = %address, service = %owner.service, "{owner} {takeover}"
        );
    }
    if round.takeovers.len() > SHOWN {
        info!(
            message_id = %messages::FRONTEND_TAKEN_OVER,
            "now owned by the next service that claims it: {}", counted(round.takeovers.len() - SHOWN, "more frontend")
        );
    }
}

/// The maximum number of ports without a backend that the journal names in a second: a source that disappears may empty
/// all.
const LOSSES_BY_NAME: usize = 20;

/// The lost backends that were logged in one second.
#[derive(Default)]
pub(super) struct Losses {
    second: u64,
    logged: usize,
    suppressed: usize,
}

impl Losses {
    /// Begins the current second if it is a new one; returns how many lost backends were not logged in the previous
    /// one.
    pub(super) fn turn_over(&mut self, now: Moment) -> usize {
        if now.0 / 1_000 == self.second {
            return 0;
        }
        std::mem::replace(self, Self { second: now.0 / 1_000, logged: 0, suppressed: 0 }).suppressed
    }

    /// How many of `count` may be logged by name.
    pub(super) fn admit(&mut self, count: usize) -> usize {
        let admitted = count.min(LOSSES_BY_NAME.saturating_sub(self.logged));
        self.logged += admitted;
        self.suppressed += count - admitted;
        admitted
    }

    pub(super) fn report(&mut self, now: Moment) {
        match self.turn_over(now) {
            0 => {}
            suppressed => warn!(
                message_id = %messages::BACKENDS_LOST,
                "{suppressed} more service ports have no usable backend: see `nodelb services`"
            ),
        }
    }
}

/// Reports lost backends with the source that removed them: administrators look for these lines first.
pub(super) fn report_losses(round: &Round, losses: &mut Losses, now: Moment) {
    losses.report(now);
    for Emptied { key, cause, is_kept, .. } in &round.emptied[..losses.admit(round.emptied.len())] {
        let Origin { object, resource_version, writer, .. } = &cause.origin;
        let effect = if *is_kept {
            "the earlier ones stay in use for now: see `nodelb frontends`"
        } else {
            "connections are refused"
        };
        warn!(
            message_id = %messages::BACKENDS_LOST,
            service = %key.service, port = %key.port, %object, %resource_version, %writer,
            "{key} has no usable backend: {cause} removed the last one; {effect}"
        );
    }
    for port in &round.held {
        let Origin { object, resource_version, writer, .. } = &port.cause.origin;
        let (key, text) = (&port.key, &port.text);
        warn!(
            message_id = %messages::SERVICE_HELD,
            service = %key.service, port = %key.port, %object, %resource_version, %writer, "{key} is {text}"
        );
    }
    for Release { port, reason, .. } in &round.released {
        let key = &port.key;
        info!(
            message_id = %messages::SERVICE_RELEASED,
            service = %key.service, port = %key.port, "{key} is no longer held: {reason}"
        );
    }
}

/// Logs the service ports of which every backend has failed its health check, unlike the lines about single backends.
pub(super) fn report_last_resorts(events: &[Event]) {
    for (key, text) in last_resorts(events).take(LOSSES_BY_NAME) {
        warn!(message_id = %messages::BACKEND_QUARANTINED, service = %key.service, port = %key.port, "{text}");
    }
}

fn last_resorts(events: &[Event]) -> impl Iterator<Item = (&PortKey, String)> {
    let of_ports = events.iter().filter(|event| event.what == What::LastResort).filter_map(|it| it.port.as_deref());
    of_ports.map(|key| {
        let text = format!("{key}: every backend failed its health check, and all of them are used as a last resort");
        (key, text)
    })
}

/// The text of the check `reconcile` after the first full reconcile.
pub(super) fn reconciled(kept: &[Kept]) -> String {
    let reported: Vec<String> = kept.iter().filter_map(describe_kept).collect();
    match reported.as_slice() {
        [] => "every source is synced and the first full reconcile is done".into(),
        reported => format!("the first full reconcile is done, but {}", reported.join("; and ")),
    }
}

/// Logs the sources that are not configured. A file that cannot be read has its own line.
pub(super) fn warn_of_kept(kept: &[Kept]) {
    for it in kept.iter().filter(|it| matches!(it.because, Awaited::NotConfigured(_))) {
        if let Some(text) = describe_kept(it) {
            warn!(message_id = %messages::SOURCE_ABSENT, "{text}");
        }
    }
}

/// What is missing, the consequence, and what to do. `None` if nothing of an absent source is left.
fn describe_kept(Kept { source, ports, because }: &Kept) -> Option<String> {
    let count = match ports {
        0 => "no service port is".to_owned(),
        1 => "1 service port is".to_owned(),
        ports => format!("{ports} service ports are"),
    };
    match because {
        Awaited::NotConfigured(_) if *ports == 0 => None,
        Awaited::NotConfigured(_) => Some(format!(
            "{source} is no longer configured as a source: {count} kept as last known and not updated; configure \
             [{source}] again, or set {source}.enabled to false to remove them"
        )),
        because => Some(format!("{count} kept from before the start {because}")),
    }
}

#[cfg(test)]
#[path = "tests/report.rs"]
mod tests;
