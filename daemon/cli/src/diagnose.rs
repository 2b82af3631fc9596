//! `nodelb diagnose`: finds out why a service does not work, the most likely cause first. It asks three witnesses, each
//! of which may be missing: the daemon ([`gather`] queries its admin API), an apiserver, and connections made from
//! here. Their answers are [`facts`]; the [`rules`], which are pure, derive the findings, [`finding`] decides which of
//! them explain the others, and [`skipped`] lists what was not checked. The [`catalogue`] has the severities, the order,
//! the remedies and the explanations of Kubernetes Events.

pub mod catalogue;
pub mod facts;
mod finding;
mod gather;
mod objects;
mod rows;
pub mod rules;
mod skipped;
pub(crate) mod suggest;

use std::process::ExitCode;

use anyhow::Context;
use nodelb_core::model::service::ServiceName;
use nodelb_report::rows::{Answer, ConnectTestRow, Diagnosis, FindingKind, FindingSeverity};
use nodelb_report::time::Time;

use self::facts::{Facts, Outcome};
use crate::answer::{self, Format};
use crate::endpoints::Endpoints;
use crate::exit::{Code, Failure};
use crate::print::print;
use crate::{Actions, DiagnoseOptions, client, names, yaml};

pub use gather::{ReadForwardDrops, Readers};

const FAILED: &str = "the findings cannot be written as JSON";

/// Asks all witnesses, and prints the findings. The exit code is that of the most severe finding: 1 for a warning, 2
/// for a critical one, otherwise 0; [`Code::NotFound`] if there is no such service.
pub(crate) fn diagnose(options: &DiagnoseOptions, actions: Actions) -> Result<ExitCode, Failure> {
    let endpoints = Endpoints::new(&options.connection, actions.configured)?;
    let service = names::resolve_at(
        (options.connection.admin.as_ref(), &endpoints.admin),
        actions.stored_state,
        &options.service,
    )?;
    let runtime = client::runtime()?;
    let now = answer::now();
    let Actions { peer, stored_state: stored, forward_drops, .. } = actions;
    let readers = Readers { peer, stored, forward_drops };
    let diagnosis = runtime.block_on(examine(&service, options, &endpoints, readers, now));
    // A resolver that hangs must not prevent the command from ending.
    runtime.shutdown_background();
    let text = match options.output {
        Format::Text | Format::Wide => diagnosis.text(now, &answer::style(options.color, options.is_verbose())),
        Format::Json => serde_json::to_string_pretty(&diagnosis).context(FAILED)? + "\n",
        Format::Yaml => yaml::text(&serde_json::to_value(&diagnosis).context(FAILED)?),
    };
    print(text.as_bytes())?;
    Ok(exit_code(&diagnosis))
}

pub async fn examine(
    service: &ServiceName,
    options: &DiagnoseOptions,
    endpoints: &Endpoints,
    readers: Readers,
    now: Time,
) -> Diagnosis {
    diagnosis(&Box::pin(gather::facts(service, options, endpoints, readers, now)).await, now)
}

fn diagnosis(facts: &Facts, now: Time) -> Diagnosis {
    let findings = rules::findings(facts);
    let severity = findings.iter().map(|finding| finding.severity).max().unwrap_or(FindingSeverity::Ok);
    let connections = facts.connect_tests.iter().filter_map(|test| {
        let (error, after) = match &test.outcome {
            Outcome::Accepted(after) => (None, *after),
            Outcome::Failed(why, after) => (Some(why.clone()), *after),
            Outcome::Unprovable => return None,
        };
        let milliseconds = (after.as_secs_f64() * 1e6).round() / 1e3;
        Some(ConnectTestRow {
            to: test.to.clone(),
            is_backend: test.is_backend,
            accepted: error.is_none(),
            error,
            milliseconds,
        })
    });
    Diagnosis {
        service: facts.service.to_string(),
        node: facts.node.clone(),
        time: now,
        severity,
        daemon: facts.daemon.ok().is_some(),
        apiserver: facts.cluster.ok().map(|cluster| cluster.via.clone()),
        connections: connections.collect(),
        not_checked: skipped::skipped(facts),
        findings,
    }
}

fn exit_code(diagnosis: &Diagnosis) -> ExitCode {
    let first = diagnosis.findings.first().map(|finding| finding.kind);
    match diagnosis.severity {
        _ if first == Some(FindingKind::NoSuchService) => Code::NotFound.into(),
        FindingSeverity::Ok | FindingSeverity::Info => ExitCode::SUCCESS,
        FindingSeverity::Warning => ExitCode::from(1),
        FindingSeverity::Critical => ExitCode::from(2),
    }
}

#[cfg(test)]
#[path = "diagnose/tests/diagnosis.rs"]
mod tests;
