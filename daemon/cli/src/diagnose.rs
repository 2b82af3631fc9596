//! `nodelb diagnose`: what is the matter with one service, the most likely cause first. Three witnesses are asked, each of
//! which may be missing: the daemon ([`gather`] over its admin API), an apiserver, and connections made from here. What they
//! say are [`facts`]; what follows from them is pure ([`rules`]), in words ([`show`]). Kubernetes Events are explained by
//! [`catalogue`].

pub mod catalogue;
pub mod facts;
pub mod finding;
mod gather;
mod near;
mod rows;
pub mod rules;
mod show;

use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use nodelb_kube::clock;

use self::finding::Severity;
use crate::client;
use crate::exit::Failure;
use crate::means::{Means, ReadConfiguration};
use crate::{DiagnoseOptions, Output};

/// Asks everybody, and tells what was found. The exit code is the gravest finding's: 0, 1 for a warning, 2 for a critical one.
///
/// # Errors
/// When the configuration or a kubeconfig has a problem, or what was found cannot be written.
pub(crate) fn diagnose(
    options: &DiagnoseOptions,
    configured: ReadConfiguration,
    told: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let means = Means::of(&options.whom, configured)?;
    let runtime = client::runtime()?;
    let now = clock::unix_seconds(SystemTime::now());
    let facts = runtime.block_on(gather::facts(options, &means, now));
    // A resolver that hangs must not keep the command from ending.
    runtime.shutdown_background();
    let findings = rules::findings(&facts);
    let report = show::Report::of(&facts, findings);
    let text = match options.output {
        Output::Text => report.to_text(),
        Output::Json => report.to_json().context("the findings cannot be written as JSON")?,
    };
    told.write_all(text.as_bytes()).context("writing what was found")?;
    Ok(match report.severity() {
        Severity::Ok | Severity::Info => ExitCode::SUCCESS,
        Severity::Warning => ExitCode::from(1),
        Severity::Critical => ExitCode::from(2),
    })
}
