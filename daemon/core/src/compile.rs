//! Compiles one service and its slices into the content that the maps should have for it, before ids are assigned.
//! Pure: the result depends only on the arguments, so after a change of one slice it is enough to compile its service
//! again.

use std::sync::Arc;

use imbl::OrdSet;
use smallvec::SmallVec;

use crate::model::addr::{Addr, Family};
use crate::model::drain::Drains;
use crate::model::forward::Forward;
use crate::model::node::NodeFacts;
use crate::model::service::{FrontendKind, FrontendSpec, PortKey, Service, ServicePort, Slice, TrafficPolicy};
use crate::state::entries::{MAX_VIEW_SLOTS, View};
use crate::table::apiservers::Apiservers;
use guard::Guard;
use outside::PacketsConfig;
use plan::{FrontendPlan, PortPlan};
use select::{Candidate, Candidates, Checks};
use weight::slot_counts;

pub mod guard;
pub mod outside;
pub mod plan;
pub mod select;
mod weight;

/// The inputs of a compilation other than the service and its slices.
#[derive(Clone, Copy, Debug)]
pub struct CompileContext<'a> {
    pub node: &'a NodeFacts,
    /// The addresses that answer NodePorts.
    pub node_addrs: &'a OrdSet<Addr>,
    pub guard: &'a Guard,
    pub apiservers: &'a Apiservers,
    pub checks: Checks<'a>,
    pub drains: Option<&'a Drains>,
    pub packets: PacketsConfig,
}

/// Compiles every port of the service, in the order of its description. Ports with the same name and protocol have the
/// same backends, so they are merged into one and share an entry in the maps.
pub fn compile(service: &Service, slices: &[Arc<Slice>], context: &CompileContext<'_>) -> Vec<PortPlan> {
    let mut plans = compile_ports(service, slices, context);
    let is_limited = context.drains.is_some() || context.checks.failed.is_some();
    if is_limited && plans.iter().any(|plan| !plan.has_backends) {
        let checks = Checks { last_resort: true, ..context.checks };
        let undrained = compile_ports(service, slices, &CompileContext { drains: None, checks, ..*context });
        for (plan, undrained) in plans.iter_mut().zip(undrained).filter(|(plan, _)| !plan.has_backends) {
            plan.undrained = undrained.has_backends.then(|| Box::new(undrained));
        }
    }
    plans
}

fn compile_ports(service: &Service, slices: &[Arc<Slice>], context: &CompileContext<'_>) -> Vec<PortPlan> {
    let mut described: SmallVec<[(usize, PortKey, Vec<FrontendPlan>); 2]> = SmallVec::new();
    for port in &service.ports {
        for family in [Family::Ipv4, Family::Ipv6] {
            let frontends = plan_frontends(service, (port, family), context);
            if !frontends.is_empty() {
                described.push((described.len(), key(service, slices, (port, family), context.packets), frontends));
            }
        }
    }
    described.sort_by(|(_, a, _), (_, b, _)| a.cmp(b));
    described.dedup_by(|(_, key, frontends), (_, before, all)| {
        let is_same = key == before;
        if is_same {
            all.append(frontends);
        }
        is_same
    });
    described.sort_by_key(|(place, ..)| *place);
    let mut plans: Vec<PortPlan> = Vec::with_capacity(described.len());
    for (_, key, frontends) in described {
        let (candidates, has_refused) = admitted(slices, &key, context);
        plans.push(plan_port(service, key, (&candidates, has_refused), context, frontends));
    }
    for plan in &mut plans {
        plan.may_be_bound = may_be_bound(plan, slices, context);
        if plan.is_loopback_only {
            plan.frontends.iter_mut().for_each(|frontend| frontend.is_outside = false);
        }
        restrict(service, plan);
        plan.forward = forward(context.packets.forward_of(service), plan);
        if plan.frontends.iter().any(|frontend| plan.key.is_other_family(frontend.address)) {
            plan.local.clear();
        }
    }
    plans
}

/// The key of the port's frontends of a family. IPv4 packets fit into tunnels to IPv6 addresses, so that IPv4 frontends
/// of a port without IPv4 backends share the IPv6 ones. The policy Local is about backends that need no tunnel.
pub fn key(
    service: &Service,
    slices: &[Arc<Slice>],
    (port, family): (&ServicePort, Family),
    packets: PacketsConfig,
) -> PortKey {
    let offered = || slices.iter().flat_map(|slice| slice.ports_of(&port.name, port.protocol));
    let lists = |family| {
        let mut backends = offered().flat_map(|it| &it.backends);
        backends.any(|backend| backend.addr.family() == family)
    };
    let is_wrapped = packets.forward_of(service) == Forward::Tunnel
        && [service.internal_policy, service.external_policy] == [TrafficPolicy::Cluster; 2]
        && port.frontends.iter().all(|frontend| frontend.kind == FrontendKind::Static)
        && !lists(Family::Ipv4)
        && lists(Family::Ipv6);
    let (service, name, protocol) = (service.name.clone(), Arc::clone(&port.name), port.protocol);
    PortKey { service, port: name, protocol, family: if is_wrapped { Family::Ipv6 } else { family } }
}

