//! Whether the service exists, whether it is one for proxies, and whether it gets the health checks that it asks for.

use nodelb_core::history::What;
use nodelb_core::model::time::Time;
use nodelb_kube::api::health_check::ANNOTATION;
use nodelb_report::rows::HistoryRow;
use serde::Deserialize;

use super::context::{Context, quoted, shown, some};
use crate::diagnose::facts::Probe;
use crate::diagnose::objects::{label, spec, text};
use crate::similar::similar_names;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// The label of services that another proxy serves, whatever its value.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let found = [missing(context), not_for_proxies(context), unknown_to_daemon(context), unchecked(context)];
    found.into_iter().flatten().collect()
}

fn daemon_has_it(context: &Context<'_>) -> Option<bool> {
    context.daemon.map(|daemon| !daemon.services.is_empty())
}

fn missing(context: &Context<'_>) -> Option<Finding> {
    let of_cluster = match &context.facts.cluster {
        Probe::Ok(cluster) => cluster.service.as_ref().ok().map(Option::is_some),
        _ => None,
    };
    let has = [of_cluster, daemon_has_it(context)];
    if has.contains(&Some(true)) || has == [None, None] {
        return None;
    }
    let name = &context.facts.service;
    let known = context.daemon.into_iter().flat_map(|daemon| &daemon.names);
    let known = known.chain(context.cluster.into_iter().flat_map(|cluster| &cluster.names));
    let near: Vec<String> = similar_names(&name.to_string(), known.map(String::as_str)).map(shown).collect();
    let asked = match has {
        [Some(_), Some(_)] => "neither Kubernetes nor the daemon",
        [Some(_), None] => "Kubernetes does not",
        _ => "the daemon does not",
    };
    let verb = if asked.starts_with("neither") { "knows" } else { "know" };
    let what = format!("there is no service {name}: {asked} {verb} one of this name");
    if let Some(gone) = removal(context) {
        return Some(context.finding_in(Kind::NoSuchService, what, "removed", &[]).evidence([gone]));
    }
    let case = if near.is_empty() { "" } else { "similar" };
    let similar = near.first().map_or("", String::as_str);
    let finding = context.finding_in(Kind::NoSuchService, what, case, &[("similar", similar)]);
    Some(finding.evidence((near.len() > 1).then(|| format!("names like it: {}", near.join(", ")))))
}

/// How the service was removed, if the daemon remembers it.
fn removal(context: &Context<'_>) -> Option<String> {
    let row = context.daemon?.history.as_ref()?.last()?;
    let row = HistoryRow::deserialize(row).ok().filter(|row| row.what == What::Removed)?;
    Some(row.gone(Time(context.facts.now.saturating_mul(1_000))))
}

fn not_for_proxies(context: &Context<'_>) -> Option<Finding> {
    let service = context.service.filter(|_| !context.is_for_proxies())?;
    let target = shown(text(&spec(service).external_name));
    let (what, case) = if text(&spec(service).type_) == "ExternalName" {
        (format!("it is of type ExternalName: a DNS name for {target}, which no proxy serves"), "external-name")
    } else if text(&spec(service).cluster_ip) == "None" {
        (
            "it is headless (clusterIP: None): clients get the addresses of the pods from DNS, without a proxy".into(),
            "headless",
        )
    } else {
        ("it has no clusterIP yet, so there is no address to serve".into(), "no-address")
    };
    Some(context.finding_in(Kind::NotForProxies, what, case, &[("target", &target)]))
}

/// Kubernetes has the service, but the daemon does not.
fn unknown_to_daemon(context: &Context<'_>) -> Option<Finding> {
    let service = context.service.filter(|_| context.is_for_proxies() && daemon_has_it(context) == Some(false))?;
    if let Some(proxy) = label(&service.metadata, PROXY_NAME) {
        let what = format!("its label {PROXY_NAME} assigns it to another proxy, {}", shown(proxy));
        return Some(context.finding_in(Kind::NotForProxies, what, "another-proxy", &[]));
    }
    let what = "Kubernetes has it, but the daemon does not know it";
    let finding = context.finding_in(Kind::MemoryDiffers, what, "unknown", &[]).severity(Severity::Critical);
    Some(finding.evidence([context.written(&service.metadata)]))
}

/// The Service asks for health checks, and the configuration permits none. `/status` does not report this, because it is
/// the operator's decision.
fn unchecked(context: &Context<'_>) -> Option<Finding> {
    let daemon = context.daemon.filter(|daemon| daemon.health_checks == "false")?;
    let is_of_kubernetes = daemon.services.iter().any(|row| row.source.eq_ignore_ascii_case("kubernetes"));
    let annotations = context.service.filter(|_| is_of_kubernetes)?.metadata.annotations.as_ref()?;
    let asked = annotations.iter().filter(|(name, _)| name.starts_with(ANNOTATION));
    let asked: Vec<String> = asked.map(|(name, value)| format!("{}: {}", shown(name), quoted(value))).collect();
    let what = "it asks for health checks, and its backends are not checked: kubernetes.health-checks is false";
    let found = context.finding(Kind::HealthChecksOff, what);
    (!asked.is_empty()).then(|| found.evidence([format!("its annotations: {}", some(asked))]))
}
