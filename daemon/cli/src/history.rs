//! `nodelb history`: prints changes, the oldest first.

use std::time::Duration;

use clap::Args;
use nodelb_core::durations;
use nodelb_report::rows::HistoryAnswer;

use super::answer::{decode, now};
use super::ask::DaemonAddresses;
use crate::exit::Failure;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Keep running and print each change
    #[arg(short, long, help_heading = "Output")]
    pub(super) watch: bool,
    /// Only changes within this time, such as 10m or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "watch", help_heading = "Filters")]
    since: Option<Duration>,
    /// Only this number of changes, the latest
    #[arg(long, value_name = "NUMBER", conflicts_with = "watch", help_heading = "Filters")]
    limit: Option<usize>,
    #[command(flatten)]
    pub(super) addresses: DaemonAddresses,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let found = durations::parse(text).filter(|_| !text.is_empty());
    found.ok_or_else(|| format!("`{text}` is not a duration, such as 90s, 10m or 1h30m"))
}

impl Options {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let asking = &self.addresses.asking;
        if self.watch {
            return asking.follow::<HistoryAnswer>("/history", &self.addresses.parameters()?);
        }
        let wanted = self.addresses.wanted()?;
        let body = asking.get("/history", &self.addresses.parameters_of(&wanted))?;
        let mut answer: HistoryAnswer = decode(&body)?;
        // A service that was removed still has a history.
        if answer.history.is_empty() {
            wanted.must_exist(asking)?;
        }
        if let Some(since) = self.since {
            let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            answer.history.retain(|row| row.time.age(now()) <= since);
        }
        let first = answer.history.len().saturating_sub(self.limit.unwrap_or(usize::MAX));
        answer.history.drain(..first);
        asking.show_changed(&answer)
    }
}
