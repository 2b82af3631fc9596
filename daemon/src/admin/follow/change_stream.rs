//! The content of streams: the rows of a table, and then their changes. Holds no rows: it finds changes by comparing
//! the last written snapshot with the newest, at a cost that depends only on what has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodelb_core::explain::reports;
use nodelb_core::explain::rows::FrontendReport;
use nodelb_core::filter::Filter;
use nodelb_core::history::{History, Record};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::output::schema::Schema;
use nodelb_core::output::table::Table;
use nodelb_core::snapshot::{ChangedServices, Snapshot};
use tokio::sync::watch;

use super::Cells;
use crate::admin::query::Query;
use crate::admin::state::{AdminState, Now};
use crate::admin::{history, tables};

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::admin) enum Mark {
    Added,
    Changed,
    Removed,
}

impl Mark {
    /// The sign before a line.
    pub(super) fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Changed => '~',
            Self::Removed => '-',
        }
    }

    /// The name of an event.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
        }
    }
}

/// A row that is new, reads differently, or is gone. In the last case it is the previous row.
#[derive(Debug)]
pub(in crate::admin) struct Change {
    pub(super) mark: Mark,
    /// The number of the change, the same in every stream; `None` where changes have no number.
    pub(super) number: Option<u64>,
    pub(super) row: Cells,
}

/// The rows or records that a stream follows.
pub(in crate::admin) enum ChangeStream {
    /// `/frontends`.
    Frontends(Frontends),
    /// `/history`.
    History(Records),
}

impl ChangeStream {
    /// Follows the rows of `/frontends` that match the query.
    pub(in crate::admin) fn frontends(state: &AdminState, query: &Query) -> Self {
        let snapshots = state.snapshot.clone();
        let reported = Arc::clone(&snapshots.borrow());
        Self::Frontends(Frontends { snapshots, reported, filter: query.filter.clone() })
    }

    /// Follows the records of `/history` that match the query.
    pub(in crate::admin) fn history(state: &AdminState, query: &Query) -> Self {
        let (histories, snapshots) = (state.history.clone(), state.snapshot.clone());
        Self::History(Records { histories, snapshots, reported: 0, filter: query.filter.clone() })
    }

    /// Continues after the change with this number, without the changes up to it. Returns `false` where changes have no
    /// number, or if no change has this number yet: it then comes from another history.
    pub(in crate::admin) fn resume(&mut self, after: u64) -> bool {
        match self {
            Self::Frontends(_) => false,
            Self::History(records) if after > records.histories.borrow().last() => false,
            Self::History(records) => {
                records.reported = after;
                // There may already be new records.
                records.histories.mark_changed();
                true
            }
        }
    }

    /// Returns the columns.
    pub(super) fn schema(&self) -> &'static Schema {
        match self {
            Self::Frontends(_) => &tables::FRONTENDS,
            Self::History(_) => &history::HISTORY,
        }
    }

    /// Returns the table without rows.
    pub(super) fn nothing(&self) -> Table {
        match self {
            Self::Frontends(_) => Table::new(&tables::FRONTENDS, []),
            Self::History(_) => Table::new(&history::HISTORY, []),
        }
    }

    /// Waits until there may be changes; `false` if there will be none.
    pub(super) async fn changed(&mut self) -> bool {
        match self {
            Self::Frontends(frontends) => frontends.snapshots.changed().await.is_ok(),
            Self::History(records) => records.histories.changed().await.is_ok(),
        }
    }

    /// Returns all rows.
    pub(super) fn table(&mut self, now: Now) -> Table {
        match self {
            Self::Frontends(frontends) => frontends.table(now),
            Self::History(records) => history::history(&records.unsent(), now.unix),
        }
    }

    /// Returns the changes since the last call of this function or of [`Self::table`].
    pub(super) fn changes(&mut self, now: Now) -> Vec<Change> {
        match self {
            Self::Frontends(frontends) => frontends.changes(now),
            Self::History(records) => records.changes(now),
        }
    }

    /// Returns the number of the last change that [`Self::table`] includes, where changes have numbers.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Frontends(_) => None,
            Self::History(records) => Some(records.reported),
        }
    }
}

/// Follows the rows of `/frontends`.
pub(in crate::admin) struct Frontends {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    reported: Arc<Snapshot>,
    filter: Filter,
}

type Key = (L4Addr, ServiceName, Arc<str>, FrontendKind);

impl Frontends {
    fn table(&mut self, now: Now) -> Table {
        self.reported = Arc::clone(&self.snapshots.borrow_and_update());
        tables::frontends(reports::frontends(&self.reported, &self.filter), now.moment)
    }

    fn changes(&mut self, now: Now) -> Vec<Change> {
        let newest = Arc::clone(&self.snapshots.borrow_and_update());
        let before = std::mem::replace(&mut self.reported, newest);
        let differs = self.reported.changed_services_since(&before);
        let mut old = self.rows(&before, &differs);
        let mut changes = Vec::new();
        for (key, row) in self.rows(&self.reported, &differs) {
            let mark = match old.remove(&key) {
                None => Mark::Added,
                Some(was) if reads_the_same(&was, &row) => continue,
                Some(_) => Mark::Changed,
            };
            changes.push((key, mark, row));
        }
        changes.extend(old.into_iter().map(|(key, row)| (key, Mark::Removed, row)));
        changes.sort_by(|(left, ..), (right, ..)| left.cmp(right));
        let cells = |row| tables::frontend(row, now.moment).into();
        changes.into_iter().map(|(_, mark, row)| Change { mark, number: None, row: cells(row) }).collect()
    }

    /// Returns the rows that may have changed, by their key.
    fn rows(&self, snapshot: &Snapshot, differs: &ChangedServices) -> BTreeMap<Key, FrontendReport> {
        let rows = match differs {
            ChangedServices::All => reports::frontends(snapshot, &self.filter),
            ChangedServices::Services(names) => {
                let meant = |name: &&ServiceName| self.filter.service.as_ref().is_none_or(|wanted| wanted == *name);
                let filters = names.iter().filter(meant).map(|name| {
                    let service = Some(name.clone());
                    Filter { service, ..self.filter.clone() }
                });
                filters.flat_map(|filter| reports::frontends(snapshot, &filter)).collect()
            }
        };
        rows.into_iter().map(|row| ((row.address, row.service.clone(), Arc::clone(&row.port), row.kind), row)).collect()
    }
}

/// Follows the records of `/history`.
pub(in crate::admin) struct Records {
    histories: watch::Receiver<Arc<History>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    reported: u64,
    filter: Filter,
}

impl Records {
    /// Returns the records since the last call.
    fn unsent(&mut self) -> Vec<Arc<Record>> {
        let histories = Arc::clone(&self.histories.borrow_and_update());
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let mut records = history::select(&histories, &snapshot, &self.filter);
        records.retain(|record| record.sequence > self.reported);
        self.reported = self.reported.max(histories.last());
        records
    }

    fn changes(&mut self, now: Now) -> Vec<Change> {
        let change = |record: Arc<Record>| Change {
            mark: Mark::Added,
            number: Some(record.sequence),
            row: history::cells(&record, now.unix).into(),
        };
        self.unsent().into_iter().map(change).collect()
    }
}

/// Compares without the age, which changes in every row.
fn reads_the_same(was: &FrontendReport, is: &FrontendReport) -> bool {
    FrontendReport { since: is.since, ..was.clone() } == *is
}

#[cfg(test)]
#[path = "tests/change_stream.rs"]
mod tests;
