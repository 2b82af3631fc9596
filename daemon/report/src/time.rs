//! Points in time as programs read them: RFC 3339, in UTC.

use std::fmt;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use nodelb_core::model::moment::Moment;

/// A point in time in milliseconds since 1970. It is `2026-11-20T12:03:04.123Z` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000))
    }

    pub const fn seconds(self) -> u64 {
        self.0 / 1_000
    }

    /// The time in milliseconds from this point to `now`; 0 for a point in the future.
    pub const fn age(self, now: Self) -> u64 {
        now.0.saturating_sub(self.0)
    }
}

/// The time on the two clocks that a daemon has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    pub moment: Moment,
    pub time: Time,
}

impl Clocks {
    pub fn time_of(&self, moment: Moment) -> Time {
        Time(self.time.0.saturating_sub(self.moment.0.saturating_sub(moment.0)))
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(utc_millis(self.0).as_deref().unwrap_or("-"))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: Timestamp = text.parse().map_err(D::Error::custom)?;
        u64::try_from(time.as_millisecond()).map(Self).map_err(D::Error::custom)
    }
}

/// Formats milliseconds since 1970 as `2026-11-20T12:03:04.123Z`.
pub fn utc_millis(millis: u64) -> Option<String> {
    let time = Timestamp::from_millisecond(i64::try_from(millis).ok()?);
    Some(format!("{:.3}", time.ok()?))
}

#[cfg(test)]
#[path = "tests/time.rs"]
mod tests;
