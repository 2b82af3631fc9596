//! Rows about the number of connections: what the kernel has counted, and rates between two counts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::row::{rows, table};
use crate::explain::reports::port_text;
use crate::output::table::Style;
use crate::time::Time;
use nodelb_core::datapath::Count;
use nodelb_core::model::service::PortKey;

rows! {
    /// The connections of a service port, as far as there are any.
    CounterRow in "counters" {
        /// The service.
        service: String = name("Service"),
        /// The service port, such as `http/TCP/IPv4`.
        port: String = name("Port"),
        /// The number of connections of this node that were sent to a backend.
        inside: u64 = number("Inside"),
        /// The same for clients outside the node; absent if they are not counted.
        outside: Option<u64> = number("Outside"),
        /// The number of connections that were refused.
        refused: u64 = number("Refused"),
    }

    /// The connections per second of a service, or of one of its ports.
    RateRow in "rates" {
        /// The service.
        service: String = name("Service"),
        /// The service port, such as `http/TCP/IPv4`; absent for the sum of all.
        port: Option<String> = name("Port"),
        /// The number of connections per second that were sent to a backend.
        per_second: f64 = number("Per-Second"),
        /// The part of clients outside the node; absent if they are not counted.
        outside: Option<f64> = number("Outside"),
        /// The number of connections per second that were refused.
        refused: f64 = number("Refused"),
        /// The number of connections so far, including refused ones.
        total: u64 = number("Total"),
    }
}

/// The response of `/counters`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// Whether connections are counted.
    pub is_counting: bool,
    /// The start of the daemon in milliseconds since the boot: counts with another one began again at 0.
    #[serde(default)]
    pub started: u64,
    /// The counts since the daemon started, or since the service port exists, in the order of the ids.
    pub counters: Vec<CounterRow>,
}

impl CounterRow {
    /// The row of a service port; `None` without connections.
    pub fn new(key: &PortKey, inside: Option<Count>, outside: Option<Count>) -> Option<Self> {
        let counts = [inside, outside].into_iter().flatten();
        let (translated, refused) =
            counts.fold((0, 0), |(translated, refused), it| (translated + it.translated, refused + it.refused));
        (translated + refused > 0).then(|| Self {
            service: key.service.to_string(),
            port: port_text(key),
            inside: inside.map_or(0, |count| count.translated),
            outside: outside.map(|count| count.translated),
            refused,
        })
    }
}

impl Answer for Counters {
    fn text(&self, now: Time, style: &Style) -> String {
        if !self.is_counting {
            return "Connections are not counted (key datapath.count-connections of nodelb.toml).\n".into();
        }
        table(&self.counters, now, style).or_text("No connections counted.".into()).to_text()
    }
}

/// The rates between two counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// The time of the second count.
    pub time: Time,
    /// The time between the counts, in seconds.
    pub interval_seconds: f64,
    /// The highest rate first.
    pub rates: Vec<RateRow>,
}

impl Answer for Rates {
    fn text(&self, now: Time, style: &Style) -> String {
        table(&self.rates, now, style).or_text("No connections counted.".into()).to_text()
    }
}

impl Rates {
    /// The line above the table: the sums of all rows.
    fn summary(&self) -> String {
        // The sum of no numbers is -0.0.
        let sum = |of: fn(&RateRow) -> f64| self.rates.iter().map(of).fold(0.0, |sum, rate| sum + rate);
        let (connections, refused) = (sum(|row| row.per_second), sum(|row| row.refused));
        format!("{}  {connections:.1} connections per second, {refused:.1} refused\n", self.time)
    }

    /// The summary of all rows, and at most so many of them.
    pub fn busiest(mut self, rows: usize, style: &Style) -> String {
        let summary = self.summary();
        self.rates.truncate(rows);
        summary + &self.text(self.time, style)
    }

    /// The rates of services, or of each of their ports. A count that is lower than before began again at 0, as its service
    /// was added again.
    pub fn between(before: &Counters, after: &Counters, (time, seconds): (Time, f64), is_by_port: bool) -> Self {
        let key = |row: &CounterRow| (row.service.clone(), row.port.clone());
        let known: BTreeMap<_, &CounterRow> = before.counters.iter().map(|row| (key(row), row)).collect();
        let mut found: BTreeMap<(&str, Option<&str>), RateRow> = BTreeMap::new();
        for row in &after.counters {
            let then = known.get(&key(row));
            let port = is_by_port.then_some(row.port.as_str());
            let rate = found.entry((&row.service, port)).or_insert_with(|| RateRow {
                service: row.service.clone(),
                port: port.map(ToOwned::to_owned),
                per_second: 0.0,
                outside: None,
                refused: 0.0,
                total: 0,
            });
            let inside = more(then.map(|then| then.inside), row.inside);
            let outside = row.outside.map(|outside| more(then.and_then(|then| then.outside), outside));
            rate.per_second += (inside + outside.unwrap_or_default()) as f64;
            rate.outside = outside.map(|outside| rate.outside.unwrap_or_default() + outside as f64).or(rate.outside);
            rate.refused += more(then.map(|then| then.refused), row.refused) as f64;
            rate.total += row.inside + row.outside.unwrap_or_default() + row.refused;
        }
        let per_second = |number: f64| if seconds > 0.0 { (number / seconds * 10.0).round() / 10.0 } else { 0.0 };
        let mut rates: Vec<RateRow> = found.into_values().collect();
        for rate in &mut rates {
            rate.per_second = per_second(rate.per_second);
            rate.outside = rate.outside.map(per_second);
            rate.refused = per_second(rate.refused);
        }
        let load = |row: &RateRow| row.per_second + row.refused;
        rates.sort_by(|a, b| load(b).total_cmp(&load(a)).then(b.total.cmp(&a.total)).then(a.service.cmp(&b.service)));
        Self { time, interval_seconds: seconds, rates }
    }
}

fn more(before: Option<u64>, after: u64) -> u64 {
    let before = before.unwrap_or_default();
    after.checked_sub(before).unwrap_or(after)
}

#[cfg(test)]
#[path = "tests/traffic.rs"]
mod tests;
