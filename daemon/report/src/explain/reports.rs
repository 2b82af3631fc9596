//! The rows that readers see, built from a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::explain::kept::{is_as_before, unowned};
use crate::explain::rows::{BackendReport, FrontendReport, OutsideAccess};
use crate::explain::{actual, outside};
use crate::filter::Filter;
use crate::time::Time;
use nodelb_core::claims::{Claim, Precedence, Row};
use nodelb_core::compile;
use nodelb_core::compile::outside::PacketsConfig;
use nodelb_core::compile::select::{self, Candidate, Checks, Choice};
use nodelb_core::history::{History, Record, What};
use nodelb_core::model::addr::{Family, L4Addr};
use nodelb_core::model::drain::{self, Drain};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::health_check::all_failed;
use nodelb_core::model::service::{BackendState, FrontendKind, PortKey, Service, ServiceName, Slice, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::state::entries::{FrontendEntry, ServiceEntry, Slot, backends_of};
use nodelb_core::state::status::Status;
use nodelb_core::table::Described;
use nodelb_core::text::counted;

/// Whether nodelb makes the health checks that services of the source request.
pub(crate) fn makes_checks(snapshot: &Snapshot, source: Source) -> bool {
    !snapshot.config.unchecked_sources.contains(&source)
}

/// Whether NodePorts of the family are to be answered on any address.
pub(super) fn answers_nodeports(snapshot: &Snapshot, family: Family) -> bool {
    snapshot.desired.node_addrs.iter().any(|addr| addr.family() == family)
}

/// The rows of `/frontends`, by address, then in order of precedence.
pub fn frontends(snapshot: &Snapshot, filter: &Filter) -> Vec<FrontendReport> {
    each_frontend(snapshot, filter).collect()
}

/// [`frontends`], each computed when it is needed.
pub fn each_frontend<'a>(snapshot: &'a Snapshot, filter: &'a Filter) -> impl Iterator<Item = FrontendReport> + 'a {
    let rows: Box<dyn Iterator<Item = (L4Addr, &'a Arc<Row>)> + 'a> = match (&filter.service, filter.address) {
        (Some(service), addr) => {
            let addresses = snapshot.addresses_of(service).into_iter();
            let meant = addresses.filter(move |address| addr.is_none_or(|addr| address.addr == addr));
            Box::new(meant.filter_map(|address| Some((address, snapshot.rows.get(&address)?))))
        }
        (None, Some(addr)) => Box::new(snapshot.rows.range(L4Addr::all_at(addr)).map(|(address, row)| (*address, row))),
        (None, None) => Box::new(snapshot.rows.iter().map(|(address, row)| (*address, row))),
    };
    rows.flat_map(move |(address, row)| {
        let is_meant = move |(place, claim): &(usize, &Claim)| {
            filter.accepts(&claim.key.service)
                && filter.kind.is_none_or(|kind| claim.kind == kind)
                && filter.status.is_none_or(|status| snapshot.status_of(row, *place, address).status == status)
        };
        let meant = row.claims().iter().enumerate().filter(is_meant);
        meant.map(move |(place, claim)| frontend(snapshot, address, row, place, claim))
    })
}

fn frontend(snapshot: &Snapshot, address: L4Addr, row: &Row, place: usize, claim: &Claim) -> FrontendReport {
    let status = snapshot.status_of(row, place, address);
    let is_kept = is_as_before(snapshot, (row, place), address);
    let is_owner = place == 0 && !snapshot.stays_with_another(row, address);
    let wanted = claim.target.as_ref().ok().copied();
    let actual = snapshot.realised.frontends.get(&address).filter(|_| is_owner || is_kept);
    let actual = actual.filter(|actual| is_kept || Some(actual.service) == wanted);
    let actual = actual.and_then(|it| Some((it, snapshot.realised.services.get(&it.service)?)));
    let is_local = |it: &FrontendEntry| it.inside_local && !claim.is_other_family;
    let backends = actual.map(|(it, entry)| distinct(entry.view(is_local(it)))).unwrap_or_default();
    let described = || wanted.and_then(|id| snapshot.desired.services.get(&id));
    let entry = actual.map(|(_, entry)| entry).or_else(described);
    let outside = outside::access(snapshot, row, place, address);
    let forward = outside::forward(entry.map(|entry| &**entry), address, outside);
    let checks = checks(snapshot, &claim.key.service);
    let failed = checks.and_then(|checks| checks.failed);
    let flag = |name: &str, is_set: bool| is_set.then(|| name.to_owned());
    let flags = [
        entry.and_then(|entry| affinity_flag(entry)),
        drained_flag(snapshot, &claim.key),
        flag("ExternalLocal", claim.outside_local && claim.kind.is_external()),
        forward_flag(forward),
        flag("HealthCheck", checks.is_some()),
        flag("LastResort", failed.is_some_and(|failed| all_failed(backends.iter().copied(), failed))),
        flag("Local", claim.inside_local),
        source_ranges(snapshot, claim).map(|count| format!("SourceRanges={count}")),
    ];
    let is_empty = is_owner && entry.is_some_and(|entry| entry.cluster.is_empty());
    let unused = || is_empty.then(|| unused_text_of(snapshot, &claim.key)).flatten();
    let bound = || snapshot.facts.bound.get(&address).filter(|_| is_owner).map(ToString::to_string);
    FrontendReport {
        address,
        kind: claim.kind,
        service: claim.key.service.clone(),
        port: Arc::clone(&claim.key.port),
        backends,
        flags: flags.into_iter().flatten().collect(),
        outside,
        status: status.status,
        since: status.since,
        error: status
            .error
            .map(|error| error.to_string())
            .or_else(bound)
            .or_else(unused)
            .or_else(|| unanswered(snapshot, claim, status.status))
            .or_else(|| undirected(snapshot, claim, address, (forward, outside)))
            .or_else(|| claim.is_other_family.then(|| ONLY_OUTSIDE.into())),
    }
}

/// Why clients on the node get no backend at an IPv4 address with IPv6 backends.
const ONLY_OUTSIDE: &str = "only for clients outside the node: IPv4 packets reach IPv6 backends in tunnels";

pub(crate) fn affinity_flag(entry: &ServiceEntry) -> Option<String> {
    (entry.affinity_seconds > 0).then(|| format!("Affinity={}s", entry.affinity_seconds))
}

pub(crate) fn forward_flag(forward: Forward) -> Option<String> {
    (forward != Forward::Translate).then(|| format!("Forward={forward}"))
}

/// The number of drained backends of the port, as a flag; `None` if there are none.
fn drained_flag(snapshot: &Snapshot, key: &PortKey) -> Option<String> {
    snapshot.facts.drains(&key.service)?;
    let rows = port_backends(snapshot, snapshot.facts.owner(&key.service)?.1, key);
    let count = drained(&rows).count();
    (count > 0).then(|| format!("Drained={count}"))
}

/// The number of networks that outside clients may connect from; `None` if the claim's service does not restrict them.
fn source_ranges(snapshot: &Snapshot, claim: &Claim) -> Option<usize> {
    if claim.kind != FrontendKind::LoadBalancer {
        return None;
    }
    let (service, _) = snapshot.facts.owner(&claim.key.service)?;
    service.source_ranges.as_ref().map(Vec::len)
}

/// Why a correctly written NodePort does not reach all clients, or any.
fn unanswered(snapshot: &Snapshot, claim: &Claim, status: Status) -> Option<String> {
    let family = claim.key.family;
    if claim.kind != FrontendKind::NodePort || !status.is_in_maps() {
        return None;
    }
    if !answers_nodeports(snapshot, family) {
        let text = format!("not answered: node.nodeport-addresses selects no {family} address of the node");
        return Some(text);
    }
    let mut failed = snapshot.unanswered_node_addrs().filter(|(addr, _)| addr.family() == family);
    let (first, error) = failed.next()?;
    let more = failed.count();
    let more = if more > 0 { format!(" and {more} more of the node's addresses") } else { String::new() };
    Some(format!("not answered on {first}{more}: {error}"))
}

/// Why packets are translated although the service asks for direct return.
fn undirected(
    snapshot: &Snapshot,
    claim: &Claim,
    address: L4Addr,
    (forward, access): (Forward, OutsideAccess),
) -> Option<String> {
    let (service, _) = snapshot.facts.owner(&claim.key.service)?;
    if service.forward == Forward::Translate || forward != Forward::Translate || !outside::may_forward(address, access)
    {
        return None;
    }
    if !snapshot.config.packets.direct_return {
        let asked = service.forward;
        return Some(format!("translated, not {asked}: set packets.direct-return to true, and restart nodelb"));
    }
    (service.forward == Forward::Direct).then(|| {
        format!(
            "translated, because direct does not change ports and a backend has another one than {}: use the same port, \
             or tunnel",
            address.port
        )
    })
}

/// Why a port without backends has none; `None` if the reason is not that nodelb refuses those in its slices or that
/// they failed their checks.
fn unused_text_of(snapshot: &Snapshot, key: &PortKey) -> Option<String> {
    let (_, slices) = snapshot.facts.owner(&key.service)?;
    text_of_unused(&port_backends(snapshot, slices, key))
}

/// The backends of the service that nodelb refuses to use or found unhealthy, as text; `None` if there are none.
pub(crate) fn unused_text(snapshot: &Snapshot, name: &ServiceName) -> Option<String> {
    text_of_unused(&backends(snapshot, &Filter::for_service(name)))
}

/// The descriptions of each service in a report, in the order of their names.
pub(crate) fn described<'a>(
    snapshot: &'a Snapshot,
    filter: &'a Filter,
) -> Box<dyn Iterator<Item = Described<'a>> + 'a> {
    match &filter.service {
        Some(name) => Box::new(snapshot.facts.description(name).into_iter()),
        None => Box::new(snapshot.facts.described().filter(|(of, _)| filter.accepts(&of[0].name))),
    }
}

/// The results of the service's own health checks; `None` if it has no checks.
fn checks<'a>(snapshot: &'a Snapshot, name: &ServiceName) -> Option<Checks<'a>> {
    checks_of(snapshot, snapshot.facts.checked.get(name)?)
}

