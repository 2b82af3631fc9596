//! The routes: one table that registers them, lists them under `/`, and says which parameters each takes and which
//! tables it answers with. To add one is to add an entry here. Owns no fact, and not how an answer is given
//! ([`super::answer`]).

use axum::http::StatusCode;
use nodelb_core::explain::reports;
use nodelb_core::output::diff::{COMPARED, DIFFERENCES};
use nodelb_core::output::shape::{Column, Shape};
use nodelb_core::output::table::{Cell, Page, Table};

use super::follow::Feed;
use super::query::{self, ADDRESS, FROM, LIVE, Parameter, Problem, Query, SERVICE, STATUS, TO, TYPE, internal};
use super::state::{AdminState, Now, all_sources, latest, readiness};
use super::{apiservers, diff, health, history, maps, metrics, openapi, settings, sources, status, tables, trace};
use crate::status::Check;

/// A status and what to say, or why there is nothing to say.
pub(super) type Answer = Result<(StatusCode, Content), Problem>;

/// What an answer says, before it is rendered.
pub(super) enum Content {
    /// Tables, as text or JSON.
    Page(Page),
    /// What has a form of its own.
    Own(String),
}

impl<T: Into<Page>> From<T> for Content {
    fn from(page: T) -> Self {
        Self::Page(page.into())
    }
}

/// One question that can be asked.
pub(super) struct Route {
    /// Where.
    pub(super) path: &'static str,
    /// What the query string may say besides the form of tables.
    pub(super) parameters: &'static [&'static Parameter],
    /// What the answer is about, for people.
    pub(super) shows: &'static str,
    /// What the answer is made of.
    pub(super) form: Form,
    /// What it takes to make it.
    pub(super) cost: Cost,
    /// Makes it.
    pub(super) answer: fn(&AdminState, &Query, Now) -> Answer,
}

/// What it takes to make an answer. All but the first are made beside the workers, few at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// Nothing worth a word.
    Nothing,
    /// Little, whatever there is.
    Little,
    /// Little if it is about one service; any other filter looks at every row.
    ByService,
    /// Little if it is about one service or one address.
    ByPlace,
    /// All of a table, or of the maps, whatever is asked for.
    Whole,
}

/// What an answer is made of.
pub(super) enum Form {
    /// These tables, as text or JSON.
    Tables(&'static [&'static Shape]),
    /// The same, and `?watch` goes on with what this feed tells.
    Followed(&'static [&'static Shape], fn(&AdminState, &Query) -> Feed),
    /// A table that says whether something is so: 200, or 503 if it is not.
    Verdict(&'static [&'static Shape]),
    /// Something of this content type, whatever form is asked for.
    Own(&'static str),
}

/// Among whom a question waits for its turn: one of each kind is answered at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Whoever asks for everything.
    Whole,
    /// Whoever asks for little.
    Narrow,
    /// Whoever has an apiserver asked, which takes seconds.
    Live,
}

impl Route {
    /// `None` for what is answered at once.
    pub(super) fn turn(&self, query: &Query) -> Option<Turn> {
        match self.cost {
            Cost::Nothing => None,
            _ if query.live => Some(Turn::Live),
            Cost::Little => Some(Turn::Narrow),
            Cost::ByService if query.filter.service.is_some() => Some(Turn::Narrow),
            Cost::ByPlace if query.filter.service.is_some() || query.filter.address.is_some() => Some(Turn::Narrow),
            Cost::ByService | Cost::ByPlace | Cost::Whole => Some(Turn::Whole),
        }
    }

    /// Everything the query string may say.
    pub(super) fn takes(&self) -> Vec<&'static Parameter> {
        let watch: &[&Parameter] = if matches!(self.form, Form::Followed(..)) { &[&query::WATCH] } else { &[] };
        let form: &[&Parameter] = if matches!(self.form, Form::Own(_)) { &[] } else { &query::FORM };
        [self.parameters, watch, form].concat()
    }
}

const PLACES: &[&Parameter] = &[&SERVICE, &ADDRESS];
const ROWS: &[&Parameter] = &[&SERVICE, &ADDRESS, &TYPE, &STATUS];

static LIST: Shape<[Column; 3]> =
    Shape { name: "routes", columns: [Column::name("Route"), Column::text("Shows"), Column::list("Parameters")] };

