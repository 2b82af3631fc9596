//! Snapshots, which are immutable views of the engine for readers. Taking or keeping a snapshot blocks no other task.
//! [`crate::explain`] builds rows from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::before::{Before, Lasting, Statuses};
use crate::claims::{Claim, Row, RowStatus};
use crate::compile::guard::BackendRefusal;
use crate::compile::select;
use crate::config::EngineConfig;
use crate::datapath::MapError;
use crate::degraded::{Degraded, DegradedPorts};
use crate::filter::Filter;
use crate::holds::{HeldPort, Holds};
use crate::model::addr::{Addr, Family, L4Addr};
use crate::model::drain;
use crate::model::moment::Moment;
use crate::model::service::{BackendState, PortKey, ServiceName, Source};
use crate::model::uplink::Uplink;
use crate::state::entries::{CANARIES, Desired, FrontendEntry, MapState, Realised, ServiceId};
use crate::state::owner::{IdOwner, OwnerTag, hash_of};
use crate::state::remembered::Remembered;
use crate::state::stale_generation::StaleGeneration;
use crate::state::status::Status;
use crate::table::{Described, Facts};

/// An immutable view of the whole state of the owner task. It is cheap to take and to keep.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub at: Moment,
    /// What the maps should contain.
    pub desired: Desired,
    /// What the maps contain according to the successful operations.
    pub realised: Realised,
    /// Whether every source had synced and the first full reconcile after that was complete.
    pub is_ready: bool,
    /// The counters that show whether sockets may have become stale.
    pub stale_generation: StaleGeneration,
    /// The desired state, except that NodePorts are answered only on those node addresses that the maps contain. This
    /// is the state that clients see.
    pub answering: Desired,
    /// Node addresses that the maps did not accept, each with the error.
    pub failed_node_addrs: OrdMap<Addr, MapError>,
    pub config: Arc<EngineConfig>,
    /// The facts of the node and of the sources.
    pub facts: Facts,
    /// The claims to each address, and their state.
    pub rows: OrdMap<L4Addr, Arc<Row>>,
    /// The service port of each id.
    pub owners: OrdMap<ServiceId, IdOwner>,
    pub(crate) holds: Holds,
    pub(crate) before: Before,
    /// The ports without a healthy backend.
    pub degraded: DegradedPorts,
    /// Sources that were used before the start and are not configured.
    pub absent: BTreeSet<Source>,
}

/// The services with rows of `/frontends` that may differ between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedServices {
    /// Every service, because something changed that all rows may depend on.
    All,
    /// Only these services.
    Services(BTreeSet<ServiceName>),
}

impl Snapshot {
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether the maps contain any frontend except the canaries.
    pub fn serves_anything(&self) -> bool {
        self.realised.frontends.len() > CANARIES.len()
    }

    /// Whether nodelb itself listens on the port of this NodePort.
    pub fn is_own_port(&self, nodeport: L4Addr) -> bool {
        self.config.guard.own_port(nodeport).is_some()
    }

    /// Whether nodelb serves this address, for clients on this node: as a frontend, or as a NodePort at an address of
    /// the node.
    pub fn is_frontend(&self, address: L4Addr) -> bool {
        let is_served = |address: &L4Addr| self.rows.get(address).is_some_and(|row| row.entry().is_some());
        is_served(&address) || is_served(&address.wildcard()) && self.facts.nodeport_addresses().contains(&address.addr)
    }

    /// The service port with this id, as `shop/web:http/TCP/IPv4`; `None` for an id without an owner.
    pub fn service_of(&self, id: ServiceId) -> Option<String> {
        if id == ServiceId::CANARY {
            return Some("canary".into());
        }
        self.owners.get(&id).map(|owner| owner.key.to_string())
    }

    /// Every service port with an id, in the order of the ids.
    pub fn ports(&self) -> impl Iterator<Item = (ServiceId, &Arc<PortKey>)> {
        self.owners.iter().map(|(id, owner)| (*id, &owner.key))
    }

    /// The service ports without a healthy backend, in the order of their ids, except those of [`Self::is_kept`].
    pub fn degraded(&self) -> impl Iterator<Item = (&Arc<PortKey>, &Arc<Degraded>)> {
        let degraded = self.degraded.iter().filter(|(id, _)| !self.is_kept(*id));
        degraded.filter_map(|(id, degraded)| Some((&self.owners.get(&id)?.key, degraded)))
    }

