//! `nodelb top`: prints the connections per second of each service, again and again. The daemon returns what the kernel
//! has counted; the rates are differences.

use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use nodelb_report::rows::{Counters, Rates};

use super::answer::{Format, decode, now};
use super::asking::{Asking, Parameter};
use super::history::duration;
use super::print::{Sanitizer, print_on, redraw};
use super::{completions, names, yaml};
use crate::exit::{self, Code, Failure};

const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The lines of a terminal that hold no row: the summary, the headings, and the cursor.
const OTHER_LINES: usize = 3;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Only this service, or the one at this address, with its ports
    #[arg(value_name = "[NAMESPACE/]NAME|ADDRESS[:PORT]", add = ArgValueCompleter::new(completions::services))]
    name: Option<String>,
    /// Filter by namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = names::namespace, help_heading = "Filters")]
    namespace: Option<String>,
    /// Maximum number of services, the busiest first
    #[arg(long, value_name = "NUMBER", help_heading = "Filters")]
    limit: Option<usize>,
    /// Time between two counts, such as 500ms or 5s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print the rates of one interval and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    asking: Asking,
}

fn interval(text: &str) -> Result<Duration, String> {
    let found = duration(text)?;
    if found < MIN_INTERVAL {
        return Err(format!("`{text}` is shorter than {} ms", MIN_INTERVAL.as_millis()));
    }
    Ok(found)
}

impl Options {
    /// Prints until interrupted, or until nothing reads the output.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let parameters = self.parameters()?;
        let count = || -> Result<(Instant, Counters), Failure> {
            let body = self.asking.get("/counters", &parameters)?;
            Ok((Instant::now(), decode(&body)?))
        };
        let (mut begun, mut before) = count()?;
        if !before.is_counting {
            let message = "connections are not counted: see datapath.count-connections in nodelb.toml(5)";
            return Err(Failure::message(Code::Unavailable, message));
        }
        loop {
            thread::sleep(self.interval);
            let (ended, after) = count()?;
            if after.started != before.started {
                exit::eprint(
                    "nodelb was restarted, and counts again from 0: the rates of this interval are not known.",
                );
                (begun, before) = (ended, after);
                continue;
            }
            let seconds = ((ended - begun).as_secs_f64() * 1_000.0).round() / 1_000.0;
            let rates = Rates::between(&before, &after, (now(), seconds), self.name.is_some());
            if !self.show(rates)? || self.once {
                return Ok(());
            }
            (begun, before) = (ended, after);
        }
    }

    fn parameters(&self) -> Result<Vec<Parameter>, Failure> {
        let Some(name) = &self.name else {
            return Ok(self.namespace.iter().map(|namespace| ("namespace", namespace.clone())).collect());
        };
        let service = names::resolve(&self.asking, name, self.namespace.as_deref())?;
        names::must_exist(&self.asking, &service)?;
        Ok(vec![("service", service.to_string())])
    }

    /// Prints the rates, and returns whether the output still has a reader.
    fn show(&self, mut rates: Rates) -> Result<bool, Failure> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let mut json = || {
            rates.rates.truncate(limit);
            serde_json::to_value(&rates).map_err(|error| Failure::new(Code::Internal, error))
        };
        let text = match self.asking.output {
            Format::Json => format!("{}\n", json()?),
            Format::Yaml => format!("---\n{}", yaml::text(&json()?)),
            Format::Text | Format::Wide => {
                let is_redrawn = std::io::stdout().is_terminal() && !self.once;
                if is_redrawn {
                    let lines = terminal_size::terminal_size().map_or(usize::MAX, |(_, height)| height.0.into());
                    let rows = lines.saturating_sub(OTHER_LINES).max(1);
                    return redraw(&rates.busiest(rows.min(limit), &self.asking.style()));
                }
                let end = if self.once { "" } else { "\n" };
                rates.busiest(limit, &self.asking.style()) + end
            }
        };
        print_on(&mut Sanitizer::default(), text.as_bytes())
    }
}
