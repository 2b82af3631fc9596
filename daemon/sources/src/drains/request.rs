//! A request of the operator, and why it is refused. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::drain::{Drain, Drained, Drains, MAX_DRAINS, overlapping};
use nodelb_core::model::service::{BackendState, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::text::listed;
use nodelb_report::explain::drains::Loss;
use nodelb_report::explain::rows::BackendReport;
use nodelb_report::explain::{self, reports};
use nodelb_report::filter::Filter;
use tokio::sync::oneshot;

use super::state_file::All;
use crate::document::nearest;

const SHOWN: usize = 5;

/// The maximum number of services that a refusal names.
const SHOWN_SERVICES: usize = 50;

/// The longest drain with an end.
pub(super) const MAX_LENGTH: Duration = Duration::from_secs(366 * 86_400);

#[derive(Debug)]
pub struct Request {
    pub wish: Wish,
    /// The author, see [`super::author`].
    pub by: Arc<str>,
    /// Gets a sentence about what is in effect now.
    pub reply: oneshot::Sender<Result<String, Refusal>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// `None` for every service that has the backend.
    pub service: Option<ServiceName>,
    pub backend: Drained,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Drain {
        /// `None` for a drain that only `nodelb undrain` ends.
        length: Option<Duration>,
        /// Whether the service may lose its last healthy backend.
        is_forced: bool,
    },
    Undrain,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unknown(String),
    /// Never possible.
    Invalid(String),
    /// Not possible now.
    Refused(String),
    Failed(String),
}

/// The services for which the backend is to be drained.
pub(super) fn to_drain(snapshot: &Snapshot, wish: &Wish) -> Result<Vec<ServiceName>, Refusal> {
    let backend = wish.backend;
    if let Some(service) = &wish.service {
        return Ok(vec![service.clone()]);
    }
    let all = reports::backends(snapshot, &Filter::default());
    let is_it = |row: &&BackendReport| backend.includes((row.address.addr, row.address.port));
    let services = all.iter().filter(is_it).map(|row| row.service.clone());
    let services: BTreeSet<ServiceName> = services.filter(|it| snapshot.facts.owner(it).is_some()).collect();
    if services.is_empty() {
        let hint = similar_backend(&all, backend).unwrap_or_else(|| "see `nodelb backends`".into());
        return Err(Refusal::Unknown(format!("no service has a backend {backend}; {hint}")));
    }
    Ok(services.into_iter().collect())
}

/// The services for which the backend is drained, and the request ends that.
pub(super) fn to_undrain(all: &All, wish: &Wish) -> Result<Vec<ServiceName>, Refusal> {
    let backend = wish.backend;
    if let Some(service) = &wish.service {
        return Ok(vec![service.clone()]);
    }
    let drained = all.iter().filter(|(_, drains)| drains.contains_key(&backend));
    let services: Vec<ServiceName> = drained.map(|(service, _)| service.clone()).collect();
    if services.is_empty() {
        let others: BTreeSet<&Drained> = all.values().flat_map(Drains::keys).collect();
        let hint = if others.is_empty() { String::new() } else { format!("; drained: {}", listed(others, SHOWN)) };
        return Err(Refusal::Unknown(format!("{backend} is not drained for any service{hint}")));
    }
    Ok(services)
}

/// All drains with that of the backend for each of the services. If one refuses it, nothing is drained.
pub(super) fn with_drains(
    snapshot: &Snapshot,
    all: &All,
    (services, backend): (&[ServiceName], Drained),
    (drain, is_forced): (&Drain, bool),
) -> Result<All, Refusal> {
    let (mut then, mut lost) = (all.clone(), Vec::new());
    let mut is_of_healthy = false;
    for service in services {
        let drains = with_drain(snapshot, &then, (service, backend), drain.clone())?;
        if let Some(loss) = explain::drains::lost_by_drains(snapshot, service, drains.clone()) {
            is_of_healthy |= loss.is_of_healthy;
            lost.push(format!("{service} on {}{}", listed(&loss.ports, SHOWN), left(&loss, backend)));
        }
        then.insert(service.clone(), drains);
    }
    if is_forced || lost.is_empty() {
        return Ok(then);
    }
    let (healthy, lost) = (if is_of_healthy { "healthy " } else { "" }, listed(lost, SHOWN_SERVICES));
    let nothing = if services.len() > 1 { "; nothing is drained" } else { "" };
    Err(Refusal::Refused(format!(
        "{backend} is the last {healthy}backend of {lost}{nothing}; drain it nevertheless with --force"
    )))
}

/// The other backends of the service, and why they are not used.
fn left(loss: &Loss, backend: Drained) -> String {
    let is_other = |row: &&BackendReport| !backend.includes((row.address.addr, row.address.port));
    let unused = loss.left.iter().filter(is_other).filter(|row| row.state != BackendState::Active);
    let others = unused.map(|row| {
        let why = row.reason.as_ref().map(|why| format!(", {why}")).unwrap_or_default();
        format!("{} is {}{why}", row.address, row.state)
    });
    let others: Vec<String> = others.collect();
    if others.is_empty() { String::new() } else { format!(" ({})", listed(others, SHOWN)) }
}

/// The drains of the service with this one.
fn with_drain(
    snapshot: &Snapshot,
    all: &All,
    (service, backend): (&ServiceName, Drained),
    drain: Drain,
) -> Result<Drains, Refusal> {
    if snapshot.facts.owner(service).is_none() {
        if let Some(why) = why_kept(snapshot, service) {
            let text =
                format!("{service} is in use as before the start, {why}; until then its backends cannot be drained");
            return Err(Refusal::Refused(text));
        }
        let names: Vec<String> = snapshot.facts.names().map(ToString::to_string).collect();
        let wanted = service.to_string();
        let hint = nearest(names.iter().map(String::as_str), &wanted)
            .map_or_else(|| "see `nodelb services`".into(), |name| format!("did you mean {name}?"));
        return Err(Refusal::Unknown(format!("there is no service {service}; {hint}")));
    }
    let rows = reports::backends(snapshot, &Filter::for_service(service));
    if !rows.iter().any(|row| backend.includes((row.address.addr, row.address.port))) {
        let hint = similar_backend(&rows, backend).unwrap_or_else(|| match rows.is_empty() {
            true => "it has no backends".into(),
            false => format!("it has {}", listed(named(&rows), SHOWN)),
        });
        return Err(Refusal::Unknown(format!("{service} has no backend {backend}; {hint}")));
    }
    let mut drains = all.get(service).cloned().unwrap_or_default();
    let is_new = drains.insert(backend, drain).is_none();
    let number: usize = all.values().map(Drains::len).sum();
    if is_new && number >= MAX_DRAINS {
        let text = format!("{MAX_DRAINS} backends are drained already: end other drains with `nodelb undrain`");
        return Err(Refusal::Refused(text));
    }
    if explain::drains::keeps_drained(snapshot, service, (backend, &drains)) {
        let text = format!(
            "{backend} cannot be drained, not even with --force: without it, {service} has no backend, and nodelb never \
             empties this service, because an apiserver is reached through it; drain {backend} when the service has another backend"
        );
        return Err(Refusal::Refused(text));
    }
    Ok(drains)
}

/// Why the addresses of a service that no source describes stay in use; `None` if there are none.
pub(super) fn why_kept(snapshot: &Snapshot, service: &ServiceName) -> Option<String> {
    let is_own = |id| snapshot.former_port(id).is_some_and(|port| port.service == *service);
    let (address, entry, _) = snapshot.kept().find(|(_, entry, _)| is_own(entry.service))?;
    Some(explain::kept::why_kept(snapshot, address, entry))
}

/// What else drains the backend, or some of its ports: nothing, or such as `; 192.0.2.11 is still drained by root until
/// nodelb undrain`.
pub(super) fn others(drains: &Drains, backend: Drained, still: &str) -> String {
    let others: Vec<String> =
        overlapping(drains, backend).map(|(other, drain)| format!("{other} is {still}{drain}")).collect();
    if others.is_empty() { String::new() } else { format!("; {}", listed(&others, SHOWN)) }
}

/// The backends that these rows name, each once.
fn named(rows: &[BackendReport]) -> BTreeSet<Drained> {
    rows.iter().map(|row| Drained { addr: row.address.addr, port: Some(row.address.port) }).collect()
}

/// The backend that the operator may have meant.
fn similar_backend(rows: &[BackendReport], wanted: Drained) -> Option<String> {
    let known = named(rows);
    let same: Vec<&Drained> = known.iter().filter(|backend| backend.addr == wanted.addr).collect();
    if !same.is_empty() {
        return Some(format!("did you mean {}?", listed(same, SHOWN)));
    }
    let names: Vec<String> = known.iter().map(ToString::to_string).collect();
    let name = nearest(names.iter().map(String::as_str), &wanted.to_string())?;
    Some(format!("did you mean {name}?"))
}

pub(super) fn without_drain(
    all: &All,
    (service, backend): (&ServiceName, Drained),
) -> Result<(Drains, Drain), Refusal> {
    let mut drains = all.get(service).cloned().unwrap_or_default();
    match drains.remove(&backend) {
        Some(drain) => Ok((drains, drain)),
        None if !drains.is_empty() => {
            let others = listed(drains.keys(), SHOWN);
            Err(Refusal::Unknown(format!("{backend} of {service} is not drained; drained: {others}")))
        }
        None => {
            let mut others = all.iter().filter(|(_, drains)| drains.contains_key(&backend)).map(|(name, _)| name);
            let hint = others.next().map(|name| format!("; it is drained for {name}")).unwrap_or_default();
            Err(Refusal::Unknown(format!("{backend} of {service} is not drained{hint}")))
        }
    }
}

#[cfg(test)]
#[path = "tests/request.rs"]
pub(in crate::drains) mod tests;
