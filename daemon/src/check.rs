//! `nodelb check-config`: everything that is wrong in the configuration and the services directory, before it matters.

use std::io::Write;

use anyhow::Context;

use crate::cli::CheckOptions;
use crate::config::Config;
use crate::exit::{Code, Failure};
use crate::source::file;

/// Checks the configuration, then the services directory it names.
///
/// # Errors
/// All problems of the configuration (exit code 78), or all of the service files (65).
pub fn check(options: &CheckOptions, told: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
    let directory = &config.files.directory;
    let problems = file::check(directory);
    if problems.is_empty() {
        let summary = writeln!(told, "the configuration and every service file in {} are good", directory.display());
        return Ok(summary.context("writing the summary")?);
    }
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Err(Failure::message(Code::Data, problems.join("\n")))
}
