//! Answers of a daemon: how they are read, and the format, width and colours of their output.

use std::io::IsTerminal;
use std::time::SystemTime;

use clap::{ColorChoice, ValueEnum};
use nodelb_report::output::table::Style;
use nodelb_report::time::Time;

use crate::exit::{Code, Failure};
use crate::terminal;

/// The format of an answer of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The most important columns, fitted to the terminal.
    Text,
    /// Every column, complete lists, times of day.
    Wide,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// The format of an answer of a command that queries more than the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Reads an answer, which has another form if the daemon has another version.
pub(super) fn decode<A: serde::de::DeserializeOwned>(body: &[u8]) -> Result<A, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("cannot read the response: {error}; the daemon may have another version");
        Failure::message(Code::Data, message)
    })
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the style of text output, which depends on where stdout leads.
pub(super) fn style(colour: ColorChoice, wide: bool) -> Style {
    let stdout = std::io::stdout();
    let is_terminal = stdout.is_terminal();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = match colour {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_terminal && !no_colour,
    };
    let width = if wide { None } else { terminal::width(&stdout) };
    Style { width, wide, is_stream: false, colour, zone: None }
}
