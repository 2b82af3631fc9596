//! Without the daemon: the addresses of the service in the pinned maps, as the other commands show them.

use nodelb_core::model::service::ServiceName;
use serde_json::Value;

use crate::diagnose::facts::Stored;
use crate::diagnose::rows;
use crate::without_daemon::StoredState;

pub(super) fn read(state: &StoredState, service: &ServiceName) -> Stored {
    let addresses = |route: &str, table: &str| {
        let body = (state.answer)(&format!("{route}?service={service}")).unwrap_or_default();
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let rows = rows::of(&answer, table);
        rows.iter().filter_map(|row| Some(row["address"].as_str()?.to_owned())).collect()
    };
    Stored {
        pins: (state.find_pins)(),
        frontends: addresses("/frontends", "frontends"),
        backends: addresses("/backends", "backends"),
        node_addresses: addresses("/maps", "node_addresses"),
    }
}
