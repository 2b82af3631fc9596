//! The routes: one table registers them, lists them under `/`, and defines the parameters and the tables of each. A new
//! route is a new entry here. Owns no fact, and does not answer requests ([`super::answer`] does).

use std::slice;

use axum::http::StatusCode;
use nodelb_report::rows::{
    self, Apiservers, Backends, ConfigAnswer, Connections, Counters, Dated, Devices, DiffAnswer, Drops, Frontends,
    Healthz, HistoryAnswer, Maps, Names, Packets, Readyz, Rendered, RouteRow, Routes, Services, Sources, TraceAnswer,
    listed,
};
use nodelb_report::status_report::StatusReport;
use nodelb_report::time::Clocks;
use schemars::SchemaGenerator;

use super::follow::ChangeStream;
use super::query::{
    ADDRESS, DROPPED, FROM, KIOSK, LIMIT, LIVE, NAMESPACE, Parameter, Query, SERVICE, STATUS, TO, TYPE, VERBOSE,
    internal,
};
use super::route::{Answer, Content, Cost, Form, Route};
use super::state::{AdminState, latest};
use super::trace::Kernel;
use super::{
    accept, connections, counters, devices, diff, drain, drops, history, maps, metrics, openapi, packets, status,
    tables, trace,
};

const PLACES: &[&Parameter] = &[&SERVICE, &NAMESPACE, &ADDRESS];
const ROWS: &[&Parameter] = &[&SERVICE, &NAMESPACE, &ADDRESS, &TYPE, &STATUS];

/// The form of data of this type.
const fn of<A: rows::Answer>() -> Form {
    Form::Data(SchemaGenerator::subschema_for::<A>)
}