    /// The status of the claim at this position of the row.
    pub fn status_of(&self, row: &Row, place: usize, address: L4Addr) -> RowStatus {
        let mut status = row.status_of(place, address);
        let claim = &row.claims()[place];
        if place == 0 && self.still_serves(address, claim) {
            let why = status.error.unwrap_or_default();
            let text =
                format!("in use as before the start, until every source has reported everything; then not: {why}");
            (status.status, status.error) = (Status::Kept, Some(text.into()));
        }
        if status.status == Status::Kept {
            let since = self.before.since(address, Some(hash_of(&claim.key.service)), true);
            status.since = since.unwrap_or(status.since);
        }
        if status.status != Status::Ok {
            return status;
        }
        if let Some((worse, since)) = self.lack_of_backends(claim) {
            (status.status, status.since) = (worse, status.since.max(since));
            if worse == Status::NoBackends {
                status.error = self.source_problem(&claim.key.service).map(Arc::from);
            }
        } else if let Ok(id) = claim.target {
            status.since = status.since.max(self.degraded.recovered(id).unwrap_or_default());
        }
        status
    }

    /// Why the source of the service cannot tell its current backends, such as `DNS A record of web.example.com:
    /// 192.0.2.53:53 answers SERVFAIL`; `None` if it can.
    pub fn source_problem(&self, service: &ServiceName) -> Option<String> {
        let (_, slices) = self.facts.owner(service)?;
        slices.iter().find_map(|slice| Some(format!("{}: {}", slice.origin.object, slice.problem.as_deref()?)))
    }

    /// Whether the port of this claim has no healthy backend, on this node or elsewhere.
    pub fn is_degraded(&self, claim: &Claim) -> bool {
        claim.target.as_ref().is_ok_and(|id| self.degraded.get(*id).is_some())
    }

    /// [`Status::NoBackends`] or [`Status::LastResort`] if the port of this claim has no healthy backend for clients on
    /// this node, and since when this is so.
    pub fn lack_of_backends(&self, claim: &Claim) -> Option<(Status, Moment)> {
        let id = claim.target.as_ref().ok()?;
        if let Some(degraded) = self.degraded.get(*id) {
            return Some((degraded.status, degraded.since));
        }
        let is_empty = claim.inside_local && self.desired.services.get(id)?.local.is_empty();
        is_empty.then_some((Status::NoBackends, Moment::default()))
    }

    /// Whether new connections of clients on this node to an address of the service are refused, because the maps contain
    /// no backend for it.
    pub fn refuses_at(&self, name: &ServiceName) -> bool {
        self.addresses_of(name).into_iter().any(|address| self.realised.refuses(address))
    }

    /// Whether new connections of clients on this node to the address reach a backend of the claim's service, although the
    /// claim is refused: what the maps contain from before the start stays until every source has reported everything.
    pub fn still_serves(&self, address: L4Addr, claim: &Claim) -> bool {
        let is_doubtful = claim.target.is_err() && !self.is_complete();
        let actual = self.realised.frontends.get(&address).filter(|_| is_doubtful);
        actual.is_some_and(|actual| {
            let tag = self.realised.services.get(&actual.service).and_then(|entry| entry.tag);
            let is_own = tag.is_some_and(|tag| tag.is_same_service(OwnerTag::new(&claim.key, claim.source)));
            is_own && self.realised.reaches_backends(address, actual.service)
        })
    }

    /// The addresses that the maps contain from before the start and that no service claims now, because a source is no
    /// longer configured or has not reported everything yet: [`Status::Kept`], or [`Status::NoBackends`] if they had none;
    /// and since when this is so.
    pub fn kept(&self) -> impl Iterator<Item = (L4Addr, &FrontendEntry, Lasting)> {
        let is_claimed = |address: &L4Addr| {
            let first = self.rows.get(address).and_then(|row| row.claims().first());
            first.is_some_and(|claim| claim.target.is_ok() || self.still_serves(*address, claim))
        };
        // Without any, nothing is searched.
        let is_any = !self.absent.is_empty() || !self.is_complete();
        let of_others = is_any.then(|| self.realised.frontends.iter()).into_iter().flatten();
        let kept = of_others.filter(move |(address, entry)| entry.service != ServiceId::CANARY && !is_claimed(address));
        kept.map(|(address, entry)| {
            let is_usable = self.realised.reaches_backends(*address, entry.service);
            let status = if is_usable { Status::Kept } else { Status::NoBackends };
            let tag = self.realised.services.get(&entry.service).and_then(|entry| entry.tag);
            let since = self.before.since(*address, tag.map(|tag| tag.service), is_usable);
            (*address, entry, Lasting { status, since: since.unwrap_or(self.before.start) })
        })
    }