/// [`checks`] of this description.
pub(super) fn checks_of<'a>(snapshot: &'a Snapshot, service: &Service) -> Option<Checks<'a>> {
    let is_checked = service.health_check.is_some() && makes_checks(snapshot, service.source);
    is_checked.then(|| Checks::new(service, snapshot.facts.quarantine(&service.name)))
}

/// The first start after the source reported anything for the last time, as far as the history tells.
fn missing_since(history: &History, source: Source) -> Option<Time> {
    let is_of_source = |record: &&Arc<Record>| record.event.source == Some(source);
    let later = history.latest_first().take_while(|record| !is_of_source(record));
    later.filter(|record| record.event.what == What::Started).last().map(|record| Time(record.at))
}

/// A row of `/sources` for each source of an earlier run that is not configured, as long as something of it is kept.
pub fn absent_sources<'a>(
    snapshot: &'a Snapshot,
    history: &'a History,
    started: Time,
) -> impl Iterator<Item = SourceReport> + 'a {
    snapshot.absent.iter().filter_map(move |source| {
        // The stored state describes these.
        let ports: Vec<_> = snapshot.owners.values().filter(|owner| owner.source == *source).collect();
        let services: BTreeSet<&ServiceName> = ports.iter().map(|owner| &owner.key.service).collect();
        let kept = ports.len() + unowned(snapshot, *source);
        let problem = format!(
            "no longer configured: {} kept as last known; configure [{source}] again, or set {source}.enabled to false \
             to remove them, then restart nodelb",
            counted(kept, "service port")
        );
        (kept > 0).then(|| SourceReport {
            source: *source,
            path: format!("[{source}]"),
            kind: None,
            state: SourceState::LastGood,
            services: services.len(),
            slices: 0,
            content: None,
            notices: Vec::new(),
            problems: vec![problem],
            since: missing_since(history, *source).unwrap_or(started).seconds(),
            last_received: None,
        })
    })
}

