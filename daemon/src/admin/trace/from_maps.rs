//! The path of a connection according to the maps alone, for a command that works without the daemon.

use nodelb_core::compile::select::Choice;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::trace::is_of_service_outside;
use nodelb_report::explain::explanation::{Client, ConnectResult, ViewKind};
use nodelb_report::rows::from_maps::{MapContent, MapMatch, MapTrace};
use nodelb_report::rows::{StepRow, TraceAnswer, TraceBackendRow, VerdictRow};

use super::{outside, phrases};

/// Returns the part of the answer of `/trace` that the maps know. `is_here`: a device of the node has the address.
pub(in crate::admin) fn trace(content: &MapContent, (to, is_here): (L4Addr, bool), from: Client) -> TraceAnswer {
    let mut traced = content.trace(to, from);
    let passes = from == Client::Outside && traced.result == ConnectResult::PassedThrough;
    if passes && !is_here && is_of_service_outside(&content.state, to.addr) {
        traced.result = outside::not_served(to.protocol);
    }
    let found = traced.found.as_ref();
    let mut steps = match found {
        Some(found) => vec![
            ("frontend", frontend(found)),
            ("view", phrases::backends_of(found.view).to_owned()),
            ("affinity", phrases::affinity(from, found.affinity_seconds)),
        ],
        None if from == Client::Outside => {
            vec![("frontend", format!("none: the kernel has no service for clients outside the node at {to}"))]
        }
        None => vec![("frontend", format!("none: the kernel has no service at {to}"))],
    };
    let forward = found.and_then(|found| phrases::forward(from, found.forward));
    steps.extend(forward.map(|text| ("forward", text)));
    let drained = found.iter().flat_map(|found| &found.drained);
    steps.extend(drained.map(|(address, drain)| ("drain", phrases::drained(*address, drain))));
    steps.push(("verdict", verdict(&traced, to, from)));
    TraceAnswer {
        verdict: verdict_row(&traced, to, from),
        trace: steps.into_iter().map(|(step, finding)| StepRow { step: step.into(), finding }).collect(),
        backends: found.map(backends).unwrap_or_default(),
        removed: None,
    }
}

fn frontend(found: &MapMatch<'_>) -> String {
    let kind = found.kind.map_or_else(|| "an address".into(), |kind| format!("a {kind} address"));
    let service = match found.port {
        Some(key) if key.port.is_empty() => key.service.to_string(),
        Some(key) => format!("{}, port {}", key.service, key.port),
        None => format!("the service with id {}; its name is unknown without the daemon", found.id),
    };
    format!("{} is {kind} of {service}", found.at)
}

fn verdict(traced: &MapTrace<'_>, to: L4Addr, from: Client) -> String {
    let shares = traced.found.iter().flat_map(|found| found.backends.iter().copied());
    let forwarded = || {
        let is_last_resort = traced.found.as_ref().is_some_and(|found| found.is_last_resort);
        phrases::forwarded_to(shares) + if is_last_resort { phrases::LAST_RESORT } else { "" }
    };
    match traced.result {
        ConnectResult::Forwarded(_) => forwarded(),
        ConnectResult::Depends(_) => phrases::if_admitted(&traced.admitted, &forwarded(), from),
        ConnectResult::Refused(_) if from == Client::Outside => outside::refused(to, traced.found.is_some()),
        ConnectResult::Refused(errno) => phrases::refused(errno).into(),
        ConnectResult::Dropped(reason) => outside::dropped(reason),
        ConnectResult::PassedThrough if from == Client::Outside => outside::NOT_OUTSIDE.into(),
        ConnectResult::PassedThrough => phrases::passed(to),
    }
}

fn verdict_row(traced: &MapTrace<'_>, to: L4Addr, from: Client) -> VerdictRow {
    let found = traced.found.as_ref();
    let port = found.and_then(|found| found.port);
    VerdictRow {
        to: to.to_string(),
        from: from.to_string(),
        verdict: traced.result.to_string(),
        errno: phrases::errno(traced.result),
        service: port.map(|key| key.service.to_string()),
        port: port.map(|key| key.port.to_string()).filter(|port| !port.is_empty()),
        frontend: found.map(|found| found.at.to_string()),
        view: found.map(|found| found.view.to_string()),
        backends: phrases::backend_count(traced.result),
        in_kernel: found.map(|_| true),
    }
}

fn backends(found: &MapMatch<'_>) -> Vec<TraceBackendRow> {
    let all: usize = found.backends.iter().map(|(_, slots)| slots).sum();
    let row = |&(address, slots): &(L4Addr, usize)| TraceBackendRow {
        address: address.to_string(),
        state: None,
        choice: Choice::Selected,
        share: (slots > 0).then(|| format!("{slots} of {all}")),
        node: None,
        zone: None,
        origin: None,
        reason: (slots == 0 && found.view == ViewKind::Local).then(|| phrases::ELSEWHERE.into()),
    };
    found.backends.iter().map(row).collect()
}
