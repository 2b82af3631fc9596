//! The results of many exchanges.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use crate::exchange::Failure;

/// Counts by backend and by failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Successful exchanges by the name of the backend that answered.
    pub answered: BTreeMap<String, u64>,
    /// Failed exchanges by reason.
    pub failed: BTreeMap<String, u64>,
    /// The first failure and how long after the start its exchange began.
    pub first_failure: Option<(Duration, String)>,
    /// The longest exchange.
    pub slowest: Duration,
    /// From the start to the last exchange counted.
    pub elapsed: Duration,
}

impl Tally {
    /// Counts one exchange that ended `at` after the start and took `took`.
    pub fn record(&mut self, result: Result<String, Failure>, at: Duration, took: Duration) {
        match result {
            Ok(name) => *self.answered.entry(name).or_default() += 1,
            Err(failure) => {
                let reason = failure.to_string();
                if self.first_failure.is_none() {
                    self.first_failure = Some((at.saturating_sub(took), reason.clone()));
                }
                *self.failed.entry(reason).or_default() += 1;
            }
        }
        self.slowest = self.slowest.max(took);
        self.elapsed = self.elapsed.max(at);
    }

    /// Adds what another client counted since the same start.
    pub fn merge(&mut self, other: &Self) {
        for (name, count) in &other.answered {
            *self.answered.entry(name.clone()).or_default() += count;
        }
        for (reason, count) in &other.failed {
            *self.failed.entry(reason.clone()).or_default() += count;
        }
        self.first_failure = [self.first_failure.take(), other.first_failure.clone()].into_iter().flatten().min();
        self.slowest = self.slowest.max(other.slowest);
        self.elapsed = self.elapsed.max(other.elapsed);
    }

    /// How many exchanges succeeded.
    pub fn ok(&self) -> u64 {
        self.answered.values().sum()
    }

    /// How many exchanges failed.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Exchanges per second, successful and failed.
    pub fn rate(&self) -> u64 {
        let millis = self.elapsed.as_millis().max(1);
        u64::try_from(u128::from(self.ok() + self.failures()) * 1000 / millis).unwrap_or(u64::MAX)
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        format!(
            r#"{{"ok":{},"failed":{},"rate":{},"slowest_us":{},"answered":{},"failures":{}}}"#,
            self.ok(),
            self.failures(),
            self.rate(),
            self.slowest.as_micros(),
            json_counts(&self.answered),
            json_counts(&self.failed),
        )
    }
}

fn json_counts(counts: &BTreeMap<String, u64>) -> String {
    let members: Vec<String> = counts.iter().map(|(name, count)| format!("{name:?}:{count}")).collect();
    format!("{{{}}}", members.join(","))
}

/// `1000 connections: backend-1 503, backend-2 497; 0 failed; slowest 1.2ms`
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} connections: ", self.ok() + self.failures())?;
        let mut list = String::new();
        for (name, count) in &self.answered {
            write!(list, "{}{name} {count}", if list.is_empty() { "" } else { ", " })?;
        }
        f.write_str(if list.is_empty() { "none answered" } else { &list })?;
        write!(f, "; {} failed", self.failures())?;
        for (reason, count) in &self.failed {
            write!(f, ", {reason} {count}")?;
        }
        if let Some((at, _)) = &self.first_failure
            && self.ok() > 0
        {
            write!(f, ", the first began after {at:.1?}")?;
        }
        write!(f, "; slowest {:.1?}", self.slowest)
    }
}

#[cfg(test)]
#[path = "tests/tally.rs"]
mod tests;