/// The description of a service that takes precedence, and its slices.
pub(crate) type Used<'a> = (&'a Arc<Service>, &'a [Arc<Slice>]);

/// Why this description of a service is not used; `None` if it is.
pub(crate) fn shadowed(snapshot: &Snapshot, service: &Arc<Service>) -> Option<String> {
    let (owner, _) = snapshot.facts.owner(&service.name).filter(|(owner, _)| !Arc::ptr_eq(owner, service))?;
    let why = match Precedence::between((owner.source, owner.created), (service.source, service.created)) {
        Precedence::LocalFile => "a local file takes precedence over Kubernetes",
        Precedence::Older => "its description is older",
        Precedence::Equal => "both are equally old",
    };
    Some(format!("source {} describes {} too, and {why}: remove one of the two", owner.source, owner.name))
}

/// The rows of `/backends`, by service, port and address.
pub fn backends(snapshot: &Snapshot, filter: &Filter) -> Vec<BackendReport> {
    each_backend(snapshot, filter).collect()
}

/// [`backends`], those of each service computed when they are needed.
pub fn each_backend<'a>(snapshot: &'a Snapshot, filter: &'a Filter) -> impl Iterator<Item = BackendReport> + 'a {
    let used = described(snapshot, filter).map(|(descriptions, slices)| (&descriptions[0], slices));
    let reports = used.flat_map(|used| backends_of_service(snapshot, used));
    reports.filter(|report| filter.address.is_none_or(|addr| report.address.addr == addr))
}

