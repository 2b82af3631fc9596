//! The rows of `/diff`: where source, memory and kernel disagree, with the likely cause and nodelb's action. Source is
//! what the sources have reported. The daemon checks separately what they would report now.

use crate::explain::reports;
use crate::filter::Filter;
use nodelb_core::compile::select::Choice;
use nodelb_core::difference::{Between, Difference};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{FrontendKind, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::kernel_check::{Content, differing_entries};
use nodelb_core::state::status::Status;

use kernel::{ABSENT, addresses, entry, shows};

mod kernel;

pub use kernel::{CHECKS_AT_ONCE, NextCheck};

/// What happens to hooks that are not in effect.
pub const ATTACHED_AGAIN: &str = "attached again within 10 s; until then connections may not be translated";

/// What a row shows for a source that was used before and is not configured.
pub const NOT_CONFIGURED: &str = "not configured";

/// Every difference between source and memory, then every difference between memory and the current content of the
/// maps, by address and name.
pub fn differences(snapshot: &Snapshot, actual: &Content, next: NextCheck, filter: &Filter) -> Vec<Difference> {
    let mut rows = Vec::new();
    add_sources(snapshot, filter, &mut rows);
    add_descriptions(snapshot, filter, &mut rows);
    add_held_ports(snapshot, filter, &mut rows);
    add_frontends(snapshot, filter, &mut rows);
    add_backends(snapshot, filter, &mut rows);
    for key in differing_entries(actual, &snapshot.desired) {
        if shows(snapshot, actual, key, filter) {
            rows.push(entry(snapshot, actual, key, next));
        }
    }
    let is_wanted = *filter == Filter::default();
    for broken in actual.broken.with_invalid_key.iter().filter(|_| is_wanted) {
        rows.push(Difference {
            between: Between::MemoryKernel,
            what: "map frontends".into(),
            service: None,
            source: None,
            memory: Some(ABSENT.into()),
            kernel: Some(broken.clone()),
            cause: "another program wrote into the map".into(),
            action: "no connection can match it; a restart of nodelb creates new maps without it".into(),
        });
    }
    rows
}

/// Adds the sources that have not reported everything.
fn add_sources(snapshot: &Snapshot, filter: &Filter, rows: &mut Vec<Difference>) {
    if *filter != Filter::default() {
        return;
    }
    for source in &snapshot.absent {
        rows.push(Difference {
            between: Between::SourceMemory,
            what: format!("source {source}"),
            service: None,
            source: Some(NOT_CONFIGURED.into()),
            memory: Some("as last known".into()),
            kernel: None,
            cause: "it was a source before, and the configuration does not name it".into(),
            action: format!("its services stay; configure [{source}], or set {source}.enabled to false and restart"),
        });
    }
    for source in &snapshot.config.sources {
        let (cause, action) = match (snapshot.facts.is_synced(*source), snapshot.facts.incomplete(*source)) {
            (true, None) => continue,
            (true, Some(what)) => (
                format!("it cannot be read completely: {what}"),
                "existing entries in the kernel that no source describes stay until it can",
            ),
            (false, _) => (
                format!("it has not reported everything since nodelb started; see {}", where_to_look(*source)),
                "existing entries in the kernel stay unchanged; new services are added immediately",
            ),
        };
        rows.push(Difference {
            between: Between::SourceMemory,
            what: format!("source {source}"),
            service: None,
            source: Some("not reported completely".into()),
            memory: Some("the state reported so far".into()),
            kernel: None,
            cause,
            action: action.into(),
        });
    }
}

/// Adds the services that more than one source describes.
fn add_descriptions(snapshot: &Snapshot, filter: &Filter, rows: &mut Vec<Difference>) {
    if filter.address.is_some() {
        return;
    }
    for (descriptions, _) in reports::described(snapshot, filter).filter(|(descriptions, _)| descriptions.len() > 1) {
        let name = &descriptions[0].name;
        // The first description takes precedence.
        for service in &descriptions[1..] {
            let Some(error) = reports::shadowed(snapshot, service) else { continue };
            rows.push(Difference {
                between: Between::SourceMemory,
                what: name.to_string(),
                service: Some(name.clone()),
                source: Some(format!("{} describes it ({})", service.source, service.origin.object)),
                memory: Some("another description takes precedence".into()),
                kernel: None,
                cause: error,
                action: "uses this description when the other one is removed".into(),
            });
        }
    }
}

fn add_held_ports(snapshot: &Snapshot, filter: &Filter, rows: &mut Vec<Difference>) {
    // A source that cannot tell the current backends still has the last known ones.
    let mut ports: Vec<_> = snapshot.held().filter(|port| port.problem.is_none()).collect();
    ports.sort_by(|a, b| a.key.cmp(&b.key));
    for port in ports {
        let is_named = filter.accepts(&port.key.service);
        let is_at = filter.address.is_none_or(|addr| {
            port.backends.iter().any(|backend| backend.addr == addr)
                || snapshot.addresses_of(&port.key.service).iter().any(|address| address.addr == addr)
        });
        if is_named && is_at {
            rows.push(Difference {
                between: Between::SourceMemory,
                what: port.key.to_string(),
                service: Some(port.key.service.clone()),
                source: Some("no backends".into()),
                memory: Some(addresses(port.backends.iter().copied())),
                kernel: None,
                cause: format!("{} left it without backends", port.cause),
                action: "they stay in use, for the service leads to an apiserver, until there are others or it is \
                         deleted"
                    .into(),
            });
        }
    }
}

/// Adds the addresses that a source requests and that nodelb does not serve or no client can reach.
fn add_frontends(snapshot: &Snapshot, filter: &Filter, rows: &mut Vec<Difference>) {
    for report in reports::frontends(snapshot, filter) {
        let Some(error) = report.error else { continue };
        let row = snapshot.rows.get(&report.address);
        let mut own = row
            .into_iter()
            .flat_map(|row| row.claims())
            .filter(|claim| (&claim.key.service, &claim.key.port) == (&report.service, &report.port));
        if own.any(|claim| claim.target.as_ref().is_err_and(|refusal| refusal.is_intended())) {
            continue;
        }
        let owner = row.and_then(|row| row.owner());
        let is_owner =
            owner.is_some_and(|(claim, _)| (&claim.key.service, &claim.key.port) == (&report.service, &report.port));
        let (memory, action) = match (report.status, owner) {
            (Status::Conflict | Status::Refused, _) if is_owner => continue,
            (Status::Conflict | Status::Refused, Some((claim, _))) => {
                (format!("served for {}", claim.key), "takes over when that service gives it up".to_owned())
            }
            (Status::Conflict | Status::Refused, None) => {
                ("not served".into(), "connections pass through untranslated".into())
            }
            (status, _) if status.is_in_maps() && is_out_of_reach(snapshot, report.address, report.kind) => {
                ("served, but not on every address".into(), "served there as soon as that changes".into())
            }
            _ => continue,
        };
        rows.push(Difference {
            between: Between::SourceMemory,
            what: report.address.to_string(),
            service: Some(report.service.clone()),
            source: Some(format!("{} of {}", report.kind, report.service)),
            memory: Some(memory),
            kernel: None,
            cause: error,
            action,
        });
    }
}

/// Adds the backends that a source offers and nodelb does not use for a reason of its own.
fn add_backends(snapshot: &Snapshot, filter: &Filter, rows: &mut Vec<Difference>) {
    for report in reports::backends(snapshot, filter) {
        let action = match report.choice {
            Choice::Refused => "never used",
            Choice::Quarantined => "used again when its checks succeed",
            Choice::Maintenance if report.reason.is_some() => "used again when the drain ends",
            _ => continue,
        };
        let port = if report.port.is_empty() { String::new() } else { format!(":{}", report.port) };
        rows.push(Difference {
            between: Between::SourceMemory,
            what: format!("{}{port} backend {}", report.service, report.address),
            service: Some(report.service),
            source: Some(format!("named by {}", report.origin)),
            memory: Some(report.choice.to_string()),
            kernel: None,
            cause: report.reason.unwrap_or_default(),
            action: action.into(),
        });
    }
}

/// Whether a correctly written NodePort is answered by another process, or on no address.
fn is_out_of_reach(snapshot: &Snapshot, address: L4Addr, kind: FrontendKind) -> bool {
    let is_answered = || reports::answers_nodeports(snapshot, address.addr.family());
    snapshot.facts.bound.get(&address).is_some() || (kind == FrontendKind::NodePort && !is_answered())
}

fn where_to_look(source: Source) -> &'static str {
    match source {
        Source::Files => "`nodelb sources`",
        Source::Kubernetes => "`nodelb apiservers`",
    }
}

#[cfg(test)]
#[path = "tests/differences.rs"]
mod tests;