/// Every route, in the order in which they are listed.
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
        shows: "on one screen, how the daemon and the node stand",
        form: Form::Tables(&[&status::STATUS, &status::TROUBLE, &status::CHANGES]),
        cost: Cost::Whole,
        answer: |state, _, now| ok(status::status(state, now)),
    },
    Route {
        path: "/services",
        parameters: ROWS,
        shows: "every service, where it was read and how it stands",
        form: Form::Tables(&[&tables::SERVICES]),
        cost: Cost::ByService,
        answer: |state, query, _| ok(tables::services(reports::services(&latest(&state.snapshot), &query.filter))),
    },
    Route {
        path: "/frontends",
        parameters: ROWS,
        shows: "every address a client may dial, whom it reaches and since when",
        form: Form::Followed(&[&tables::FRONTENDS], Feed::frontends),
        cost: Cost::ByPlace,
        answer: |state, query, now| {
            ok(tables::frontends(reports::frontends(&latest(&state.snapshot), &query.filter), now.moment))
        },
    },
    Route {
        path: "/backends",
        parameters: PLACES,
        shows: "every backend of every service, and whether it may be chosen",
        form: Form::Tables(&[&tables::BACKENDS]),
        cost: Cost::ByService,
        answer: |state, query, _| ok(tables::backends(reports::backends(&latest(&state.snapshot), &query.filter))),
    },
    Route {
        path: "/maps",
        parameters: PLACES,
        shows: "what the kernel holds now, read back from it, and how full each map is",
        form: Form::Tables(&[&maps::FRONTENDS, &maps::SERVICES, &maps::SLOTS, &maps::NODE_ADDRESSES, &maps::LIMITS]),
        cost: Cost::Whole,
        answer: read_maps,
    },
    Route {
        path: "/history",
        parameters: PLACES,
        shows: "what became of services and their backends: when, by whose hand, and when the kernel had it",
        form: Form::Followed(&[&history::HISTORY], Feed::history),
        cost: Cost::ByPlace,
        answer: |state, query, now| {
            let (history, snapshot) = (latest(&state.history), latest(&state.snapshot));
            ok(history::history(&history::select(&history, &snapshot, &query.filter), now.unix))
        },
    },
    Route {
        path: "/diff",
        parameters: &[&SERVICE, &ADDRESS, &LIVE],
        shows: "where source, memory and kernel differ, with the likely cause",
        form: Form::Tables(&[&DIFFERENCES, &COMPARED]),
        cost: Cost::Whole,
        answer: |state, query, now| ok(diff::diff(state, query, now)?),
    },
    Route {
        path: "/trace",
        parameters: &[&TO, &FROM],
        shows: "what happens to a connection to an address, and why",
        form: Form::Tables(&[&trace::VERDICT, &trace::TRACE, &trace::BACKENDS]),
        cost: Cost::Little,
        answer: |state, query, now| ok(trace::trace(&latest(&state.snapshot), query, now)?),
    },
    Route {
        path: "/sources",
        parameters: &[],
        shows: "every place services are read from, and what is wrong with it",
        form: Form::Tables(&[&sources::SOURCES]),
        cost: Cost::Whole,
        answer: |state, _, now| ok(sources::sources(&all_sources(state), now.unix)),
    },
    Route {
        path: "/apiservers",
        parameters: &[],
        shows: "every address an apiserver may have, which one is in use and why",
        form: Form::Tables(&[&apiservers::APISERVERS, &apiservers::SESSION]),
        cost: Cost::Nothing,
        answer: |state, _, now| ok(apiservers::apiservers(&latest(&state.apiservers), now)),
    },
    Route {
        path: "/config",
        parameters: &[],
        shows: "the configuration in effect, every key with its value and where that is from",
        form: Form::Tables(&[&settings::CONFIG]),
        cost: Cost::Nothing,
        answer: |state, _, _| ok(settings::config(&latest(&state.config))),
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
        shows: "whether the daemon does its work (200 or 503)",
        form: Form::Verdict(&[&health::HEALTHZ]),
        cost: Cost::Nothing,
        answer: |state, _, now| checks(&health::HEALTHZ, &[latest(&state.health).alive(now.moment)]),
    },
    Route {
        path: "/readyz",
        parameters: &[],
        shows: "whether this node's connections are translated (200, or 503 with the reasons)",
        form: Form::Verdict(&[&health::READYZ]),
        cost: Cost::Nothing,
        answer: |state, _, now| checks(&health::READYZ, &readiness(state, now)),
    },
    Route {
        path: "/metrics",
        parameters: &[],
        shows: "figures for Prometheus, in OpenMetrics text",
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

fn checks(shape: &'static Shape<[Column; 3]>, checks: &[Check]) -> Answer {
    let all_passed = checks.iter().all(|check| check.passed);
    let status = if all_passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, health::checks(shape, checks).into()))
}

fn list_routes(_: &AdminState, _: &Query, _: Now) -> Answer {
    let cells = |route: &Route| [Cell::text(route.path), Cell::text(route.shows), Cell::list(route.takes())];
    ok(Table::new(&LIST, ROUTES.iter().map(cells)))
}

fn read_maps(state: &AdminState, query: &Query, now: Now) -> Answer {
    let held = maps::held(state)?;
    let snapshot = latest(&state.snapshot);
    let usage = maps::usage(&held.state, state.limits, &state.reality, now.moment);
    ok(maps::maps(&held.state, &|id| snapshot.service_of(id), usage, &query.filter))
}

#[cfg(test)]
#[path = "tests/routes.rs"]
mod tests;
