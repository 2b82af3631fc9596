//! Answers the health checks of load balancers as kube-proxy does (Kubernetes 1.36, `pkg/proxy/healthcheck`): at each
//! service's `healthCheckNodePort`, whether this node has a backend of the service ([`service`]), and at port 10256,
//! whether the node works and stays ([`node`]). Owns the only sockets of nodelb that other hosts can reach ([`listeners`]).
//!
//! ```text
//!  owner ── Arc<Snapshot>, Arc<Health> ──> View ──> answers, when asked
//!    ▲                          │
//!    │                          └── wanted ports ──> listeners ──> load balancers, and any other host
//!    └── Change::HealthCheckPortError: what cannot be listened on
//! ```
//!
//! The answers run on their own thread and runtime: however many requests arrive, they use one core at most and never
//! delay the owner's tasks.

use std::future::Future;
use std::io;
use std::sync::Arc;

use nodelb_host::clock::until;

use crate::http::Slots;

mod answer;
mod inputs;
mod listeners;
mod node;
mod service;

pub use inputs::{Bounds, LbHealth, View};

/// Starts everything on its own thread, which runs until `stop`.
pub fn start(entry: LbHealth, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        runtime.block_on(until(stop, run(entry)));
    };
    std::thread::Builder::new().name("lb-health".into()).spawn(work)?;
    Ok(())
}

/// Listens and answers forever.
pub async fn run(entry: LbHealth) {
    let slots = Slots::new(entry.bounds.limits());
    tokio::join!(node::run(entry.clone(), Arc::clone(&slots)), service::run(entry, slots));
}

#[cfg(test)]
#[path = "tests/lb_health.rs"]
mod tests;