pub(crate) fn backends_of_service(snapshot: &Snapshot, (service, slices): Used<'_>) -> Vec<BackendReport> {
    port_keys(service, slices, snapshot.config.packets)
        .iter()
        .flat_map(|key| port_backends(snapshot, slices, key))
        .collect()
}

/// What the reason of a drained backend says if the service uses it.
const DESPITE_DRAIN: &str =
    "; in use nevertheless: an apiserver is reached through the service, and it has no other backend";

/// The rows of a service port, by address.
pub(super) fn port_backends(snapshot: &Snapshot, slices: &[Arc<Slice>], key: &PortKey) -> Vec<BackendReport> {
    let (mut admitted, refused, checks) = candidates(snapshot, slices, key);
    let is_despite_drains = snapshot.uses_drained(key);
    let drains: Vec<Option<&Drain>> = admitted.iter().map(|candidate| candidate.drain).collect();
    if is_despite_drains {
        admitted.iter_mut().for_each(|candidate| candidate.drain = None);
    }
    let last_resort = checks.last_resort || is_despite_drains || snapshot.uses_failed(key);
    let choices = select::explain(&admitted, snapshot.facts.node(), last_resort);
    let despite = if is_despite_drains { DESPITE_DRAIN } else { "" };
    let failure = |candidate: &Candidate<'_>, drain: Option<&Drain>| {
        let drain = drain.map(|drain| format!("{drain}{despite}"));
        drain.or_else(|| candidate.failure.map(ToString::to_string))
    };
    let admitted = admitted.into_iter().zip(choices).zip(drains);
    let admitted = admitted.map(|((c, choice), drain)| (c, choice, drain.is_some(), failure(&c, drain)));
    let refused = refused.into_iter().map(|(c, refusal)| (c, Choice::Refused, false, Some(refusal)));
    let report = |(candidate, choice, is_drained, reason): (Candidate<'_>, Choice, bool, Option<String>)| {
        let backend = candidate.backend;
        BackendReport {
            address: L4Addr::new(backend.addr, backend.port, key.protocol),
            service: key.service.clone(),
            port: Arc::clone(&key.port),
            state: candidate.state(),
            weight: backend.weight,
            node: backend.node.clone().unwrap_or_default(),
            zone: backend.zone.clone().unwrap_or_default(),
            choice,
            is_drained,
            origin: Arc::clone(&candidate.slice.origin.object),
            reason,
        }
    };
    let mut rows: Vec<BackendReport> = admitted.chain(refused).map(report).collect();
    add_held(snapshot, key, &mut rows);
    actual::correct(snapshot, key, &mut rows);
    rows.sort_by_key(|row| row.address);
    rows
}

/// The backends of the port that nodelb may use, with the results of their checks and with drains; the others, each with
/// the reason; and the checks.
pub(super) fn candidates<'a>(snapshot: &'a Snapshot, slices: &'a [Arc<Slice>], key: &PortKey) -> Candidates<'a> {
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    for candidate in select::merge(slices.iter(), &key.port, key.protocol, key.family) {
        match snapshot.check(candidate.address(key.protocol), candidate.slice.source) {
            Ok(()) => admitted.push(candidate),
            Err(refusal) => refused.push((candidate, refusal.to_string())),
        }
    }
    let checks = checks(snapshot, &key.service).unwrap_or_default();
    checks.mark(&mut admitted);
    select::mark_drained(&mut admitted, snapshot.facts.drains(&key.service));
    (admitted, refused, checks)
}

