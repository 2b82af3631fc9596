//! `nodelb check-config`: everything that is wrong in the configuration, the credentials for Kubernetes and the services
//! directory, before it matters.

use std::io::Write;

use anyhow::Context;

use crate::apiserver::session::Settings;
use crate::apiserver::{credentials, credstore};
use crate::cli::CheckOptions;
use crate::config::Config;
use crate::exit::{Code, Failure};
use crate::source::file;

/// Checks the configuration and then, unless only its keys are asked for, the credentials and the services directory it
/// names. Runs no exec plugin and connects to nothing.
///
/// # Errors
/// All problems of the configuration, or the first one of the credentials (exit code 78), or all of the service files
/// (65).
pub fn check(options: &CheckOptions, told: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
    if options.keys {
        let summary = writeln!(told, "the configuration's keys and values are good; what they name was not looked at");
        return Ok(summary.context("writing the summary")?);
    }
    if let Some(settings) = config.kubernetes_settings() {
        for notice in check_credentials(&settings)? {
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

/// What is to be told of the credentials. Those that only the unit has are not judged.
fn check_credentials(settings: &Settings) -> Result<Vec<String>, Failure> {
    let files = [&settings.kubeconfig, &settings.token_file, &settings.ca_file];
    let elsewhere: Vec<&str> = files.into_iter().flatten().filter_map(|file| credstore::out_of_reach(file)).collect();
    if elsewhere.is_empty() {
        return credentials::check(settings).map_err(|error| Failure::new(Code::Config, error));
    }
    let names = elsewhere.join(", ");
    Ok(vec![format!(
        "not checked here: systemd hands over the credentials ({names}) when it starts nodelb.service; its journal says \
         what is wrong with them"
    )])
}

#[cfg(test)]
mod tests;
