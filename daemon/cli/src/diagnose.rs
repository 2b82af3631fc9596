//! `nodelb diagnose`: finds out why a service does not work, the most likely cause first. It asks three witnesses, each
//! of which may be missing: the daemon ([`gather`] queries its admin API), an apiserver, and connections made from
//! here. Their answers are [`facts`]; the [`rules`], which are pure, derive the findings, and [`show`] prints them. The
//! [`catalogue`] explains Kubernetes Events.

pub mod catalogue;
pub mod facts;
pub mod finding;
mod gather;
mod objects;
mod rows;
pub mod rules;
mod show;
pub(crate) mod suggest;

use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use nodelb_kube::clock;

use self::finding::Severity;
use crate::client;
use crate::endpoints::{Endpoints, ReadConfiguration};
use crate::exit::Failure;
use crate::{DiagnoseOptions, Output};

/// Asks all witnesses, and prints the findings. The exit code is that of the most severe finding: 1 for a warning, 2
/// for a critical one, otherwise 0.
///
/// # Errors
/// When the configuration or a kubeconfig has a problem, or the findings cannot be written.
pub(crate) fn diagnose(
    options: &DiagnoseOptions,
    configured: ReadConfiguration,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let endpoints = Endpoints::new(&options.connection, configured)?;
    let runtime = client::runtime()?;
    let now = clock::unix_seconds(SystemTime::now());
    let facts = runtime.block_on(gather::facts(options, &endpoints, now));
    // A resolver that hangs must not prevent the command from ending.
    runtime.shutdown_background();
    let findings = rules::findings(&facts);
    let report = show::Report::new(&facts, findings);
    let text = match options.output {
        Output::Text => report.to_text(),
        Output::Json => report.to_json().context("the findings cannot be written as JSON")?,
    };
    out.write_all(text.as_bytes()).context("writing what was found")?;
    Ok(match report.severity() {
        Severity::Ok | Severity::Info => ExitCode::SUCCESS,
        Severity::Warning => ExitCode::from(1),
        Severity::Critical => ExitCode::from(2),
    })
}