type Candidates<'a> = (Vec<Candidate<'a>>, Vec<(Candidate<'a>, String)>, Checks<'a>);

/// Marks the held backends among the port's rows, and adds rows for held backends that no slice contains any more.
fn add_held(snapshot: &Snapshot, key: &PortKey, reports: &mut Vec<BackendReport>) {
    let Some(port) = snapshot.held().find(|port| *port.key == *key) else { return };
    let drains = snapshot.facts.drains(&key.service);
    let used: BTreeSet<L4Addr> = port.backends.iter().copied().collect();
    let known: BTreeMap<L4Addr, usize> = (0..).zip(&*reports).map(|(place, report)| (report.address, place)).collect();
    for address in port.all() {
        let is_used = used.contains(&address);
        let drain = drains.and_then(|drains| drain::find(drains, (address.addr, address.port)));
        match known.get(&address) {
            Some(place) if is_used => reports[*place].choice = Choice::Held,
            Some(_) => {}
            None => {
                let origin = Arc::clone(&port.cause.origin.object);
                let reason = drain.map(|drain| format!("{drain}{}", if is_used { DESPITE_DRAIN } else { "" }));
                let row =
                    BackendReport { origin, reason, is_drained: drain.is_some(), ..actual::held_backend(key, address) };
                let out =
                    BackendReport { state: BackendState::Maintenance, choice: Choice::Maintenance, ..row.clone() };
                reports.push(if is_used { row } else { out });
            }
        }
    }
}

/// Formats as `2 backends refused: 127.0.0.1:8080/TCP is a loopback address: ...`, or similarly for backends that
/// failed their checks; `None` if there are neither.
pub(crate) fn text_of_unused(rows: &[BackendReport]) -> Option<String> {
    let refused = rows.iter().filter(|row| row.choice == Choice::Refused);
    let failed = rows.iter().filter(|row| row.state == BackendState::Quarantined);
    first_of(refused, ["refused", "refused"], " is")
        .or_else(|| first_of(failed, ["failed its health checks", "failed their health checks"], ":"))
        .or_else(|| first_of(drained(rows), ["not used", "not used"], " is"))
}

/// The backends that an operator drains.
pub(crate) fn drained(rows: &[BackendReport]) -> impl Iterator<Item = &BackendReport> + Clone {
    rows.iter().filter(|row| row.state == BackendState::Maintenance && row.is_drained)
}

/// The number of rows and the first of them; `None` if there is none.
fn first_of<'r>(rows: impl Iterator<Item = &'r BackendReport>, what: [&str; 2], link: &str) -> Option<String> {
    let mut rows = rows.filter_map(|row| Some((row.address, row.reason.as_ref()?)));
    let (address, reason) = rows.next()?;
    let [one, several] = what;
    Some(match rows.count() {
        0 => format!("1 backend {one}: {address}{link} {reason}"),
        more => format!("{} backends {several}: {address}{link} {reason} (and {more} more)", more + 1),
    })
}

/// The service's ports by family, as the compiler creates them.
pub(crate) fn port_keys(service: &Service, slices: &[Arc<Slice>], packets: PacketsConfig) -> BTreeSet<PortKey> {
    let mut keys = BTreeSet::new();
    for port in &service.ports {
        let families: BTreeSet<Family> = port.frontends.iter().map(|frontend| frontend.addr.family()).collect();
        keys.extend(families.into_iter().map(|family| compile::key(service, slices, (port, family), packets)));
    }
    keys
}

/// The service port's name without that of the service, such as `http/TCP/IPv4`.
pub(crate) fn port_text(key: &PortKey) -> String {
    let separator = if key.port.is_empty() { "" } else { "/" };
    format!("{}{separator}{}/{}", key.port, key.protocol, key.family)
}

/// The backends in these slots, each once.
pub(crate) fn distinct(slots: &[Slot]) -> Vec<L4Addr> {
    let mut backends = Vec::with_capacity(slots.len());
    backends.extend(backends_of(slots).map(|(addr, _)| addr));
    backends
}
