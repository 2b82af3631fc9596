//! The content of the cluster, with the metadata that a real cluster has.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nodelb_apiserver::{Cluster, Replica};
use serde_json::{Value, json};

use crate::objects::{endpoint, name, service, slice};

const SERVICES: u32 = 10_000;
const LARGE: u32 = 1_000;
const ENDPOINTS: u32 = 100;

/// The address of the service whose changes are timed.
pub(crate) const TIMED: &str = "198.51.100.1";

/// What only the events of its slice contain.
pub(crate) const TIMED_SLICE: &str = "\"timed-one\"";

/// The cluster and its apiserver.
pub(crate) struct Content {
    pub(crate) cluster: Cluster,
    pub(crate) replica: Replica,
    bytes: usize,
    turn: Cell<u32>,
}

impl Content {
    pub(crate) fn new() -> Self {
        let cluster = Cluster::new().unwrap();
        let mut bytes = 0;
        let mut apply = |object: Value| {
            bytes += object.to_string().len();
            cluster.apply_value(object).unwrap();
        };
        for number in 0..SERVICES {
            apply(service(&name(number), &format!("10.96.{}.{}", number / 250, 1 + number % 250)));
            apply(slice(&name(number), "one", &[endpoint(number, 0)]));
        }
        for number in 0..LARGE {
            let endpoints: Vec<Value> = (0..ENDPOINTS).map(|place| endpoint(number, place + 1)).collect();
            apply(slice(&name(number), "many", &endpoints));
        }
        apply(service("timed", TIMED));
        apply(timed(0));
        let replica = cluster.serve_on_free_port().unwrap();
        Self { cluster, replica, bytes, turn: Cell::new(0) }
    }

    pub(crate) fn megabytes(&self) -> f64 {
        self.bytes as f64 / 1e6
    }

    /// Gives the timed service another backend.
    pub(crate) fn touch_timed(&self) {
        self.turn.set(self.turn.get() + 1);
        self.cluster.apply_value(timed(self.turn.get())).unwrap();
    }
}

fn timed(turn: u32) -> Value {
    let address = json!({"addresses": [format!("192.0.2.{}", 1 + turn % 250)], "conditions": {"ready": true}});
    slice("timed", "one", &[address])
}

/// Adds or removes an endpoint in a slice of 100.
pub(crate) fn touch_slice(cluster: &Cluster, event: u32) {
    let number = event * 7 % LARGE;
    let count = ENDPOINTS - event / LARGE % 2 - 1;
    let endpoints: Vec<Value> = (0..count).map(|place| endpoint(number, place + 1)).collect();
    cluster.apply_value(slice(&name(number), "many", &endpoints)).unwrap();
}

/// Makes `per_second` such changes per second until `is_over`. Returns their number: a busy machine makes fewer.
pub(crate) fn storm(cluster: &Cluster, per_second: u32, is_over: impl Fn() -> bool) -> u32 {
    // Continues where the last storm ended, so that each event changes the slice.
    static TOUCHED: AtomicU32 = AtomicU32::new(0);
    let (begun, mut events) = (Instant::now(), 0);
    while !is_over() {
        touch_slice(cluster, TOUCHED.fetch_add(1, Ordering::Relaxed));
        events += 1;
        std::thread::sleep((Duration::from_secs(1) / per_second * events).saturating_sub(begun.elapsed()));
    }
    events
}

/// Replaces the only endpoint of a slice, `events` times, one service after another, without a pause.
pub(crate) fn burst(cluster: &Cluster, events: u32) {
    for event in 0..events {
        let number = event % SERVICES;
        let place = if (event / SERVICES).is_multiple_of(2) { ENDPOINTS + 1 } else { 0 };
        cluster.apply_value(slice(&name(number), "one", &[endpoint(number, place)])).unwrap();
    }
}
