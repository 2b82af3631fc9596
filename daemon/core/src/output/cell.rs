//! One value of a table and its form in JSON. `table/text` defines its form in text.

use std::sync::Arc;

use serde::ser::{Serialize, Serializer};

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;

/// One value of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// No value: `-` in text, `null` in JSON.
    None,
    /// A text. An empty one is `-` in text output.
    Text(String),
    /// A shared text.
    Shared(Arc<str>),
    /// A number.
    Number(u64),
    /// A boolean, `yes` or `no` in text.
    Flag(bool),
    /// Several texts. Text output shows at most five of them and the number of the others.
    List(Vec<String>),
    /// Several addresses, possibly thousands, shown like a list.
    Addresses(Vec<L4Addr>),
    /// The time since an event, in milliseconds: `4m20s` in text, seconds in JSON.
    Age(u64),
    /// The duration of an operation, in microseconds: `350us` in text, seconds in JSON.
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

    /// A cell with the time from `since` to `now`. A `since` in the future counts as now.
    pub fn age(since: Moment, now: Moment) -> Self {
        Self::Age(now.0.saturating_sub(since.0))
    }
}

/// An address in its JSON form.
struct Printed<'a>(&'a L4Addr);

impl Serialize for Printed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self.0)
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_none(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Shared(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::List(values) => values.serialize(serializer),
            Self::Addresses(values) => serializer.collect_seq(values.iter().map(Printed)),
            Self::Age(millis) => serializer.serialize_u64(millis / 1000),
            Self::Duration(micros) => serializer.serialize_f64(*micros as f64 / 1e6),
        }
    }
}
