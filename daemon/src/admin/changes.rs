//! A change of a row, as `?watch` shows it.

use nodelb_report::output::table::Cell;
use nodelb_report::rows::{FrontendRow, HistoryRow, LostRow, PacketRow, Row};
use nodelb_report::time::Clocks;
use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum AnyRow {
    Frontend(Box<FrontendRow>),
    History(Box<HistoryRow>),
    Packet(Box<PacketRow>),
    Lost(LostRow),
}

impl AnyRow {
    pub(super) fn cells(&self, now: Clocks) -> Vec<Cell<'_>> {
        let now = now.time;
        match self {
            Self::Frontend(row) => row.cells(now),
            Self::History(row) => row.short(now).into(),
            Self::Packet(row) => row.cells(now),
            Self::Lost(row) => row.cells(now),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Mark {
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
}

/// A row that is new, differs, or was removed. A removed one is the previous row.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) mark: Mark,
    /// The number of the change, the same in every stream; `None` where changes have no number.
    pub(super) number: Option<u64>,
    pub(super) row: AnyRow,
}
