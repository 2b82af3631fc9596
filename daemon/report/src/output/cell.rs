//! One value of a table. `table/text` defines its form in text.

use std::borrow::Cow;

use crate::time::Time;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;

/// One value of a table, which may borrow from its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// No value: `-` in text.
    None,
    /// A text. An empty one is `-` in text output.
    Text(Cow<'a, str>),
    Address(L4Addr),
    Number(u64),
    Flag(bool),
    /// Several texts. Text of a limited width shows at most five of them and the number of the others.
    List(Cow<'a, [String]>),
    /// Several addresses, possibly thousands, shown like a list.
    Addresses(&'a [L4Addr]),
    /// The time since an event, in milliseconds: `4m20s` in text.
    Age(u64),
    /// A time: the time since it in text, the time of day in wide text.
    Since {
        time: Time,
        now: Time,
    },
    /// The duration of an operation, in microseconds: `350us` in text.
    Duration(u64),
}

impl Cell<'_> {
    /// A cell with the displayed form of the value.
    pub fn text(value: &(impl ToString + ?Sized)) -> Self {
        Self::Text(value.to_string().into())
    }

    /// A cell with the displayed form of an optional value.
    pub fn optional(value: Option<impl ToString>) -> Self {
        value.map_or(Self::None, |value| Self::text(&value))
    }

    pub fn count(value: usize) -> Self {
        Self::Number(value as u64)
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
            Self::List(values) => values.is_empty(),
            Self::Addresses(values) => values.is_empty(),
            Self::Address(_) | Self::Number(_) | Self::Flag(_) => false,
            Self::Age(_) | Self::Since { .. } | Self::Duration(_) => false,
        }
    }

    /// A cell with the time from `since` to `now`. A `since` in the future counts as now.
    pub fn age(since: Moment, now: Moment) -> Self {
        Self::Age(now.0.saturating_sub(since.0))
    }
}