    /// The statuses for the next run, which passes them to [`Engine::recall`](crate::engine::Engine::recall). Those that
    /// this run does not know yet are as the previous run had them.
    pub fn statuses(&self) -> Statuses {
        let mut statuses = Statuses::new();
        for (address, row) in &self.rows {
            // The first claim of a service decides.
            for (place, claim) in row.claims().iter().enumerate().rev() {
                let RowStatus { status, since, .. } = self.status_of(row, place, *address);
                if !matches!(status, Status::Kept | Status::Pending) {
                    statuses.insert((*address, hash_of(&claim.key.service)), Lasting { status, since });
                }
            }
        }
        statuses.extend(self.before.iter().map(|(key, before)| (*key, *before)));
        statuses
    }

    /// Why the maps still contain what a source asked for before the start, such as `until nodelb has read everything from
    /// kubernetes`.
    pub fn why_kept(&self, entry: &FrontendEntry) -> String {
        let tag = self.realised.services.get(&entry.service).and_then(|service| service.tag);
        let Some(source) = tag.map(|tag| tag.source) else {
            return "until nodelb has read everything from its source".into();
        };
        if self.absent.contains(&source) {
            return format!("because {source} is no longer configured");
        }
        let why = self.facts.incomplete(source).map(|why| format!(": {why}")).unwrap_or_default();
        format!("until nodelb has read everything from {source}{why}")
    }

    /// Whether the port has backends in the maps that its source no longer has, because the source has not reported
    /// everything yet.
    pub fn is_kept(&self, id: ServiceId) -> bool {
        let has_backends = |state: &MapState| state.services.get(&id).is_some_and(|entry| entry.has_backends);
        !self.is_complete() && has_backends(&self.realised) && !has_backends(&self.desired)
    }

    /// The service ports with backends that are held although their source emptied them, by id.
    pub fn held(&self) -> impl Iterator<Item = &Arc<HeldPort>> {
        self.holds.all_announced()
    }

    /// The records to preserve over a reboot: the backends of every port of a protected service, held or not, and the
    /// records of an earlier run for ports that no source has reported yet. The order is unspecified, but it is the
    /// same for the same content and ids. The next engine receives them as [`crate::change::Change::Remember`].
    pub fn remembered(&self) -> Vec<Remembered> {
        self.holds.remembered(&self.owners, &self.desired)
    }

    /// The service ports without a backend that new connections can reach, on this node or elsewhere, in the order of
    /// their ids.
    pub fn empty_ports(&self) -> impl Iterator<Item = &Arc<PortKey>> {
        let empty = self.desired.services.iter().filter(|(_, entry)| !entry.has_backends);
        empty.filter_map(|(id, _)| Some(&self.owners.get(id)?.key))
    }

    /// The addresses that the service claims, according to the description that takes precedence.
    pub fn addresses_of(&self, name: &ServiceName) -> BTreeSet<L4Addr> {
        let ports = self.facts.owner(name).into_iter().flat_map(|(service, _)| &service.ports);
        ports.flat_map(|port| port.frontends.iter().map(|frontend| frontend.l4(port.protocol))).collect()
    }

