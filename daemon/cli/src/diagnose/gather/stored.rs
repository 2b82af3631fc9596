//! Without the daemon: the addresses of the service in the pinned maps, as the other commands show them.

use nodelb_core::model::service::ServiceName;
use serde_json::Value;

use crate::diagnose::facts::Stored;
use crate::diagnose::rows;
use crate::without_daemon::StoredState;

pub(super) fn read(state: &StoredState, service: &ServiceName) -> Stored {
    let rows = |route: &str, table: &str| {
        let body = (state.answer)(&format!("{route}?service={service}")).unwrap_or_default();
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        rows::of(&answer, table)
    };
    let address = |row: &Value| Some(row["address"].as_str()?.to_owned());
    Stored {
        pins: (state.find_pins)(),
        frontends: rows::typed(rows("/frontends", "frontends")),
        node_addresses: rows("/maps", "node_addresses").iter().filter_map(address).collect(),
    }
}
