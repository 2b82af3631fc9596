//! The rows of `/frontends`, `/services` and `/backends`. There may be a hundred thousand.

use std::sync::Arc;

use serde::ser::Error;

use super::answer::Rendered;
use super::row::{Row, empty_table};
use super::services::{BackendRow, CheckResult, FrontendRow, ServiceRow};
use super::{described, kept};
use crate::explain::reports;
use crate::explain::rows::BackendReport;
use crate::filter::Filter;
use crate::output::table::Style;
use crate::time::{Clocks, Time};
use nodelb_core::snapshot::Snapshot;

/// A response of one list, the rows of which are computed while they are written: of a whole table, one exists at a
/// time.
pub struct Listed<R> {
    pub now: Time,
    /// Calls the closure with each row.
    pub for_each: Box<ForEach<R>>,
}

type ForEach<R> = dyn Fn(&mut dyn FnMut(R)) + Send;

impl<R: Row> Rendered for Listed<R> {
    fn text(&self, style: &Style) -> String {
        let mut table = empty_table::<R>(style);
        (self.for_each)(&mut |row| table.push(&row.cells(self.now)));
        table.to_text()
    }

    fn json(&self) -> serde_json::Result<String> {
        let mut out = format!("{{\"{}\":[", R::schema().name).into_bytes();
        let (start, mut result) = (out.len(), Ok(()));
        (self.for_each)(&mut |row| {
            if out.len() > start {
                out.push(b',');
            }
            if result.is_ok() {
                result = serde_json::to_writer(&mut out, &row);
            }
        });
        result?;
        out.extend_from_slice(b"]}\n");
        String::from_utf8(out).map_err(Error::custom)
    }
}

/// One row per claim of a service to an address, and one per address that no service claims and that is kept.
pub fn frontends(snapshot: Arc<Snapshot>, filter: Filter, clocks: Clocks) -> Listed<FrontendRow> {
    let for_each = move |each: &mut dyn FnMut(FrontendRow)| {
        reports::each_frontend(&snapshot, &filter).for_each(|report| each(FrontendRow::new(report, clocks)));
        kept::frontends(&snapshot, &filter, clocks).for_each(each);
    };
    Listed { now: clocks.time, for_each: Box::new(for_each) }
}

/// One row per description of a service, and one per service port that no source describes and that is kept.
pub fn services(snapshot: Arc<Snapshot>, filter: Filter, clocks: Clocks) -> Listed<ServiceRow> {
    let for_each = move |each: &mut dyn FnMut(ServiceRow)| {
        described::services(&snapshot, &filter).for_each(&mut *each);
        kept::services(&snapshot, &filter).into_iter().for_each(each);
    };
    Listed { now: clocks.time, for_each: Box::new(for_each) }
}

/// One row per backend of a service port, also of those that are kept. `last` has the last health check of a backend.
pub fn backends(
    snapshot: Arc<Snapshot>,
    filter: Filter,
    last: impl Fn(&BackendReport) -> Option<CheckResult> + Send + 'static,
    clocks: Clocks,
) -> Listed<BackendRow> {
    let for_each = move |each: &mut dyn FnMut(BackendRow)| {
        reports::each_backend(&snapshot, &filter).for_each(|report| {
            let last = last(&report);
            let row = BackendRow::from(report);
            each(match last {
                Some(last) => row.with(last),
                None => row,
            });
        });
        kept::backends(&snapshot, &filter).into_iter().for_each(each);
    };
    Listed { now: clocks.time, for_each: Box::new(for_each) }
}

#[cfg(test)]
#[path = "tests/listed.rs"]
mod tests;
