//! The routes: one table registers them, lists them under `/`, and defines the parameters and the tables of each. A new
//! route is a new entry here. Owns no fact, and not the way in which a request is answered ([`super::answer`]).

use axum::http::StatusCode;
use nodelb_core::explain::reports;
use nodelb_core::output::diff::{COMPARED, DIFFERENCES};
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};

use super::follow::ChangeStream;
use super::query::{
    self, ADDRESS, DROPPED, FROM, LIMIT, LIVE, Parameter, Problem, Query, SERVICE, STATUS, TO, TYPE, internal,
};
use super::state::{AdminState, Now, latest};
use super::{connections, devices, diff, drops, history, maps, metrics, openapi, packets, status, tables, trace};
use crate::status::Check;

/// A status and the content, or the problem.
pub(super) type Answer = Result<(StatusCode, Content), Problem>;

/// The content of an answer before it is rendered.
pub(super) enum Content {
    /// Tables, as text or JSON.
    Page(Page),
    /// Text in another format.
    Own(String),
}

impl<T: Into<Page>> From<T> for Content {
    fn from(page: T) -> Self {
        Self::Page(page.into())
    }
}

/// One route.
pub(super) struct Route {
    /// The path.
    pub(super) path: &'static str,
    /// The parameters in addition to those that format tables.
    pub(super) parameters: &'static [&'static Parameter],
    /// The description of the answer for people.
    pub(super) shows: &'static str,
    /// The format of the answer.
    pub(super) form: Form,
    /// The cost of the answer.
    pub(super) cost: Cost,
    /// Produces the answer.
    pub(super) answer: fn(&AdminState, &Query, Now) -> Answer,
}

/// The cost of an answer. All but the cheapest are produced outside the runtime's workers, few at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// Negligible.
    Nothing,
    /// Small, whatever the number of objects.
    Little,
    /// Small for one service; any other filter reads every row.
    ByService,
    /// Small for one service or one address.
    ByPlace,
    /// The whole table or all maps, whatever the filter.
    Whole,
}

/// The format of an answer.
pub(super) enum Form {
    /// These tables, as text or JSON.
    Tables(&'static [&'static Schema]),
    /// The same, and `?watch` continues with the changes from this feed.
    Followed(&'static [&'static Schema], fn(&AdminState, &Query) -> ChangeStream),
    /// The same, but only over the Unix socket: the changes contain what other users send.
    Watched(&'static [&'static Schema], fn(&AdminState, &Query) -> ChangeStream),
    /// A table of checks: status 200, or 503 if one of them failed.
    Verdict(&'static [&'static Schema]),
    /// Text of this content type, whatever format is requested.
    Own(&'static str),
}

impl Form {
    /// Returns the feed of `?watch`.
    pub(super) fn feed(&self) -> Option<fn(&AdminState, &Query) -> ChangeStream> {
        match self {
            Self::Followed(_, feed) | Self::Watched(_, feed) => Some(*feed),
            Self::Tables(_) | Self::Verdict(_) | Self::Own(_) => None,
        }
    }
}

/// The queue in which a request waits for its turn: of each kind, one request is answered at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Requests for whole tables.
    Whole,
    /// Requests for few rows.
    Narrow,
    /// Requests that query an apiserver, which takes seconds.
    Live,
}

impl Route {
    /// Returns the queue; `None` for a request that is answered immediately.
    pub(super) fn admission(&self, query: &Query) -> Option<Admission> {
        match self.cost {
            Cost::Nothing => None,
            _ if query.live => Some(Admission::Live),
            Cost::Little => Some(Admission::Narrow),
            Cost::ByService if query.filter.service.is_some() => Some(Admission::Narrow),
            Cost::ByPlace if query.filter.service.is_some() || query.filter.address.is_some() => {
                Some(Admission::Narrow)
            }
            Cost::ByService | Cost::ByPlace | Cost::Whole => Some(Admission::Whole),
        }
    }

    /// Returns every parameter that the query string may contain.
    pub(super) fn takes(&self) -> Vec<&'static Parameter> {
        let watch: &[&Parameter] = if self.form.feed().is_some() { &[&query::WATCH] } else { &[] };
        let form: &[&Parameter] = if matches!(self.form, Form::Own(_)) { &[] } else { &query::FORM };
        [self.parameters, watch, form].concat()
    }
}

