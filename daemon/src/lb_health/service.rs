//! Whether this node has a backend of a service: one socket for each `healthCheckNodePort` and address of the node.
//! Owns the decision which sockets are wanted, and reports those that cannot be opened.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::model::service::{FullName, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::table::health_check_ports::{Claimants, HealthCheckPorts};
use nodelb_core::text::counted;
use nodelb_host::messages;
use tokio::time::sleep;
use tracing::{info, warn};

use super::answer::HealthAnswer;
use super::inputs::{LbHealth, View};
use super::listeners::{Listeners, Reply};
use crate::http::Slots;

/// The maximum number of services that get a separate journal line at a time.
const SHOWN: usize = 8;

/// The minimum time between two looks at the snapshots.
const PAUSE: Duration = Duration::from_millis(500);
/// `PAUSE` before nodelb is ready: load balancers ask as soon as it says so.
const PAUSE_AT_START: Duration = Duration::from_millis(20);

/// Follows the owner's snapshots until the owner has ended.
pub(super) async fn run(entry: LbHealth, slots: Arc<Slots>) {
    let view = entry.view;
    let mut servers = Servers {
        snapshot: view.snapshot.clone(),
        listeners: Listeners::new(slots, entry.bounds.listeners, entry.retry, entry.register).with_foreign(),
        seen: None,
        plan: Plan::default(),
        reported: BTreeMap::new(),
    };
    loop {
        servers.refresh();
        let Servers { listeners, plan, .. } = &mut servers;
        listeners
            .want(&plan.listeners, |at, name| reply(view.clone(), name.clone(), Addr::from(at.ip()).family()))
            .await;
        let changes = servers.changes();
        if !changes.is_empty() && entry.changes.send(changes).await.is_err() {
            return;
        }
        // The snapshots within this time are read once, however many there are.
        let is_ready = servers.snapshot.borrow().is_ready;
        sleep(if is_ready { PAUSE } else { PAUSE_AT_START }).await;
        tokio::select! {
            changed = servers.snapshot.changed() => if changed.is_err() { return },
            () = servers.listeners.retry_is_due() => {}
        }
    }
}

struct Servers {
    snapshot: tokio::sync::watch::Receiver<Arc<Snapshot>>,
    listeners: Listeners<ServiceName>,
    /// The inputs of the current plan.
    seen: Option<(HealthCheckPorts, BTreeSet<Addr>, BTreeSet<Family>)>,
    plan: Plan,
    /// The errors that were reported to the owner.
    reported: BTreeMap<ServiceName, Arc<str>>,
}

/// The wanted sockets, each with its service.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    listeners: BTreeMap<SocketAddr, ServiceName>,
    /// Services that wait because another service uses their port.
    waiting: BTreeMap<ServiceName, String>,
}

impl Plan {
    /// Load balancers ask at the addresses that answer NodePorts, of which there may be all of a family, or at their own
    /// ones, which some make local by a route.
    fn new(ports: &HealthCheckPorts, addresses: &BTreeSet<Addr>, all: &BTreeSet<Family>) -> Self {
        let mut plan = Self::default();
        for ((port, family), Claimants { owner, waiting }) in ports.by_port() {
            let each = || addresses.iter().chain(ports.balancers(&owner)).copied().collect();
            let at: BTreeSet<Addr> = if all.contains(&family) { [Addr::unspecified(family)].into() } else { each() };
            for addr in at.into_iter().filter(|addr| addr.family() == family) {
                plan.listeners.insert(SocketAddr::new(addr.ip(), port), owner.clone());
            }
            for name in waiting {
                let why = format!("{owner} uses this port: change the healthCheckNodePort of one of the two services");
                plan.waiting.insert(name, not_answered(port, &why));
            }
        }
        plan
    }
}

impl Servers {
    /// Processes a new snapshot, which usually changes nothing relevant here.
    fn refresh(&mut self) {
        let snapshot = Arc::clone(&self.snapshot.borrow_and_update());
        let (ports, addresses) = (&snapshot.facts.health_check_ports, snapshot.facts.nodeport_addresses());
        let all = snapshot.facts.nodeport_families();
        let is_same = |(known, at, families): &(HealthCheckPorts, BTreeSet<Addr>, BTreeSet<Family>)| {
            known.is_same(ports) && *at == addresses && *families == all
        };
        if !self.seen.as_ref().is_some_and(is_same) {
            self.plan = Plan::new(ports, &addresses, &all);
            self.seen = Some((ports.clone(), addresses, all));
        }
    }

    /// Logs the changes, and returns the changes for the owner.
    fn changes(&mut self) -> Vec<Change> {
        let mut errors = self.plan.waiting.clone();
        for (at, name, error) in self.listeners.failed() {
            errors.entry(name.clone()).or_insert_with(|| not_answered(at.port(), &reason(at, error)));
        }
        let mut changes = Vec::new();
        let mut lines = 0;
        for (name, error) in &errors {
            if self.reported.get(name).is_some_and(|reported| **reported == **error) {
                continue;
            }
            lines += 1;
            if lines <= SHOWN {
                warn!(message_id = %messages::HEALTH_CHECK_PORT_FAILED, service = %name, "{name}: {error}; retrying");
            }
            changes.push(Change::HealthCheckPortError(Some(name.clone()), Some(error.as_str().into())));
            self.reported.insert(name.clone(), error.as_str().into());
        }
        if lines > SHOWN {
            warn!(
                message_id = %messages::HEALTH_CHECK_PORT_FAILED,
                "{} cannot answer load balancers: see `nodelb services`", counted(lines - SHOWN, "more service")
            );
        }
        let healed: Vec<ServiceName> =
            self.reported.keys().filter(|name| !errors.contains_key(*name)).cloned().collect();
        for name in healed {
            self.reported.remove(&name);
            let is_wanted = self.plan.listeners.values().any(|owner| *owner == name);
            if is_wanted {
                info!(
                    message_id = %messages::HEALTH_CHECK_PORT_WORKS,
                    service = %name, "{name}: its healthCheckNodePort works"
                );
            }
            changes.push(Change::HealthCheckPortError(Some(name), None));
        }
        changes
    }
}

fn not_answered(port: u16, why: &str) -> String {
    format!("cannot answer health checks on healthCheckNodePort {port}: {why}")
}

fn reason(at: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another process listens on {at}: stop it, or change the port of the service")
        }
        io::ErrorKind::PermissionDenied => format!("{at}: {error}; take a port above 1023"),
        _ => format!("{at}: {error}"),
    }
}

/// The answer for a service, for any path and method. Its backends are counted once per snapshot, however many requests
/// arrive.
fn reply(view: View, name: ServiceName, family: Family) -> Reply {
    let counted: Mutex<(Weak<Snapshot>, usize)> = Mutex::default();
    Arc::new(move |_path| {
        let snapshot = view.snapshot();
        let count = {
            let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
            let latest = Arc::downgrade(&snapshot);
            if !counted.0.ptr_eq(&latest) {
                *counted = (latest, snapshot.local_ready(&name, family));
            }
            counted.1
        };
        let status = view.status(&snapshot);
        let is_good = count > 0 && status.is_healthy;
        HealthAnswer {
            weight: Some(count),
            ..HealthAnswer::json(is_good, body(&name, count, status.is_healthy), status.now)
        }
    })
}

/// The bytes that kube-proxy sends: tabs, and no newline at the end.
fn body(service: &ServiceName, count: usize, is_healthy: bool) -> String {
    let FullName { namespace, name } = &**service;
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {is_healthy}\n}}"
    )
}

#[cfg(test)]
#[path = "tests/service.rs"]
mod tests;
