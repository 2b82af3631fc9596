//! `nodelb history`: prints changes, the oldest first.

use std::time::Duration;

use clap::Args;
use nodelb_core::durations;
use nodelb_report::durations::human;
use nodelb_report::output::table::Style;
use nodelb_report::rows::HistoryAnswer;
use nodelb_report::time::Time;
use serde::Deserialize;

use super::answer::{Format, decode, now};
use super::ask::{DaemonAddresses, Wanted};
use super::print::print_lines;
use super::times::{Range, When, ZONE, when};
use crate::exit::{self, Failure};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Keep running and print each change
    #[arg(short, long, help_heading = "Output")]
    pub(super) watch: bool,
    /// Only changes since this time: 10m (ago), 03:10, "2026-11-20 03:10", or in RFC 3339
    ///
    /// Without a date, the last such time of day; without an offset, in the time zone of this host.
    #[arg(long, value_name = "TIME", value_parser = when, conflicts_with = "watch", help_heading = "Filters")]
    since: Option<When>,
    /// Only changes until this time, in the same forms
    #[arg(long, value_name = "TIME", value_parser = when, conflicts_with = "watch", help_heading = "Filters")]
    until: Option<When>,
    /// Only this number of changes, the latest
    #[arg(long, value_name = "NUMBER", conflicts_with = "watch", help_heading = "Filters")]
    limit: Option<usize>,
    /// Show when each change was made in the time zone of this host, not how long ago
    #[arg(long, help_heading = "Output")]
    times: bool,
    #[command(flatten)]
    pub(super) addresses: DaemonAddresses,
}

/// The part of the answer of `/status` that names the start.
#[derive(Deserialize)]
struct Uptime {
    uptime_seconds: u64,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let found = durations::parse(text).filter(|_| !text.is_empty());
    found.ok_or_else(|| format!("`{text}` is not a duration, such as 90s, 10m or 1h30m"))
}

impl Options {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let asking = &self.addresses.asking;
        if self.watch {
            return asking.follow::<HistoryAnswer>("/history", &self.addresses.parameters()?, self.style());
        }
        let wanted = self.addresses.wanted()?;
        let body = asking.get("/history", &self.addresses.parameters_of(&wanted))?;
        let mut answer: HistoryAnswer = decode(&body)?;
        // A service that was removed still has a history.
        if answer.history.is_empty() {
            wanted.must_exist(asking)?;
        }
        let is_text = matches!(asking.output, Format::Text | Format::Wide);
        let last = answer.history.last().map(|row| row.time);
        let range = Range::new((self.since, self.until), now(), &ZONE);
        answer.history.retain(|row| range.contains(row.time));
        if answer.history.is_empty() && is_text {
            return print_lines(&format!("{}\n", self.nothing(&wanted, last)), self.style().width);
        }
        if is_text && answer.history.iter().any(|row| row.time > now()) {
            exit::eprint(
                "Some changes are later than the clock of this host, which has been set back: their age is 0s.",
            );
        }
        let first = answer.history.len().saturating_sub(self.limit.unwrap_or(usize::MAX));
        answer.history.drain(..first);
        asking.show_changed_in(&answer, &self.style())
    }

    fn style(&self) -> Style {
        Style { zone: self.times.then(|| &*ZONE), ..self.addresses.asking.style() }
    }

    /// The text in place of changes. `last`: the time of the last one outside the requested range.
    fn nothing(&self, wanted: &Wanted, last: Option<Time>) -> String {
        let of = wanted.service.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        if let Some(last) = last {
            let ago = human(last.age(now()));
            return format!("No changes{of} are recorded in this time; the last one was {ago} ago.");
        }
        // Without the daemon, the start is not known.
        let status = self.addresses.asking.get("/status", &[]).and_then(|body| decode::<Uptime>(&body));
        let start = status.map(|Uptime { uptime_seconds: seconds }| {
            format!(" nodelb started {} ago.", human(seconds.saturating_mul(1_000)))
        });
        format!("No changes{of} are recorded.{}", start.unwrap_or_default())
    }
}
