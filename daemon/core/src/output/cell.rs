//! One value of a table. `table/text` defines its form in text.

use std::sync::Arc;

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::time::Time;

/// One value of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// No value: `-` in text.
    None,
    /// A text. An empty one is `-` in text output.
    Text(String),
    /// A shared text.
    Shared(Arc<str>),
    /// A number.
    Number(u64),
    /// A boolean, `yes` or `no` in text.
    Flag(bool),
    /// Several texts. Text of a limited width shows at most five of them and the number of the others.
    List(Vec<String>),
    /// Several addresses, possibly thousands, shown like a list.
    Addresses(Vec<L4Addr>),
    /// The time since an event, in milliseconds: `4m20s` in text.
    Age(u64),
    /// A time: the time since it in text, the time of day in wide text.
    Since {
        /// The time.
        time: Time,
        /// The current time.
        now: Time,
    },
    /// The duration of an operation, in microseconds: `350us` in text.
    Duration(u64),
}

impl Cell {
    /// A cell with the displayed form of the value.
    pub fn text(value: &(impl ToString + ?Sized)) -> Self {
        Self::Text(value.to_string())
    }

    /// A cell with the displayed form of an optional value.
    pub fn optional(value: Option<impl ToString>) -> Self {
        value.map_or(Self::None, |value| Self::text(&value))
    }

    /// A cell with a count.
    pub fn count(value: usize) -> Self {
        Self::Number(value as u64)
    }

    /// A cell with an optional number.
    pub fn optional_number(value: Option<impl Into<u64>>) -> Self {
        value.map_or(Self::None, |number| Self::Number(number.into()))
    }

    /// A cell with a list, in the given order.
    pub fn list(values: impl IntoIterator<Item = impl ToString>) -> Self {
        Self::List(values.into_iter().map(|value| value.to_string()).collect())
    }

    /// Whether text shows nothing but a dash.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::Text(text) => text.is_empty(),
            Self::Shared(text) => text.is_empty(),
            Self::List(values) => values.is_empty(),
            Self::Addresses(values) => values.is_empty(),
            Self::Number(_) | Self::Flag(_) | Self::Age(_) | Self::Since { .. } | Self::Duration(_) => false,
        }
    }

    /// A cell with the time from `since` to `now`. A `since` in the future counts as now.
    pub fn age(since: Moment, now: Moment) -> Self {
        Self::Age(now.0.saturating_sub(since.0))
    }
}