const PLACES: &[&Parameter] = &[&SERVICE, &ADDRESS];
const ROWS: &[&Parameter] = &[&SERVICE, &ADDRESS, &TYPE, &STATUS];

static LIST: Schema<[Column; 3]> =
    Schema { name: "routes", columns: [Column::name("Route"), Column::text("Shows"), Column::list("Parameters")] };

/// Every route, in the order of the list under `/`.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/",
        parameters: &[],
        shows: "this list",
        form: Form::Tables(&[&LIST]),
        cost: Cost::Nothing,
        answer: list_routes,
    },
    Route {
        path: "/status",
        parameters: &[],
        shows: "a one-screen summary of the daemon and this node",
        form: Form::Tables(&[&status::STATUS, &status::TROUBLE, &status::CHANGES]),
        cost: Cost::Whole,
        answer: |state, _, now| ok(status::status(state, now)),
    },
    Route {
        path: "/services",
        parameters: ROWS,
        shows: "services with their source and status",
        form: Form::Tables(&[&tables::SERVICES]),
        cost: Cost::ByService,
        answer: |state, query, _| ok(tables::services(reports::services(&state.snapshot(), &query.filter))),
    },
    Route {
        path: "/frontends",
        parameters: ROWS,
        shows: "service addresses with their backends, status and time of the last change",
        form: Form::Followed(&[&tables::FRONTENDS], ChangeStream::frontends),
        cost: Cost::ByPlace,
        answer: |state, query, now| {
            ok(tables::frontends(reports::frontends(&state.snapshot(), &query.filter), now.moment))
        },
    },
    Route {
        path: "/backends",
        parameters: PLACES,
        shows: "backends, and whether they receive traffic",
        form: Form::Tables(&[&tables::BACKENDS]),
        cost: Cost::ByService,
        answer: |state, query, _| ok(tables::backends(reports::backends(&state.snapshot(), &query.filter))),
    },
    Route {
        path: "/maps",
        parameters: PLACES,
        shows: "the content of the kernel maps, and how full each map is",
        form: Form::Tables(&[&maps::FRONTENDS, &maps::SERVICES, &maps::SLOTS, &maps::NODE_ADDRESSES, &maps::LIMITS]),
        cost: Cost::Whole,
        answer: read_maps,
    },
    Route {
        path: "/history",
        parameters: PLACES,
        shows: "history of changes: what changed, when, which client changed it, and when it was applied",
        form: Form::Followed(&[&history::HISTORY], ChangeStream::history),
        cost: Cost::ByPlace,
        answer: |state, query, now| {
            let (history, snapshot) = (state.history(), state.snapshot());
            ok(history::history(&history::select(&history, &snapshot, &query.filter), now.unix))
        },
    },
    Route {
        path: "/diff",
        parameters: &[&SERVICE, &ADDRESS, &LIVE],
        shows: "differences between source, memory and kernel, with the likely cause",
        form: Form::Tables(&[&DIFFERENCES, &COMPARED]),
        cost: Cost::Whole,
        answer: |state, query, now| ok(diff::diff(state, query, now)?),
    },
    Route {
        path: "/trace",
        parameters: &[&TO, &FROM],
        shows: "where a connection to an address goes, and why",
        form: Form::Tables(&[&trace::VERDICT, &trace::TRACE, &trace::BACKENDS]),
        cost: Cost::Little,
        answer: |state, query, now| ok(trace::trace(&state.snapshot(), state.devices().decision.as_ref(), query, now)?),
    },
    Route {
        path: "/sources",
        parameters: &[],
        shows: "files and object kinds that services are read from, with their problems",
        form: Form::Tables(&[&tables::SOURCES]),
        cost: Cost::Whole,
        answer: |state, _, now| ok(tables::sources(&state.sources(), now.unix)),
    },
    Route {
        path: "/apiservers",
        parameters: &[],
        shows: "apiserver addresses, which one is in use, and why",
        form: Form::Tables(&[&tables::APISERVERS, &tables::SESSION]),
        cost: Cost::Nothing,
        answer: |state, _, now| ok(tables::apiservers(&state.apiservers(), now)),
    },
    Route {
        path: "/devices",
        parameters: &[],
        shows: "whether packets from outside the node are translated, and at which network devices",
        form: Form::Tables(&[&devices::PACKETS, &devices::DEVICES]),
        cost: Cost::Nothing,
        answer: |state, _, _| ok(devices::devices(state)),
    },
    Route {
        path: "/connections",
        parameters: &[&SERVICE, &ADDRESS, &LIMIT],
        shows: "connections of clients outside the node",
        form: Form::Tables(&[&connections::CONNECTIONS, &connections::LISTED]),
        cost: Cost::Whole,
        answer: |state, query, _| ok(connections::connections(state, query)?),
    },
    Route {
        path: "/drops",
        parameters: &[&SERVICE],
        shows: "why packets from outside the node were dropped or answered, by service",
        form: Form::Tables(&[&drops::DROPS, &drops::COUNTED]),
        cost: Cost::Whole,
        answer: |state, query, _| ok(drops::drops(state, query)?),
    },
    Route {
        path: "/packets",
        parameters: &[&SERVICE, &DROPPED],
        shows: "packets from outside the node and what became of them, while watched (only over the Unix socket)",
        form: Form::Watched(&[&packets::PACKETS, &packets::WATCHERS], ChangeStream::packets),
        cost: Cost::Nothing,
        answer: |state, _, _| ok(packets::packets(state)),
    },
    Route {
        path: "/config",
        parameters: &[],
        shows: "the active configuration: each key with its value and origin",
        form: Form::Tables(&[&tables::CONFIG]),
        cost: Cost::Nothing,
        answer: |state, _, _| ok(tables::config(&latest(&state.config))),
    },
    Route {
        path: "/openapi.json",
        parameters: &[],
        shows: "this API, as OpenAPI describes it",
        form: Form::Own("application/json"),
        cost: Cost::Nothing,
        answer: |_, _, _| Ok((StatusCode::OK, Content::Own(format!("{:#}\n", openapi::describe(ROUTES))))),
    },
    Route {
        path: "/healthz",
        parameters: &[],
        shows: "liveness of the daemon (200 or 503)",
        form: Form::Verdict(&[&tables::HEALTHZ]),
        cost: Cost::Nothing,
        answer: |state, _, now| checks(&tables::HEALTHZ, &[state.health().alive(now.moment)]),
    },
    Route {
        path: "/readyz",
        parameters: &[],
        shows: "readiness: whether connections on this node are translated (200, or 503 with the reasons)",
        form: Form::Verdict(&[&tables::READYZ]),
        cost: Cost::Nothing,
        answer: |state, _, now| checks(&tables::READYZ, &state.readiness(now)),
    },
    Route {
        path: "/metrics",
        parameters: &[],
        shows: "metrics for Prometheus, in OpenMetrics text",
        form: Form::Own(metrics::CONTENT_TYPE),
        cost: Cost::Whole,
        answer: |state, _, now| match metrics::metrics(state, now) {
            Ok(text) => Ok((StatusCode::OK, Content::Own(text))),
            Err(error) => Err(internal("/metrics", &error.to_string())),
        },
    },
];

fn ok(page: impl Into<Page>) -> Answer {
    Ok((StatusCode::OK, Content::Page(page.into())))
}

fn checks(schema: &'static Schema<[Column; 3]>, checks: &[Check]) -> Answer {
    let all_passed = checks.iter().all(|check| check.passed);
    let status = if all_passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, tables::checks(schema, checks).into()))
}

fn list_routes(_: &AdminState, _: &Query, _: Now) -> Answer {
    let cells = |route: &Route| [Cell::text(route.path), Cell::text(route.shows), Cell::list(route.takes())];
    ok(Table::new(&LIST, ROUTES.iter().map(cells)))
}

fn read_maps(state: &AdminState, query: &Query, now: Now) -> Answer {
    let held = maps::held(state)?;
    let snapshot = state.snapshot();
    let usage = maps::usage(&held.state, state, now.moment);
    ok(maps::maps(&held.state, &|id| snapshot.service_of(id), usage, &query.filter))
}

#[cfg(test)]
#[path = "tests/routes.rs"]
mod tests;
