//! A change of a row, as `?watch` shows it.

use nodelb_report::output::table::{Cell, Style};
use nodelb_report::rows::{FrontendRow, HistoryRow, PacketRow, Row};

use super::state::Now;

#[derive(Debug)]
pub(super) enum AnyRow {
    Frontend(Box<FrontendRow>),
    History(Box<HistoryRow>),
    Packet(Box<PacketRow>),
}

impl AnyRow {
    pub(super) fn cells(&self, now: Now, style: &Style) -> Vec<Cell<'_>> {
        let now = now.clocks().time;
        match self {
            Self::Frontend(row) => row.cells(now),
            Self::History(row) => row.shown(now, style),
            Self::Packet(row) => row.cells(now),
        }
    }

    pub(super) fn json(&self) -> serde_json::Result<String> {
        match self {
            Self::Frontend(row) => serde_json::to_string(row),
            Self::History(row) => serde_json::to_string(row),
            Self::Packet(row) => serde_json::to_string(row),
        }
    }
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
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