/// Computes [`PortPlan::may_be_bound`]. The state of an endpoint does not matter, because a process that restarts has
/// to bind its port before it is ready. Nor does the family, because an IPv6 socket accepts both.
fn may_be_bound(plan: &PortPlan, slices: &[Arc<Slice>], context: &CompileContext<'_>) -> bool {
    let nodeports = plan.frontends.iter().filter(|f| f.kind == FrontendKind::NodePort && f.refusal.is_none());
    let numbers: SmallVec<[u16; 2]> = nodeports.map(|frontend| frontend.address.port).collect();
    if numbers.is_empty() {
        return false;
    }
    let named = slices.iter().flat_map(|slice| slice.ports_of(&plan.key.port, plan.key.protocol));
    let is_here = |port: u16, addr: &Addr| numbers.contains(&port) && context.node.addresses.contains(addr);
    !context.node_addrs.iter().any(|addr| addr.family() == plan.key.family)
        || named.flat_map(|port| &port.backends).any(|backend| is_here(backend.port, &backend.addr))
}

/// `Direct` keeps the port, so it needs backends with that of the frontends. NodePorts are always translated.
fn forward(wanted: Forward, plan: &PortPlan) -> Forward {
    let mut outside = plan.frontends.iter().filter(|f| f.is_outside && f.kind != FrontendKind::NodePort);
    let has_port = |f: &FrontendPlan| plan.cluster.iter().all(|(backend, _)| backend.port == f.address.port);
    let is_possible = wanted != Forward::Direct || outside.all(has_port);
    if is_possible { wanted } else { Forward::Translate }
}

fn restrict(service: &Service, plan: &mut PortPlan) {
    let is_concerned = |frontend: &FrontendPlan| frontend.is_outside && outside::has_ranges(frontend.kind);
    if !plan.frontends.iter().any(is_concerned) {
        return;
    }
    plan.source_ranges = outside::source_ranges(service, plan.key.family);
    let has_ranges = plan.source_ranges.is_some();
    for frontend in plan.frontends.iter_mut().filter(|frontend| is_concerned(frontend)) {
        frontend.has_ranges = has_ranges;
    }
}

fn plan_frontends(
    service: &Service,
    (port, family): (&ServicePort, Family),
    context: &CompileContext<'_>,
) -> Vec<FrontendPlan> {
    let plan = |spec: &FrontendSpec| FrontendPlan {
        address: spec.l4(port.protocol),
        kind: spec.kind,
        inside_local: select::is_inside_local(service, spec.kind),
        outside_local: select::is_outside_local(service, spec.kind),
        is_outside: outside::is_outside(service, spec.kind, context.packets),
        has_ranges: false,
        refusal: context.guard.check_frontend(spec, port.protocol, context.node).err(),
    };
    port.frontends.iter().filter(|spec| spec.addr.family() == family).map(plan).collect()
}

/// The candidates of a port that may get connections, and whether the guard refuses another one.
fn admitted<'a>(slices: &'a [Arc<Slice>], key: &PortKey, context: &CompileContext<'a>) -> (Candidates<'a>, bool) {
    let CompileContext { guard, apiservers, checks, drains, .. } = context;
    let mut has_refused = false;
    let admits = |c: &Candidate<'_>| {
        let is_admitted = guard.admits_backend(c.address(key.protocol), c.slice.source, apiservers);
        has_refused |= !is_admitted;
        is_admitted
    };
    let mut candidates = select::merge_admitted(slices.iter(), &key.port, key.protocol, key.family, admits);
    checks.mark(&mut candidates);
    select::mark_drained(&mut candidates, *drains);
    (candidates, has_refused)
}

fn plan_port(
    service: &Service,
    key: PortKey,
    (candidates, has_refused): (&[Candidate<'_>], bool),
    context: &CompileContext<'_>,
    frontends: Vec<FrontendPlan>,
) -> PortPlan {
    let selection = select::select(candidates, context.node, context.checks.last_resort);
    let view = |places: &[usize]| -> View {
        let weights = places.iter().map(|&place| candidates[place].backend.weight);
        let addresses = places.iter().map(|&place| candidates[place].address(key.protocol));
        let mut others = weights.clone();
        if others.next().is_none_or(|weight| others.all(|other| other == weight)) {
            // The weights of most lists are equal: each backend has one slot.
            return addresses.take(MAX_VIEW_SLOTS).map(|address| (address, 1)).collect();
        }
        let counts = slot_counts(&weights.collect::<SmallVec<[u16; 8]>>());
        addresses.zip(counts).filter(|(_, count)| *count > 0).collect()
    };
    let (cluster, local) = (view(&selection.cluster), view(&selection.local));
    let select::Selection { has_backends, is_last_resort, is_local_last_resort, .. } = selection;
    PortPlan {
        cluster,
        local,
        has_backends,
        is_last_resort,
        is_local_last_resort,
        has_refused,
        is_loopback_only: !candidates.is_empty() && candidates.iter().all(|it| it.backend.addr.is_loopback()),
        affinity_seconds: service.affinity_seconds.unwrap_or(0),
        may_be_bound: false,
        source_ranges: None,
        forward: Forward::Translate,
        frontends,
        key,
        undrained: None,
    }
}

#[cfg(test)]
#[path = "tests/compile.rs"]
mod tests;