/// Every route, in the order of the list under `/`.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/",
        parameters: &[&KIOSK],
        shows: "this list",
        form: of::<Routes>(),
        cost: Cost::Nothing,
        answer: list_routes,
    },
    Route {
        path: "/status",
        parameters: &[],
        shows: "a one-screen summary of the daemon and this node",
        form: of::<StatusReport>(),
        cost: Cost::Whole,
        answer: |state, _, now| ok(status::status(state, now), now),
    },
    Route {
        path: "/services",
        parameters: ROWS,
        shows: "services with their source and status",
        form: of::<Services>(),
        cost: Cost::ByService,
        answer: |state, query, now| list(listed::services(state.snapshot(), query.filter.clone(), now)),
    },
    Route {
        path: "/frontends",
        parameters: ROWS,
        shows: "service addresses with their backends, status and time of the last change",
        form: Form::Followed(SchemaGenerator::subschema_for::<Frontends>, ChangeStream::frontends),
        cost: Cost::ByPlace,
        answer: |state, query, now| list(listed::frontends(state.snapshot(), query.filter.clone(), now)),
    },
    Route {
        path: "/backends",
        parameters: PLACES,
        shows: "backends, and whether they receive traffic",
        form: of::<Backends>(),
        cost: Cost::ByService,
        answer: |state, query, now| {
            let last = tables::last_check(latest(&state.checks), now);
            list(listed::backends(state.snapshot(), query.filter.clone(), last, now))
        },
    },
    Route {
        path: "/maps",
        parameters: PLACES,
        shows: "the content of the kernel maps, and how full each map is",
        form: of::<Maps>(),
        cost: Cost::Whole,
        answer: read_maps,
    },
    Route {
        path: "/history",
        parameters: PLACES,
        shows: "history of changes: what changed, when, which client changed it, and when it was applied",
        form: Form::Followed(SchemaGenerator::subschema_for::<HistoryAnswer>, ChangeStream::history),
        cost: Cost::ByPlace,
        answer: |state, query, now| {
            let (history, snapshot) = (state.history(), state.snapshot());
            let history = history::rows(&history::select(&history, &snapshot, &query.filter));
            ok(HistoryAnswer { history }, now)
        },
    },
    Route {
        path: "/diff",
        parameters: &[&SERVICE, &NAMESPACE, &ADDRESS, &LIVE],
        shows: "differences between source, memory and kernel, with the likely cause",
        form: of::<DiffAnswer>(),
        cost: Cost::Whole,
        answer: |state, query, now| ok(diff::diff(state, query, now)?, now),
    },
    Route {
        path: "/trace",
        parameters: &[&TO, &FROM],
        shows: "where a connection to an address goes, and why",
        form: of::<TraceAnswer>(),
        cost: Cost::Little,
        answer: |state, query, now| {
            let devices = state.devices();
            let (snapshot, history) = (state.snapshot(), state.history());
            let (decision, programs) = (devices.decision.as_ref(), &*state.datapath.socket_programs());
            let not_forwarding = query.to.and_then(|to| state.forwards_nothing(to.addr.family()));
            let policies = Some(&*devices.policies);
            let kernel = Kernel { decision, programs, not_forwarding: not_forwarding.as_deref(), policies };
            ok(trace::trace(&snapshot, &history, kernel, (query, now))?, now)
        },
    },
    Route {
        path: "/sources",
        parameters: &[],
        shows: "files and object kinds that services are read from, with their problems",
        form: of::<Sources>(),
        cost: Cost::Whole,
        answer: |state, _, now| ok(tables::sources(&state.shown_sources(now)), now),
    },
    Route {
        path: "/dns",
        parameters: &[],
        shows: "DNS names of backends in service files, with the state of each answer",
        form: of::<Names>(),
        cost: Cost::Whole,
        answer: |state, _, now| ok(tables::names(&state.dns.borrow(), now), now),
    },
    Route {
        path: "/apiservers",
        parameters: &[],
        shows: "apiserver addresses, which one is in use, and why",
        form: of::<Apiservers>(),
        cost: Cost::Nothing,
        answer: |state, _, now| ok(tables::apiservers(&state.apiservers(), now), now),
    },
    Route {
        path: "/devices",
        parameters: &[],
        shows: "whether packets from outside the node are translated, and at which network devices",
        form: of::<Devices>(),
        cost: Cost::Nothing,
        answer: |state, _, now| ok(devices::devices(state), now),
    },
    Route {
        path: "/connections",
        parameters: &[&SERVICE, &ADDRESS, &LIMIT],
        shows: "connections of clients outside the node",
        form: of::<Connections>(),
        cost: Cost::Whole,
        answer: |state, query, now| ok(connections::connections(state, query, now)?, now),
    },
    Route {
        path: "/counters",
        parameters: &[&SERVICE, &NAMESPACE],
        shows: "the number of connections of each service port since the daemon started",
        form: of::<Counters>(),
        cost: Cost::Whole,
        answer: |state, query, now| ok(counters::counters(state, &query.filter), now),
    },
    Route {
        path: "/drops",
        parameters: &[&SERVICE],
        shows: "why packets from outside the node were dropped or answered, by service",
        form: of::<Drops>(),
        cost: Cost::Whole,
        answer: |state, query, now| ok(drops::drops(state, query, now)?, now),
    },
    Route {
        path: "/packets",
        parameters: &[&SERVICE, &DROPPED],
        shows: "packets from outside the node and what became of them, while watched (only over the Unix socket)",
        form: Form::Watched(SchemaGenerator::subschema_for::<Packets>, ChangeStream::packets),
        cost: Cost::Nothing,
        answer: |state, _, now| ok(packets::packets(state), now),
    },
    Route {
        path: "/config",
        parameters: &[],
        shows: "the active configuration: each key with its value and origin",
        form: of::<ConfigAnswer>(),
        cost: Cost::Nothing,
        answer: |state, _, now| ok(tables::config(&latest(&state.config)), now),
    },
    Route {
        path: "/openapi.json",
        parameters: &[],
        shows: "this API, as OpenAPI describes it",
        form: Form::Own(&["application/json"]),
        cost: Cost::Nothing,
        answer: |_, _, _| {
            Ok((StatusCode::OK, Content::Own("application/json", format!("{:#}\n", openapi::describe(ROUTES)))))
        },
    },
    Route {
        path: "/healthz",
        parameters: &[&VERBOSE],
        shows: "liveness of the daemon (200 with the text ok, or 503 with the reasons)",
        form: Form::Verdict(SchemaGenerator::subschema_for::<Healthz>),
        cost: Cost::Nothing,
        answer: |state, query, now| {
            let alive = state.health().alive(now.moment);
            let healthz = tables::checks(slice::from_ref(&alive));
            verdict(Healthz { healthz, is_verbose: query.verbose }, alive.passed, now)
        },
    },
    Route {
        path: "/readyz",
        parameters: &[],
        shows: "readiness: whether connections on this node are translated (200, or 503 with the reasons)",
        form: Form::Verdict(SchemaGenerator::subschema_for::<Readyz>),
        cost: Cost::Nothing,
        answer: |state, _, now| {
            let readyz = tables::checks(&state.readiness(now));
            verdict(Readyz { readyz }, state.is_ready(now), now)
        },
    },
    Route {
        path: "/metrics",
        parameters: &[],
        shows: "metrics for Prometheus, in its text format, or in OpenMetrics if the Accept header names it",
        form: Form::Own(&[metrics::CONTENT_TYPE, metrics::OPENMETRICS]),
        cost: Cost::Whole,
        answer: |state, query, now| match metrics::metrics(state, now) {
            Ok(text) if query.openmetrics => Ok((StatusCode::OK, Content::Own(metrics::OPENMETRICS, text))),
            Ok(text) => Ok((StatusCode::OK, Content::Own(metrics::CONTENT_TYPE, metrics::plain(&text)))),
            Err(error) => Err(internal("/metrics", &error.to_string())),
        },
    },
];

fn ok(answer: impl rows::Answer, now: Clocks) -> Answer {
    verdict(answer, true, now)
}

fn verdict(answer: impl rows::Answer, is_good: bool, now: Clocks) -> Answer {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Content::Data(Box::new(Dated { answer, now: now.time }))))
}

fn list(rows: impl Rendered + 'static) -> Answer {
    Ok((StatusCode::OK, Content::Data(Box::new(rows))))
}

fn list_routes(_: &AdminState, _: &Query, now: Clocks) -> Answer {
    let row = |route: &Route| RouteRow {
        route: route.path.into(),
        shows: route.shows.into(),
        parameters: route.takes().iter().map(ToString::to_string).collect(),
    };
    let drains = RouteRow {
        route: drain::PATH.into(),
        shows: drain::SHOWS.into(),
        parameters: drain::OF_DRAIN.iter().map(ToString::to_string).collect(),
    };
    let accept = RouteRow { route: accept::PATH.into(), shows: accept::SHOWS.into(), parameters: Vec::new() };
    ok(Routes { routes: ROUTES.iter().map(row).chain([drains, accept]).collect() }, now)
}

fn read_maps(state: &AdminState, query: &Query, now: Clocks) -> Answer {
    let held = maps::held(state)?;
    let snapshot = state.snapshot();
    let usage = maps::usage(&held.state, state, now.moment);
    ok(maps::maps(&held.state, &|id| snapshot.service_of(id), &usage, &query.filter), now)
}

#[cfg(test)]
#[path = "tests/routes.rs"]
mod tests;
