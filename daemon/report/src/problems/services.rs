//! Problems of single services: one for each service and reason, however many addresses have it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::earlier::CLOCKS_DIFFER;
use super::effect::Effects;
use super::outside;
use super::problem::{Observed, Problem, Shared, SharedCause};
use super::reason::{Reason, Severity};
use crate::explain::kept::why_kept;
use crate::explain::reports;
use crate::explain::rows::BackendReport;
use crate::filter::Filter;
use crate::time::Time;
use nodelb_core::degraded::Degraded;
use nodelb_core::history::{Record, What};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::cause::Cause;
use nodelb_core::model::health_check::Method;
use nodelb_core::model::service::{BackendState, PortKey, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::FrontendEntry;
use nodelb_core::state::status::Status;
use nodelb_core::text::listed;

/// An address that is not in the kernel is a problem after this time, in milliseconds.
const PENDING_AFTER: u64 = 10_000;
/// A load balancer without an address is a problem after this time, in milliseconds.
const LOAD_BALANCER_AFTER: u64 = 600_000;
/// The maximum number of ports or backends in one line.
const SHOWN: usize = 3;

pub(super) fn problems(observed: &Observed) -> Vec<Problem> {
    let mut found = Vec::new();
    let effects = Effects::new(observed);
    degraded(observed, &effects, &mut found);
    held(observed, &mut found);
    addresses(observed, &effects, &mut found);
    descriptions(observed, &effects, &mut found);
    quarantined(observed, &mut found);
    kept(observed, &mut found);
    drained(observed, &mut found);
    outside::unserved(observed, &mut found);
    outside::unanswered(observed, &mut found);
    found
}

/// Addresses that no source describes, that the maps contain from before the start, and that had no healthy backend then.
fn kept(observed: &Observed, found: &mut Vec<Problem>) {
    let snapshot = &observed.snapshot;
    let service = |entry: &FrontendEntry| Some(snapshot.realised.services.get(&entry.service)?.tag?.service);
    let all: Vec<_> = snapshot.kept().collect();
    let usable = all.iter().filter(|(.., kept)| kept.status.is_usable());
    let usable: BTreeSet<u32> = usable.filter_map(|(_, entry, _)| service(entry)).collect();
    for (address, entry, kept) in all {
        let (reason, what) = match kept.status {
            Status::NoBackends => (Reason::NoBackends, "no usable backend, as before the start,"),
            Status::LastResort => (
                Reason::LastResort,
                "last resort, as before the start: all failed their health checks then, and nodelb checks none of them",
            ),
            _ => continue,
        };
        let cause = format!("{what} {}", why_kept(snapshot, address, entry));
        let since = Some(observed.clocks.time_of(kept.since));
        // Connections to another address of the service work.
        let is_part = service(entry).is_some_and(|service| usable.contains(&service));
        let severity = if is_part { Severity::Warning } else { Severity::Critical };
        let problem = Problem::new(reason, address.to_string(), cause).severity(severity).since(since);
        found.push(Problem { command: format!("nodelb trace {address}"), ..problem });
    }
}

/// A service port without a healthy backend, and since when.
type DegradedPort<'a> = (&'a Arc<PortKey>, &'a Arc<Degraded>);

/// Services with ports without a healthy backend. A source that has not reported everything may have more backends, unless
/// the rows already say so.
fn degraded(observed: &Observed, effects: &Effects<'_>, found: &mut Vec<Problem>) {
    let snapshot = &observed.snapshot;
    let mut ports: BTreeMap<(&ServiceName, Status), Vec<DegradedPort<'_>>> = BTreeMap::new();
    for (key, degraded) in snapshot.degraded().filter(|(key, degraded)| takes_effect(snapshot, key, degraded)) {
        ports.entry((&key.service, degraded.status)).or_default().push((key, degraded));
    }
    for ((name, status), ports) in ports {
        let Some((key, last)) = ports.iter().max_by_key(|(_, degraded)| (degraded.had_backends, degraded.since)) else {
            continue;
        };
        let of = part(snapshot, name, &ports);
        let since = Some(observed.clocks.time_of(last.since));
        let problem = match status {
            Status::LastResort => last_resort(snapshot, effects, (name, &of, &ports)),
            _ => {
                // This run has only read the service. The one that has seen it lose its backends knows why.
                let seen = since.filter(|_| !last.had_backends).and_then(|at| emptied_before(observed, key, at));
                let seen =
                    seen.map(|cause| Degraded { had_backends: true, cause: cause.clone(), ..Degraded::clone(last) });
                let problem = without_backends(snapshot, (key, &of), seen.as_ref().unwrap_or(last));
                problem.severity(effects.severity(name))
            }
        };
        found.push(problem.since(since));
    }
}

/// Every backend of these ports of the service failed its checks. That a client connects contradicts a check that does only
/// that; one by HTTP may be right.
fn last_resort(
    snapshot: &Snapshot,
    effects: &Effects<'_>,
    (name, of, ports): (&ServiceName, &str, &[DegradedPort<'_>]),
) -> Problem {
    let check = snapshot.facts.owner(name).and_then(|(service, _)| service.health_check.as_deref());
    let is_accepted = ports.iter().any(|(key, degraded)| effects.is_accepted(key, degraded.since));
    let (severity, but) = match check.filter(|_| is_accepted).map(|check| &check.method) {
        None => (effects.severity(name), ""),
        Some(Method::Tcp) => (Severity::Warning, "; but clients outside the node are connected: is the check right?"),
        Some(Method::Http { .. }) => (effects.severity(name), "; clients outside the node are connected"),
    };
    let why = reports::unused_text(snapshot, name).unwrap_or_else(|| "all fail their health checks".into());
    let mut shared = failed_together(&reports::backends(snapshot, &Filter::for_service(name)), LAST_RESORT);
    shared.what.push_str(but);
    let problem = Problem::new(Reason::LastResort, name.to_string(), format!("last resort{of}: {why}{but}"));
    problem.severity(severity).shared(Some(shared))
}

/// How [`Reason::LastResort`] begins where services share it.
const LAST_RESORT: &str = "every backend failed its health checks and is used as a last resort";

/// What the service has in common with others of which backends on the same hosts failed their health checks.
fn failed_together(backends: &[BackendReport], what: &str) -> SharedCause {
    let failed = || backends.iter().filter(|row| row.state == BackendState::Quarantined);
    let of = Shared::Hosts(failed().map(|row| row.address.addr).collect());
    let whys: BTreeSet<&str> = failed().map(|row| row.reason.as_deref().unwrap_or("unknown error")).collect();
    SharedCause { of, what: format!("{what} ({})", listed(whys, SHOWN)), command: "nodelb backends" }
}

/// Why the port has lost all backends at this time, if that was in an earlier run.
fn emptied_before<'o>(observed: &'o Observed, key: &PortKey, at: Time) -> Option<&'o Cause> {
    let of_port =
        |record: &&Arc<Record>| record.event.port.as_deref() == Some(key) && record.event.what == What::Emptied;
    let last = observed.history.of_service(&key.service).rev().find(of_port)?;
    (last.is_from_before && last.at.abs_diff(at.0) <= CLOCKS_DIFFER).then_some(&last.event.cause)
}

/// Whether connections get what the port's state says. Its addresses may stay as before the start for now.
fn takes_effect(snapshot: &Snapshot, key: &PortKey, degraded: &Degraded) -> bool {
    let status = |address: L4Addr| {
        let row = snapshot.rows.get(&address)?;
        let own = row.claims().iter().position(|claim| claim.key.service == key.service)?;
        Some(snapshot.status_of(row, own, address).status)
    };
    let statuses: Vec<Status> = snapshot.addresses_of(&key.service).into_iter().filter_map(status).collect();
    let owner = snapshot.facts.owner(&key.service);
    if owner.is_some_and(|(service, _)| snapshot.facts.is_synced(service.source)) {
        return statuses.is_empty() || statuses.iter().any(|it| !matches!(it, Status::Kept | Status::Pending));
    }
    statuses.contains(&degraded.status)
}

fn without_backends(snapshot: &Snapshot, (key, of): (&PortKey, &str), degraded: &Degraded) -> Problem {
    let name = &key.service;
    let origin = || snapshot.facts.owner(name).map(|(service, _)| Arc::clone(&service.origin.object));
    let unready = || unmatched(snapshot, key).or_else(|| unready(snapshot, key));
    let why = || snapshot.source_problem(name).or_else(unready);
    let unused = reports::unused_text(snapshot, name);
    let why = match unused.clone().or_else(why) {
        Some(why) if degraded.had_backends && unused.is_none() && !why.starts_with(&*degraded.cause.origin.object) => {
            format!("{why}{}", changed(&degraded.cause))
        }
        Some(why) => why,
        None if degraded.had_backends => emptied(&degraded.cause),
        None => format!("none since {} was read", origin().unwrap_or_default()),
    };
    let problem = snapshot.unknown_backends(name).filter(|_| unused.is_none());
    let shared = problem.map(|(_, problem)| unanswered_names(format!("no usable backend: {problem}")));
    Problem::new(Reason::NoBackends, name.to_string(), format!("no usable backend{of}: {why}")).shared(shared)
}

/// What services share of which DNS servers give no addresses of backends.
fn unanswered_names(what: String) -> SharedCause {
    SharedCause { of: Shared::Part("DNS names"), what, command: "nodelb dns" }
}

/// Slices that have backends, but not for the port; `None` if there are none, or the port has backends.
fn unmatched(snapshot: &Snapshot, key: &PortKey) -> Option<String> {
    let (_, slices) = snapshot.facts.owner(&key.service)?;
    let ports = slices.iter().flat_map(|slice| &slice.ports).filter(|port| !port.backends.is_empty());
    let mut others = BTreeSet::new();
    for port in ports {
        if port.name == key.port && port.protocol == key.protocol {
            return None;
        }
        others.insert(if port.name.is_empty() {
            format!("an unnamed port/{}", port.protocol)
        } else {
            port.name.to_string()
        });
    }
    let wanted = if key.port.is_empty() { "unnamed port" } else { &*key.port };
    (!others.is_empty()).then(|| format!("its slices have no port {wanted}, but {}", listed(others, SHOWN)))
}

/// Backends that exist and are not ready; `None` if there are none.
fn unready(snapshot: &Snapshot, key: &PortKey) -> Option<String> {
    let backends = reports::backends(snapshot, &Filter::for_service(&key.service));
    let of_port = backends.iter().filter(|row| row.port == key.port).map(|row| row.state);
    match of_port.filter(|state| *state == BackendState::NotReady).count() {
        0 => None,
        1 => Some("its backend is not ready".into()),
        number => Some(format!("none of its {number} backends is ready")),
    }
}

/// Formats as `, since EndpointSlice shop/web was changed by bob (resourceVersion 15)`.
fn changed(cause: &Cause) -> String {
    let object = &cause.origin.object;
    if object.is_empty() {
        return String::new();
    }
    if cause.is_end_of_hold() {
        return format!(", since {object}");
    }
    let change = if cause.is_removed { "removed" } else { "changed" };
    format!(", since {object} was {change}{}", by(cause))
}

/// Formats as ` on port http/TCP/IPv4`, unless all ports of the service are concerned.
fn part(snapshot: &Snapshot, name: &ServiceName, ports: &[(&Arc<PortKey>, &Arc<Degraded>)]) -> String {
    let all = snapshot
        .facts
        .owner(name)
        .map_or(0, |(service, slices)| reports::port_keys(service, slices, snapshot.config.packets).len());
    if ports.len() >= all {
        return String::new();
    }
    format!(" on port {}", listed(ports.iter().map(|(key, _)| reports::port_text(key)), SHOWN))
}

/// Formats as `EndpointSlice shop/web emptied by bob (resourceVersion 15)`.
fn emptied(cause: &Cause) -> String {
    let origin = &cause.origin;
    if origin.object.is_empty() {
        return "the source removed the last one".into();
    }
    if cause.is_end_of_hold() {
        return format!("none since {}", origin.object);
    }
    if cause.is_removed {
        return format!("{} was removed", origin.object);
    }
    format!("{} emptied{}", origin.object, by(cause))
}

/// Formats as ` by bob (resourceVersion 15)`.
fn by(Cause { origin, .. }: &Cause) -> String {
    let by = if origin.writer.is_empty() { String::new() } else { format!(" by {}", origin.writer) };
    match &*origin.resource_version {
        "" => by,
        version => format!("{by} (resourceVersion {version})"),
    }
}

fn held(observed: &Observed, found: &mut Vec<Problem>) {
    let mut seen = BTreeSet::new();
    for port in observed.snapshot.held().filter(|port| seen.insert(&port.key.service)) {
        let why = match &port.problem {
            Some(problem) => format!("{}: {problem}", port.cause.origin.object),
            None => emptied(&port.cause),
        };
        let cause = format!("held: {why}; {} in use", listed(&port.backends, SHOWN));
        let shared = port.problem.as_ref().map(|problem| unanswered_names(format!("held: {problem}")));
        let problem = Problem::new(Reason::Held, port.key.service.to_string(), cause).shared(shared);
        found.push(problem.since(Some(observed.clocks.time_of(port.since))));
    }
}

/// An address with a problem, and the number of further ones.
struct Concerned {
    address: L4Addr,
    text: String,
    since: Time,
    more: usize,
    /// Whether processes of this node are meant to get all of these connections.
    is_intended: bool,
}

/// Services with addresses that are not served.
fn addresses(observed: &Observed, effects: &Effects<'_>, found: &mut Vec<Problem>) {
    let mut concerned = Unserved::new();
    let snapshot = &observed.snapshot;
    let objects = |reason: Reason| -> BTreeSet<String> {
        found.iter().filter(|problem| problem.reason == reason).map(|problem| problem.object.clone()).collect()
    };
    let (without, failed) = (objects(Reason::NoBackends), objects(Reason::LastResort));
    let waits = |address| snapshot.is_ready || snapshot.realised.reaches_any(address);
    for (address, place) in &observed.summary.claims {
        let Some(row) = snapshot.rows.get(address) else { continue };
        let Some(claim) = row.claims().get(*place) else { continue };
        let status = snapshot.status_of(row, *place, *address);
        let since = observed.clocks.time_of(status.since);
        let reason = match status.status {
            Status::Conflict => Reason::Conflict,
            Status::Refused if claim.target.is_ok() => Reason::ReconcileFailing,
            Status::Refused => Reason::Refused,
            Status::Kept | Status::LastResort if claim.target.is_err() => Reason::Refused,
            Status::Kept | Status::LastResort if *place > 0 => Reason::Conflict,
            Status::Pending if waits(*address) && since.age(observed.clocks.time) > PENDING_AFTER => Reason::Pending,
            Status::NoBackends if without.contains(&claim.key.service.to_string()) => continue,
            Status::NoBackends if row.status.status == Status::NoBackends => Reason::NoBackends,
            Status::NoBackends => Reason::NoLocalBackend,
            Status::LastResort if !failed.contains(&claim.key.service.to_string()) => Reason::LastResort,
            _ => continue,
        };
        let text = || match (reason, &status.error) {
            (Reason::LastResort, _) if claim.inside_local => {
                "last resort: every backend on this node failed its health checks (internalTrafficPolicy: Local)"
                    .to_owned()
            }
            (Reason::LastResort, _) => "last resort: every backend in use failed its health checks".to_owned(),
            (Reason::NoLocalBackend, _) => "no backend on this node (internalTrafficPolicy: Local)".to_owned(),
            (_, Some(error)) => error.to_string(),
            (Reason::NoBackends, None) => "no usable backend in the kernel yet".to_owned(),
            (_, None) => "not in the kernel yet".to_owned(),
        };
        let is_intended = claim.target.as_ref().is_err_and(|refusal| refusal.is_intended());
        concerned
            .entry((claim.key.service.clone(), reason))
            .and_modify(|it| {
                it.more += 1;
                it.is_intended &= is_intended;
            })
            .or_insert_with(|| Concerned { address: *address, text: text(), since, more: 0, is_intended });
    }
    for ((service, reason), Concerned { address, text, since, more, is_intended }) in
        separate(concerned, effects, found)
    {
        let more = if more > 0 { format!(" (and {more} more addresses)") } else { String::new() };
        let (claimed, address) = (address, address.to_string());
        let of = if text.starts_with(&address) { String::new() } else { format!("{address}: ") };
        let problem = Problem::new(reason, service.to_string(), format!("{of}{text}{more}"));
        let severity = if is_intended { Severity::Notice } else { effects.severity(&service) };
        let shared = (more.is_empty()).then(|| SharedCause {
            of: Shared::Hosts([claimed.addr].into()),
            what: text,
            command: "nodelb frontends --address",
        });
        found.push(problem.severity(severity).since(Some(since)).shared(shared));
    }
}

/// The addresses and the reason of a service for which they are not served.
type Unserved = BTreeMap<(ServiceName, Reason), Concerned>;

/// Adds one problem for each full map that several services find full, and returns the other services.
fn separate(concerned: Unserved, effects: &Effects<'_>, found: &mut Vec<Problem>) -> Unserved {
    let mut full: BTreeMap<(String, Reason), Unserved> = BTreeMap::new();
    let mut others = Unserved::new();
    for (key, it) in concerned {
        let of = match it.text.strip_prefix("map ").and_then(|rest| rest.split_once(" is full (")) {
            Some((map, _)) => full.entry((format!("map {map}"), key.1)).or_default(),
            None => &mut others,
        };
        of.insert(key, it);
    }
    for ((map, reason), mut services) in full {
        if services.len() == 1 {
            others.append(&mut services);
            continue;
        }
        let addresses: usize = services.values().map(|it| it.more + 1).sum();
        let since = services.values().map(|it| it.since).min();
        let severity = services.keys().map(|(name, _)| effects.severity(name)).max().unwrap_or(Severity::Warning);
        let why = services.values().next().map(|it| it.text.as_str()).unwrap_or_default();
        let cause = format!("{addresses} addresses of {} services are not served: {why}", services.len());
        let problem = Problem::new(reason, map, cause).severity(severity).since(since);
        found.push(Problem { command: "nodelb frontends --status Refused".into(), ..problem });
    }
    others
}

/// Services that two sources describe, those with health checks that cannot be made, and those that wait for a load
/// balancer.
fn descriptions(observed: &Observed, effects: &Effects<'_>, found: &mut Vec<Problem>) {
    let facts = &observed.snapshot.facts;
    for name in &observed.summary.descriptions {
        for service in facts.claims(name).iter().skip(1) {
            if let Some(cause) = reports::shadowed(&observed.snapshot, service) {
                let problem = Problem::new(Reason::Conflict, name.to_string(), cause);
                found.push(problem.severity(effects.severity(name)));
            }
        }
        let Some((service, _)) = facts.owner(name) else { continue };
        if let Some(error) = &service.health_check_error
            && reports::makes_checks(&observed.snapshot, service.source)
        {
            found.push(Problem::new(Reason::HealthCheckInvalid, name.to_string(), error.as_str()));
        }
        if !service.awaits_load_balancer {
            continue;
        }
        let since = service.created.map(Time::from_seconds);
        if since.is_some_and(|since| since.age(observed.clocks.time) > LOAD_BALANCER_AFTER) {
            let cause = "no load balancer address yet";
            found.push(Problem::new(Reason::LoadBalancerPending, name.to_string(), cause).since(since));
        }
    }
}

/// Services with some backends that failed their health checks.
fn quarantined(observed: &Observed, found: &mut Vec<Problem>) {
    let snapshot = &observed.snapshot;
    let since = last_changes_by_checks(observed);
    for name in snapshot.facts.quarantine.keys() {
        let backends = reports::backends(snapshot, &Filter::for_service(name));
        let mut failed = backends.iter().filter(|row| row.state == BackendState::Quarantined).peekable();
        let Some(first) = failed.peek().copied() else { continue };
        if snapshot.degraded().any(|(key, _)| key.service == *name) {
            continue;
        }
        let why = first.reason.as_deref().unwrap_or("unknown error");
        let cause = format!(
            "{} of {} backends failed their health checks: {}: {why}",
            failed.count(),
            backends.len(),
            first.address
        );
        let problem = Problem::new(Reason::BackendsQuarantined, name.to_string(), cause);
        let shared = failed_together(&backends, "backends there failed their health checks");
        found.push(problem.since(since.get(name).copied()).shared(Some(shared)));
    }
}

/// When health checks changed the services last, or else when anything did.
fn last_changes_by_checks(observed: &Observed) -> BTreeMap<&ServiceName, Time> {
    let facts = &observed.snapshot.facts;
    let (mut by_checks, mut by_any) = (BTreeMap::new(), BTreeMap::new());
    if facts.quarantine.keys().next().is_none() {
        return by_any;
    }
    for record in observed.history.latest_first() {
        let Some(port) = &record.event.port else { continue };
        if facts.quarantine(&port.service).is_none() {
            continue;
        }
        by_any.entry(&port.service).or_insert(Time(record.at));
        if record.event.cause.is_of_checks() {
            by_checks.entry(&port.service).or_insert(Time(record.at));
        }
    }
    by_any.extend(by_checks);
    by_any
}

/// Services with drains, also those of backends that no source reports now.
fn drained(observed: &Observed, found: &mut Vec<Problem>) {
    for (name, drains) in &observed.snapshot.facts.drains {
        let Some((first, drain)) = drains.first_key_value() else { continue };
        let more = if drains.len() > 1 { format!(" (and {} more)", drains.len() - 1) } else { String::new() };
        let since = drains.values().map(|drain| drain.since).max().map(Time::from_seconds);
        let snapshot = &observed.snapshot;
        let used = snapshot
            .facts
            .owner(name)
            .map(|(service, slices)| reports::port_keys(service, slices, snapshot.config.packets));
        let used = used.into_iter().flatten().find(|key| snapshot.uses_drained(key));
        let used = used
            .map(|key| format!("; {} uses drained backends, because it has no other one", reports::port_text(&key)));
        let texts: BTreeSet<String> = drains.values().map(ToString::to_string).collect();
        let shared = used.is_none().then(|| SharedCause {
            of: Shared::Hosts(drains.keys().map(|drained| drained.addr).collect()),
            what: listed(texts, SHOWN),
            command: "nodelb backends",
        });
        let cause = format!("{first} is {drain}{more}{}", used.unwrap_or_default());
        let problem = Problem::new(Reason::BackendsDrained, name.to_string(), cause);
        found.push(problem.since(since).shared(shared));
    }
}
