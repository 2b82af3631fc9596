//! The columns of `/history`, which no other module defines.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodelb_core::explain::reports;
use nodelb_core::filter::Filter;
use nodelb_core::history::{Addresses, History, Kernel, Record, What};
use nodelb_core::model::calendar::{utc, utc_millis};
use nodelb_core::model::service::{PortKey, ServiceName};
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Table};
use nodelb_core::snapshot::Snapshot;

/// The columns of `/history`.
pub static HISTORY: Schema<[Column; 20]> = Schema {
    name: "history",
    columns: [
        Column::number("Sequence"),
        Column::name("Time"),
        Column::age("Age"),
        Column::name("Service"),
        Column::name("Port"),
        Column::one_of("What", &What::NAMES),
        Column::text("Object"),
        Column::name("Resource-Version"),
        Column::number("Generation"),
        Column::text("Writer"),
        Column::name("Written"),
        Column::list("Added"),
        Column::list("Removed"),
        Column::list("Held"),
        Column::list("Refused"),
        Column::duration("To-Nodelb"),
        Column::duration("To-Kernel"),
        Column::text("Kernel"),
        Column::name("Source"),
        Column::text("Detail"),
    ],
};

/// Returns the records that match the filter, the oldest first. An address matches the records that name it, and those
/// of every service with a frontend at it.
pub fn select(history: &History, snapshot: &Snapshot, filter: &Filter) -> Vec<Arc<Record>> {
    let at_address = Filter { address: filter.address, ..Filter::default() };
    let behind: BTreeSet<ServiceName> = match filter.address {
        Some(_) => reports::frontends(snapshot, &at_address).into_iter().map(|row| row.service).collect(),
        None => BTreeSet::new(),
    };
    history.select(filter, &behind)
}

/// Returns one row per record. `now`, from which ages are computed, is in seconds since 1970.
pub fn history(records: &[Arc<Record>], now: u64) -> Table {
    Table::new(&HISTORY, records.iter().map(|record| cells(record, now)))
}

/// Returns the cells of one row.
pub fn cells(record: &Record, now: u64) -> [Cell; 20] {
    let event = &record.event;
    let origin = &event.cause.origin;
    let object = match (event.cause.is_removed, origin.object.is_empty()) {
        (true, false) => Cell::Text(format!("{} (removed)", origin.object)),
        _ => Cell::Shared(Arc::clone(&origin.object)),
    };
    let generation = (origin.generation > 0).then_some(origin.generation);
    [
        Cell::Number(record.sequence),
        Cell::optional(utc_millis(record.at)),
        Cell::Age(now.saturating_mul(1_000).saturating_sub(record.at)),
        Cell::optional(event.port.as_ref().map(|port| &port.service)),
        Cell::optional(event.port.as_deref().map(port)),
        Cell::text(&event.what),
        object,
        Cell::Shared(Arc::clone(&origin.resource_version)),
        Cell::optional_number(generation),
        Cell::Shared(Arc::clone(&origin.writer)),
        Cell::optional(origin.written.and_then(utc)),
        list(&event.added),
        list(&event.removed),
        list(&event.held),
        list(&event.refused),
        took(record.to_owner.map(|millis| millis.saturating_mul(1_000))),
        took(record.to_kernel),
        kernel(&event.kernel),
        Cell::optional(event.source),
        detail(record),
    ]
}

/// Returns the service port's name, such as `http/TCP/IPv4`.
fn port(key: &PortKey) -> String {
    let separator = if key.port.is_empty() { "" } else { "/" };
    format!("{}{separator}{}/{}", key.port, key.protocol, key.family)
}

fn list(addresses: &Addresses) -> Cell {
    Cell::list(&addresses.shown)
}

fn took(micros: Option<u64>) -> Cell {
    micros.map_or(Cell::None, Cell::Duration)
}

/// Returns whether the change is in the kernel, or why not.
fn kernel(kernel: &Kernel) -> Cell {
    match kernel {
        Kernel::Untouched => Cell::None,
        Kernel::Done => Cell::Text("done".into()),
        Kernel::Deferred => Cell::Text("waiting for initial sync".into()),
        Kernel::Failed(error) => Cell::Shared(Arc::clone(error)),
    }
}

/// Returns further details, one per item.
fn detail(record: &Record) -> Cell {
    let event = &record.event;
    let mut said: Vec<String> = event.detail.iter().map(ToString::to_string).collect();
    if event.detail.is_none() && !event.frontends.is_empty() {
        said.push(event.frontends.shown.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    }
    let lists = [("added", &event.added), ("removed", &event.removed), ("held", &event.held)];
    for (name, list) in lists.into_iter().chain([("refused", &event.refused)]).filter(|(_, list)| list.more > 0) {
        said.push(format!("{} {name}", list.more.saturating_add(list.shown.len())));
    }
    if record.is_from_before {
        said.push("before the last start".into());
    }
    Cell::Text(said.join("; "))
}

#[cfg(test)]
#[path = "tests/history.rs"]
mod tests;