    /// The descriptions of each service in a report, in the order of their names.
    pub fn described<'a>(&'a self, filter: &'a Filter) -> Box<dyn Iterator<Item = Described<'a>> + 'a> {
        match &filter.service {
            Some(name) => Box::new(self.facts.description(name).into_iter()),
            None => Box::new(self.facts.described().filter(|(of, _)| filter.accepts(&of[0].name))),
        }
    }

    /// Whether NodePorts of the family are to be answered on any address.
    pub fn answers_nodeports(&self, family: Family) -> bool {
        self.desired.node_addrs.iter().any(|addr| addr.family() == family)
    }

    /// Whether nodelb makes the health checks that services of the source request.
    pub fn is_checked(&self, source: Source) -> bool {
        !self.config.unchecked_sources.contains(&source)
    }

    /// Whether nodelb may use the backend of a service of this source.
    ///
    /// # Errors
    /// If it may not, the reason.
    pub fn check(&self, backend: L4Addr, source: Source) -> Result<(), BackendRefusal> {
        self.config.guard.check_backend(backend, source, self.facts.apiservers())
    }

    /// The node addresses that do not answer NodePorts because the maps did not accept them, each with the error.
    pub fn unanswered_node_addrs(&self) -> impl Iterator<Item = (Addr, &MapError)> {
        let failed = self.failed_node_addrs.iter().map(|(addr, error)| (*addr, error));
        failed.filter(|(addr, _)| self.desired.node_addrs.contains(addr))
    }

    /// The number of service ports in the maps that no source describes, and that the source described earlier, or may
    /// have.
    pub fn unowned(&self, source: Source) -> usize {
        let entries = self.realised.services.iter().filter(|(id, _)| **id != ServiceId::CANARY);
        let unowned = entries.filter(|(id, _)| !self.owners.contains_key(*id));
        unowned.filter(|(_, entry)| entry.tag.is_none_or(|tag| tag.source == source)).count()
    }

    pub fn sources(&self) -> impl Iterator<Item = Source> {
        self.config.sources.iter().copied()
    }

    /// The names of the uplinks that the maps should contain and do not.
    pub fn unaccepted_uplinks(&self) -> impl Iterator<Item = &str> {
        let missing = |uplink: &&Uplink| {
            self.desired.uplinks.contains_key(&uplink.ifindex) && !self.realised.uplinks.contains_key(&uplink.ifindex)
        };
        self.facts.uplinks.iter().filter(missing).map(|uplink| &*uplink.name)
    }

    /// Whether every source has reported everything. Until then, a missing object does not count as removed.
    pub fn is_complete(&self) -> bool {
        let is_source_synced =
            |source: &Source| self.facts.is_synced(*source) && self.facts.incomplete(*source).is_none();
        self.config.sources.iter().all(is_source_synced)
    }

    /// The number of addresses on this node that can serve the service: those of its ready backends of the family, each
    /// counted once regardless of its ports (kube-proxy's `LocalReadyEndpoints`). Terminating backends do not count
    /// even while they are used, so that load balancers redirect traffic in time. Backends that are drained or that
    /// nodelb refuses to use do not count either.
    pub fn local_ready(&self, name: &ServiceName, family: Family) -> usize {
        let Some((service, slices)) = self.facts.owner(name) else { return 0 };
        let (node, drains) = (&*self.facts.node().name, self.facts.drains(name));
        let mut found: BTreeSet<Addr> = BTreeSet::new();
        for port in &service.ports {
            let offered = slices.iter().flat_map(|slice| &slice.ports);
            let of_port = offered.filter(|offered| offered.protocol == port.protocol && offered.name == port.name);
            let ready = of_port.flat_map(|offered| &offered.backends).filter(|backend| {
                backend.addr.family() == family
                    && backend.node.as_deref() == Some(node)
                    && select::effective_state(backend) == BackendState::Active
                    && drains.is_none_or(|drains| drain::find(drains, (backend.addr, backend.port)).is_none())
                    && self.check(L4Addr::new(backend.addr, backend.port, port.protocol), service.source).is_ok()
            });
            found.extend(ready.map(|backend| backend.addr));
        }
        found.len()
    }

    /// The services with rows that may differ from those in `before`. May include services with unchanged rows, but
    /// never omits one with changed rows.
    pub fn changed_services_since(&self, before: &Self) -> ChangedServices {
        let is_everybodys = !Arc::ptr_eq(&self.config, &before.config)
            || self.desired.node_addrs != before.desired.node_addrs
            || self.facts.differs_for_all(&before.facts);
        if is_everybodys {
            return ChangedServices::All;
        }
        let mut named = BTreeSet::new();
        for item in before.rows.diff(&self.rows) {
            let rows = sides(&item).into_iter().flatten();
            named.extend(rows.flat_map(|row| row.claims()).map(|claim| claim.key.service.clone()));
        }
        for item in before.desired.services.diff(&self.desired.services) {
            let (DiffItem::Add(id, _) | DiffItem::Remove(id, _) | DiffItem::Update { new: (id, _), .. }) = item;
            let owners = [before.owners.get(id), self.owners.get(id)].into_iter().flatten();
            named.extend(owners.map(|owner| owner.key.service.clone()));
        }
        named.extend(self.facts.names_that_differ(&before.facts));
        ChangedServices::Services(named)
    }
}

fn sides<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> [Option<&'a V>; 2] {
    match item {
        DiffItem::Add(_, new) => [None, Some(*new)],
        DiffItem::Remove(_, old) => [Some(*old), None],
        DiffItem::Update { old: (_, old), new: (_, new) } => [Some(*old), Some(*new)],
    }
}
