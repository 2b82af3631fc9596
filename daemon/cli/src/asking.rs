//! The daemon to query, and its answer in the requested format. The rows are those of nodelb-report, which also renders
//! them.

use clap::{Args, ColorChoice};
use nodelb_report::output::table::Style;
use nodelb_report::rows::Answer;

use super::answer::{Format, decode, now, style};
use super::client::{self, At};
use super::follow::{self, Followed};
use super::print::print;
use super::without_daemon::Fallback;
use super::yaml;
use crate::exit::{Code, Failure};

/// One query parameter. The value is percent-encoded when the request is built.
pub(crate) type Parameter = (&'static str, String);

/// The daemon to query, and the format of its answer.
#[derive(Debug, Args)]
pub(super) struct Asking {
    /// Output format: text, wide (every column, complete lists, times of day), json or yaml
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        help_heading = "Output"
    )]
    pub(super) output: Format,
    /// Colorize output: auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true, help_heading = "Output")]
    pub(super) color: ColorChoice,
    /// Address of the daemon's admin API [default: its socket, then 127.0.0.1:9890 and [::1]:9890]
    #[arg(long, value_name = "ADDRESS:PORT|PATH", help_heading = "Connection")]
    pub(super) admin: Option<At>,
    /// Where answers come from without the daemon.
    #[arg(skip)]
    pub(super) fallback: Fallback,
}

impl Asking {
    /// For questions of commands that print nothing in this form.
    pub(super) fn at(admin: Option<At>, fallback: Fallback) -> Self {
        Self { output: Format::Text, color: ColorChoice::Auto, admin, fallback }
    }

    /// Queries the daemon and prints the answer.
    pub(super) fn ask<A: Answer>(&self, route: &str, parameters: &[Parameter]) -> Result<(), Failure> {
        let body = self.get(route, parameters)?;
        self.show(&body, &decode::<A>(&body)?)
    }

    pub(super) fn show(&self, body: &[u8], answer: &impl Answer) -> Result<(), Failure> {
        self.show_in(body, answer, &self.style())
    }

    fn show_in(&self, body: &[u8], answer: &impl Answer, style: &Style) -> Result<(), Failure> {
        match self.output {
            Format::Text | Format::Wide => print(answer.text(now(), style).as_bytes()),
            Format::Json => print(body),
            Format::Yaml => print(yaml::text(&decode(body)?).as_bytes()),
        }
    }

    /// Prints an answer that has changed since it was received.
    pub(super) fn show_changed(&self, answer: &impl Answer) -> Result<(), Failure> {
        self.show_changed_in(answer, &self.style())
    }

    pub(super) fn show_changed_in(&self, answer: &impl Answer, style: &Style) -> Result<(), Failure> {
        let json = serde_json::to_string(answer).map_err(|error| Failure::new(Code::Internal, error))? + "\n";
        self.show_in(json.as_bytes(), answer, style)
    }

    /// Queries the daemon and prints the answer as it arrives: first all rows, then the changes.
    pub(super) fn follow<F: Followed>(
        &self,
        route: &str,
        parameters: &[Parameter],
        style: Style,
    ) -> Result<(), Failure> {
        let mut parameters = [&[("output", "json".to_owned())], parameters].concat();
        parameters.push(("watch", "true".into()));
        let style = Style { is_stream: true, ..style };
        let mut printer = follow::Printer::<F>::new(self.output, style);
        client::follow(&self.addresses(), &target(route, &parameters), |piece| printer.print(piece))
    }

    /// Returns the body of the answer, in JSON where the route has data.
    pub(super) fn get(&self, route: &str, parameters: &[Parameter]) -> Result<hyper::body::Bytes, Failure> {
        let parameters = [&[("output", "json".to_owned())], parameters].concat();
        let target = target(route, &parameters);
        if let Some(answer) = self.fallback.answer_again(&target) {
            return Ok(answer?.into());
        }
        match client::get(&self.addresses(), &target) {
            Err(failure) if self.admin.is_none() => Ok(self.fallback.answer(&target, failure)?.into()),
            answer => answer,
        }
    }

    pub(super) fn style(&self) -> Style {
        style(self.color, self.output == Format::Wide)
    }

    fn addresses(&self) -> Vec<At> {
        addresses(self.admin.as_ref())
    }
}

/// Returns the addresses of the daemon to query.
pub(super) fn addresses(admin: Option<&At>) -> Vec<At> {
    admin.cloned().map_or_else(client::default_addresses, |at| vec![at])
}

/// Returns the path with its query string. Characters that a query string may contain are not escaped, so that names
/// and addresses stay readable.
pub(crate) fn target(route: &str, parameters: &[Parameter]) -> String {
    let mut target = route.to_owned();
    for (position, (name, value)) in parameters.iter().enumerate() {
        target.push(if position == 0 { '?' } else { '&' });
        target.push_str(name);
        target.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                    target.push(char::from(byte));
                }
                _ => target.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    target
}

#[cfg(test)]
#[path = "tests/asking.rs"]
mod tests;
