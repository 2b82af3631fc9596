//! Whether the node works and stays: kube-proxy's port 10256. `/healthz` also makes load balancers avoid a node that is
//! about to be removed (KEP-3836); `/livez` covers only the daemon. All other paths are not found.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use nodelb_core::change::Change;
use nodelb_host::messages;
use serde::Serialize;
use tracing::{info, warn};

use super::answer::HealthAnswer;
use super::inputs::{LbHealth, LoopStatus, View};
use super::listeners::{Listeners, Reply};
use crate::http::Slots;

pub(super) async fn run(entry: LbHealth, slots: Arc<Slots>) {
    let view = entry.view;
    let reply: Reply = Arc::new(move |path| answer(&view, path));
    let wanted: BTreeMap<SocketAddr, ()> = entry.healthz_addresses.iter().map(|at| (*at, ())).collect();
    let mut listeners = Listeners::new(slots, entry.healthz_addresses.len(), entry.retry, entry.register);
    let mut reported = None;
    loop {
        listeners.want(&wanted, |_, ()| Arc::clone(&reply)).await;
        let error = listeners.failed().next().map(|(at, (), error)| failure(at, error));
        if error != reported {
            match &error {
                Some(error) => warn!(message_id = %messages::HEALTH_CHECK_PORT_FAILED, "{error}; retrying"),
                None => info!(
                    message_id = %messages::HEALTH_CHECK_PORT_WORKS,
                    "health checks of load balancers work on every address of kubernetes.healthz-addresses"
                ),
            }
            reported.clone_from(&error);
            // Fails only without an owner, and then the daemon ends.
            _ = entry.changes.send(vec![Change::HealthCheckPortError(None, error.map(Into::into))]).await;
        }
        listeners.retry_is_due().await;
    }
}

fn failure(at: SocketAddr, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens there, perhaps kube-proxy, which answers until it ends: stop it".into()
        }
        _ => error.to_string(),
    };
    format!(
        "cannot answer /healthz health checks of load balancers on {at}: {why}, or change kubernetes.healthz-addresses"
    )
}

fn answer(view: &View, path: &str) -> HealthAnswer {
    let snapshot = view.snapshot();
    let status = view.status(&snapshot);
    match path {
        "/healthz" => reported(status, Some(snapshot.facts.leaving().is_none())),
        "/livez" => reported(status, None),
        _ => HealthAnswer::not_found(status.now),
    }
}

/// kube-proxy's `ProxyHealth`, with the fields in the same order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyHealth {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: Families,
}

#[derive(Serialize)]
struct Families {
    #[serde(rename = "IPv4")]
    v4: ProxierHealth,
    #[serde(rename = "IPv6")]
    v6: ProxierHealth,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxierHealth {
    last_updated: String,
    healthy: bool,
}

/// The answer for a node with this health; `is_eligible` is whether it stays, if the path includes that. `healthy`
/// covers only the health; the update time of a healthy node is now, whenever the last change was.
fn reported(status: LoopStatus, is_eligible: Option<bool>) -> HealthAnswer {
    let LoopStatus { is_healthy, updated, now } = status;
    let is_good = is_healthy && is_eligible.unwrap_or(true);
    // One daemon serves both families.
    let family = ProxierHealth { last_updated: rfc3339(updated), healthy: is_healthy };
    let health = ProxyHealth {
        last_updated: rfc3339(if is_good { now } else { updated }),
        current_time: rfc3339(now),
        node_eligible: is_eligible,
        healthy: is_healthy,
        status: Families { v4: family.clone(), v6: family },
    };
    // The struct contains only strings and booleans, so serialising cannot fail.
    HealthAnswer::json(is_good, serde_json::to_string(&health).unwrap_or_default(), now)
}

/// The format of times in UTC in Go's JSON encoder (`RFC3339Nano`).
fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or_default().to_string()
}

#[cfg(test)]
#[path = "tests/node.rs"]
mod tests;
