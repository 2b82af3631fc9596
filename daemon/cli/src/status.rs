//! `nodelb status`: prints the summary of the daemon and the node. The exit code shows whether something is wrong.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use nodelb_report::output::wrap::fitted;
use nodelb_report::problems::Severity;
use nodelb_report::rows::Answer;
use nodelb_report::status_report::StatusReport;

use super::answer::{Format, decode, now};
use super::asking::Asking;
use super::print::{Sanitizer, print_on, redraw};
use crate::exit::{Code, Failure};

/// The exit code when there are problems, and when the node is not ready.
const PROBLEMS: u8 = 1;
const NOT_READY: u8 = 2;

/// The interval of `--watch`.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Keep running and show the present state every second
    #[arg(short, long, help_heading = "Output")]
    watch: bool,
    #[command(flatten)]
    asking: Asking,
}

impl Options {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let asking = &self.asking;
        if self.watch && matches!(asking.output, Format::Text | Format::Wide) {
            return self.keep_running();
        }
        loop {
            let body = asking.get("/status", &[])?;
            let report: StatusReport = decode(&body)?;
            asking.show(&body, &report)?;
            if !self.watch {
                return Ok(exit_code(&report));
            }
            thread::sleep(EVERY);
        }
    }

    /// Shows text until nothing reads it. A daemon that does not respond is a state, too.
    fn keep_running(&self) -> Result<ExitCode, Failure> {
        let is_terminal = std::io::stdout().is_terminal();
        loop {
            let report = self.asking.get("/status", &[]).and_then(|body| decode::<StatusReport>(&body));
            let style = self.asking.style();
            let text = match report {
                Ok(report) => report.text(now(), &style),
                Err(failure) if failure.code == Code::Unavailable => {
                    fitted(&format!("{failure}\n"), style.width).into_owned()
                }
                Err(failure) => return Err(failure),
            };
            let is_read = match is_terminal {
                true => redraw(&text)?,
                false => print_on(&mut Sanitizer::default(), format!("{text}\n").as_bytes())?,
            };
            if !is_read {
                return Ok(ExitCode::SUCCESS);
            }
            thread::sleep(EVERY);
        }
    }
}

/// A notice is no reason for a script to act.
fn exit_code(report: &StatusReport) -> ExitCode {
    let is_bad = report.problems.iter().any(|problem| problem.severity > Severity::Notice);
    match (report.ready, is_bad) {
        (false, _) => NOT_READY.into(),
        (true, true) => PROBLEMS.into(),
        (true, false) => ExitCode::SUCCESS,
    }
}
