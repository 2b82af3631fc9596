//! The initial state of tests: everything that the API serves, before any module has published a value.

use std::sync::Arc;

use nodelb_core::datapath::Limits;
use nodelb_core::snapshot::Snapshot;
use tokio::sync::watch;

use super::state::{AdminState, Now, Reality};
use crate::status::Health;

pub(super) fn unsynced() -> AdminState {
    AdminState {
        snapshot: watch::channel(Arc::new(Snapshot::default())).1,
        sources: Vec::new(),
        apiservers: watch::channel(Arc::default()).1,
        checks: watch::channel(Arc::default()).1,
        stale_sockets: None,
        health: watch::channel(Arc::new(Health::default())).1,
        history: watch::channel(Arc::default()).1,
        latencies: None,
        maps: Arc::new(|| Err("none".into())),
        reality: Reality::default(),
        kernel: None,
        limits: Limits { frontends: 1, services: 1, slots: 1, affinity: 1, outside: 0, source_ranges: 0 },
        unopened: watch::channel(Arc::default()).1,
        config: watch::channel(Arc::default()).1,
        clock: Arc::new(Now::default),
    }
}
