//! What drains would do to a service: before they take effect.

use nodelb_core::compile::plan::PortPlan;
use nodelb_core::compile::select;
use nodelb_core::model::drain::{Drained, Drains};
use nodelb_core::model::service::{ServiceName, ServicePort};
use nodelb_core::snapshot::Snapshot;

use super::reports::{port_backends, port_text};
use super::rows::BackendReport;

pub struct Loss {
    /// The ports that would lose their last backend, or their last healthy one, each as `http/TCP/IPv4`, with ` on this
    /// node` if others remain for clients that may use any node.
    pub ports: Vec<String>,
    /// Whether any of these backends is healthy. Others are used only as a last resort.
    pub is_of_healthy: bool,
    /// All backends of the service as they would be.
    pub left: Vec<BackendReport>,
}

/// What the drains would take from the service; `None` if every list of every port keeps a healthy backend, or any if
/// it has no healthy one now, or has none now.
pub fn lost_by_drains(snapshot: &Snapshot, name: &ServiceName, drains: Drains) -> Option<Loss> {
    let (used, slices) = snapshot.facts.owner(name)?;
    let before = snapshot.plans_with(name, snapshot.facts.drains(name));
    let after = snapshot.plans_with(name, Some(&drains));
    let mut then = snapshot.clone();
    then.facts = snapshot.facts.with_drains(name, drains);
    let mut loss = Loss { ports: Vec::new(), is_of_healthy: false, left: Vec::new() };
    for (before, after) in before.iter().zip(&after) {
        let (key, before, after) = (&before.key, Supply::of(before), Supply::of(after));
        let has_lost = |view: fn(&Supply) -> [bool; 2]| {
            let [of_healthy, of_any] = [0, 1].map(|place| view(&before)[place] && !view(&after)[place]);
            (of_healthy || of_any).then_some(of_healthy)
        };
        let is_own = |port: &&ServicePort| (&port.name, port.protocol) == (&key.port, key.protocol);
        let is_local_used = used.ports.iter().filter(is_own).any(|port| {
            let mut kinds = port.frontends.iter().map(|frontend| frontend.kind);
            kinds.any(|kind| select::is_inside_local(used, kind) || select::is_outside_local(used, kind))
        });
        let of_cluster = has_lost(|supply| supply.cluster).map(|of_healthy| (of_healthy, ""));
        let of_local = || has_lost(|supply| supply.local).map(|of_healthy| (of_healthy, " on this node"));
        if let Some((of_healthy, place)) = of_cluster.or_else(|| of_local().filter(|_| is_local_used)) {
            loss.ports.push(format!("{}{place}", port_text(key)));
            loss.is_of_healthy |= of_healthy;
        }
        loss.left.extend(port_backends(&then, slices, key));
    }
    (!loss.ports.is_empty()).then_some(loss)
}

/// Which lists of a port have a healthy backend, and which have any. The first lists are for clients that may use any
/// node, the second ones for those that must stay on this node.
struct Supply {
    cluster: [bool; 2],
    local: [bool; 2],
}

impl Supply {
    fn of(plan: &PortPlan) -> Self {
        let lists = |is_any, is_last_resort: bool| [is_any && !is_last_resort, is_any];
        Self {
            cluster: lists(!plan.cluster.is_empty(), plan.is_last_resort),
            local: lists(!plan.local.is_empty(), plan.is_local_last_resort),
        }
    }
}

/// Whether the service would still use the drained backend, because a port would have no other one and nodelb never empties
/// it.
pub fn keeps_drained(snapshot: &Snapshot, name: &ServiceName, (backend, drains): (Drained, &Drains)) -> bool {
    let plans = snapshot.plans_with(name, Some(drains));
    let mut used = plans.iter().flat_map(|plan| &plan.cluster);
    used.any(|(at, _)| backend.includes((at.addr, at.port)))
}
