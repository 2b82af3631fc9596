//! What drains would do to a service: before they take effect.

use std::sync::Arc;

use nodelb_core::compile::select::{self, Candidate};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::drain::{Drained, Drains};
use nodelb_core::model::service::{BackendState, PortKey, ServiceName, ServicePort, Slice};
use nodelb_core::snapshot::Snapshot;

use super::reports::{candidates, port_backends, port_keys, port_text};
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
    let mut then = snapshot.clone();
    then.facts = snapshot.facts.with_drains(name, drains);
    let (used, slices) = snapshot.facts.owner(name)?;
    let mut loss = Loss { ports: Vec::new(), is_of_healthy: false, left: Vec::new() };
    for key in port_keys(used, slices) {
        let (before, after) = (supply(snapshot, slices, &key), supply(&then, slices, &key));
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
            loss.ports.push(format!("{}{place}", port_text(&key)));
            loss.is_of_healthy |= of_healthy;
        }
        loss.left.extend(port_backends(&then, slices, &key));
    }
    (!loss.ports.is_empty()).then_some(loss)
}

/// Which lists of a port have a healthy backend, and which have any. The first lists are for clients that may use any
/// node, the second ones for those that must stay on this node.
struct Supply {
    cluster: [bool; 2],
    local: [bool; 2],
}

fn supply(snapshot: &Snapshot, slices: &[Arc<Slice>], key: &PortKey) -> Supply {
    let (candidates, _, checks) = candidates(snapshot, slices, key);
    let node = snapshot.facts.node();
    let selection = select::select(&candidates, node, checks.last_resort);
    let is_healthy = |c: &&Candidate<'_>| matches!(c.state(), BackendState::Active | BackendState::Terminating);
    let is_here = |c: &Candidate<'_>| c.backend.node.as_deref() == Some(&*node.name);
    let healthy = || candidates.iter().filter(is_healthy);
    Supply {
        cluster: [healthy().next().is_some(), !selection.cluster.is_empty()],
        local: [healthy().any(is_here), !selection.local.is_empty()],
    }
}

/// Whether the service would still use the drained backend, because it would have no other one on some port and nodelb
/// keeps the last backends of that port.
pub fn keeps_drained(snapshot: &Snapshot, name: &ServiceName, (backend, drains): (Drained, Drains)) -> bool {
    let mut then = snapshot.clone();
    then.facts = snapshot.facts.with_drains(name, drains);
    let Some((used, slices)) = snapshot.facts.owner(name) else { return false };
    let apiservers = snapshot.facts.apiservers();
    let leads_to_apiserver = |key: &PortKey| {
        let id = snapshot.ports().find(|(_, port)| ***port == *key).map(|(id, _)| id);
        let entry = id.and_then(|id| snapshot.desired.services.get(&id));
        entry.is_some_and(|entry| entry.cluster.iter().any(|slot| apiservers.has(slot.addr)))
    };
    let keys = port_keys(used, slices);
    let is_protected = snapshot.facts.is_protected(used, slices) || keys.iter().any(leads_to_apiserver);
    keys.iter().any(|key| {
        let held = snapshot.held().find(|port| *port.key == *key);
        let is_held = |at: &L4Addr| backend.includes((at.addr, at.port));
        let is_meant = match held {
            Some(held) => held.backends.iter().any(is_held),
            None => candidates(snapshot, slices, key).0.iter().any(|it| is_held(&it.address(key.protocol))),
        };
        let has_any = |snapshot: &Snapshot| supply(snapshot, slices, key).cluster[1];
        is_meant && !has_any(&then) && (is_protected || held.is_some() && !has_any(snapshot))
    })
}
