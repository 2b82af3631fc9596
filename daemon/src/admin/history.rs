//! The records of `/history` that a request selects.

use std::sync::Arc;

use nodelb_core::history::{History, Record};
use nodelb_core::snapshot::Snapshot;
use nodelb_report::explain::{history, reports};
use nodelb_report::filter::Filter;
use nodelb_report::rows::HistoryRow;

/// Returns the records that match the filter, the oldest first. An address matches the records that name it, and those
/// of every service with a frontend at it.
pub fn select(history: &History, snapshot: &Snapshot, filter: &Filter) -> Vec<Arc<Record>> {
    let at_address = Filter { address: filter.address, ..Filter::default() };
    let services = || reports::frontends(snapshot, &at_address).into_iter().map(|row| row.service).collect();
    history::select(history, filter, &filter.address.map(|_| services()).unwrap_or_default())
}

pub fn rows(records: &[Arc<Record>]) -> Vec<HistoryRow> {
    records.iter().map(|record| HistoryRow::from(&**record)).collect()
}

#[cfg(test)]
#[path = "tests/history.rs"]
mod tests;
