//! `nodelb check-config`: everything that is wrong in the configuration, the credentials for Kubernetes and the services
//! directory, before it matters.

use std::io::Write;

use anyhow::Context;

use crate::apiserver::credentials;
use crate::cli::CheckOptions;
use crate::config::Config;
use crate::exit::{Code, Failure};
use crate::source::file;

/// Checks the configuration, then the credentials and the services directory it names. Runs no exec plugin and connects
/// to nothing.
///
/// # Errors
/// All problems of the configuration, or the first one of the credentials (exit code 78), or all of the service files
/// (65).
pub fn check(options: &CheckOptions, told: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
    if let Some(settings) = config.kubernetes_settings() {
        let notices = credentials::check(&settings).map_err(|error| Failure::new(Code::Config, error))?;
        for notice in notices {
            writeln!(told, "{notice}").context("writing a notice")?;
        }
    }
    let directory = &config.files.directory;
    let problems = file::check(directory);
    if problems.is_empty() {
        let summary = writeln!(told, "the configuration and every service file in {} are good", directory.display());
        return Ok(summary.context("writing the summary")?);
    }
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Err(Failure::message(Code::Data, problems.join("\n")))
}

#[cfg(test)]
mod tests;
