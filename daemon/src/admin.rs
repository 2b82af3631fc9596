//! The admin API: what nodelb knows, over HTTP on loopback. Only root can change anything ([`drain`], [`accept`]). Owns the lifetime of the listeners and the format
//! of every answer; it reads every fact from the parts of [`AdminState`], which other modules publish. Knows nothing
//! else of the sources and the datapath.
//!
//! The guard checks a request ([`guard`]), which is then routed and parsed ([`routes`], [`query`]). The answer
//! ([`answer`]) is a [`Table`](nodelb_report::output::table::Table) of known columns (`tables`, `maps`), rendered
//! as text or JSON. Metrics have a format of their own (`metrics`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nodelb_host::clock::ticking;
use nodelb_report::problems::Beginnings;
use tokio::sync::{mpsc, watch};

use crate::http::Listener;

mod accept;
mod answer;
mod changes;
pub mod connections;
mod counters;
mod devices;
mod diff;
mod drain;
mod drops;
#[cfg(test)]
#[path = "admin/tests/fixture.rs"]
mod fixture;
mod follow;
#[cfg(test)]
#[path = "admin/tests/golden.rs"]
mod golden;
mod guard;
pub mod history;
pub mod maps;
pub mod metrics;
mod observed;
mod openapi;
mod packets;
mod page;
mod pattern;
mod query;
mod response;
mod route;
mod routes;
mod server;
pub mod socket;
pub mod state;
mod status;
mod tables;
mod trace;
pub mod without_daemon;

pub use state::{AdminState, now};

/// How often the usage of the maps is looked at without a request, so that its problem has the right time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often the other problems of the node are looked for without a request, for their times after the next start.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(5);

/// Looks for maps that are nearly full and for other problems of the node until `stop` resolves, and then once more.
pub async fn watch_problems(
    state: AdminState,
    beginnings: watch::Sender<Arc<Beginnings>>,
    stop: impl Future<Output = ()>,
) {
    let (mut tables, mut all) = (ticking(LOOK_EVERY), ticking(LOOK_AT_ALL_EVERY));
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = tables.tick() => state.watch_tables(),
            _ = all.tick() => state.watch_problems(&beginnings),
        }
    }
    state.watch_problems(&beginnings);
}

/// Serves the API on every listener that arrives, until `shutdown` resolves.
pub async fn serve(listeners: mpsc::Receiver<Listener>, state: AdminState, shutdown: impl Future<Output = ()>) {
    server::serve(listeners, state, (server::LIMITS, server::STREAMS), shutdown).await;
}
