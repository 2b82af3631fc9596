//! `/counters`: the number of connections of each service port, as the kernel has counted them.

use nodelb_report::filter::Filter;
use nodelb_report::rows::{CounterRow, Counters};

use super::state::AdminState;

/// Returns the counts of the service ports that have connections.
pub(super) fn counters(state: &AdminState, filter: &Filter) -> Counters {
    let inside = state.datapath.connections();
    let outside = state.packets.as_ref().and_then(|packets| packets.service_connections.as_ref());
    let snapshot = state.snapshot();
    let ports = snapshot.ports().filter(|(_, key)| filter.accepts(&key.service));
    let row = |(id, key)| CounterRow::new(key, inside.map(|it| (it.read)(id)), outside.map(|it| (it.read)(id)));
    let counters = ports.filter_map(|(id, key)| row((id, &**key))).collect();
    Counters { is_counting: inside.is_some() || outside.is_some(), started: state.started.0, counters }
}

#[cfg(test)]
#[path = "tests/counters.rs"]
mod tests;
