//! One value of a table, as JSON shows it; `table/text` owns how text shows it.

use std::sync::Arc;

use serde::ser::{Serialize, Serializer};

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;

/// One value of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Nothing to say: `-` in text, `null` in JSON.
    None,
    /// Words; an empty one prints `-` in text.
    Text(String),
    /// Words somebody else owns too.
    Shared(Arc<str>),
    /// A count.
    Number(u64),
    /// `yes` or `no` in text.
    Flag(bool),
    /// Several values; at most five of them in text, then how many more there are.
    List(Vec<String>),
    /// The same of addresses, of which there may be thousands.
    Addresses(Vec<L4Addr>),
    /// How long something has lasted, in milliseconds: `4m20s` in text, seconds in JSON.
    Age(u64),
    /// How long something took, in microseconds: `350us` in text, seconds in JSON.
    Took(u64),
}

impl Cell {
    /// The cell of anything that prints.
    pub fn text(value: &(impl ToString + ?Sized)) -> Self {
        Self::Text(value.to_string())
    }

    /// The cell of something that may be missing.
    pub fn optional(value: Option<impl ToString>) -> Self {
        value.map_or(Self::None, |value| Self::text(&value))
    }

    /// The cell of a count.
    pub fn count(value: usize) -> Self {
        Self::Number(value as u64)
    }

    /// The cell of a number that may be missing.
    pub fn optional_number(value: Option<impl Into<u64>>) -> Self {
        value.map_or(Self::None, |number| Self::Number(number.into()))
    }

    /// The cell of a list, in the order given.
    pub fn list(values: impl IntoIterator<Item = impl ToString>) -> Self {
        Self::List(values.into_iter().map(|value| value.to_string()).collect())
    }

    /// The cell of the time from `since` to `now`; a `since` in the future counts as now.
    pub fn age(since: Moment, now: Moment) -> Self {
        Self::Age(now.0.saturating_sub(since.0))
    }
}

/// An address as JSON shows it.
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
            Self::Took(micros) => serializer.serialize_f64(*micros as f64 / 1e6),
        }
    }
}
