//! A route of the admin API: its parameters, the format of its answer, and what that costs.

use axum::http::StatusCode;
use nodelb_report::rows::Rendered;
use nodelb_report::time::Clocks;
use schemars::{Schema, SchemaGenerator};

use super::follow::ChangeStream;
use super::query::{self, Parameter, Problem, Query};
use super::state::AdminState;

/// A status and the content, or the problem.
pub(super) type Answer = Result<(StatusCode, Content), Problem>;

/// The content of an answer before it is rendered.
pub(super) enum Content {
    /// Rows or other data, as text or JSON.
    Data(Box<dyn Rendered>),
    /// Text of this content type.
    Own(&'static str, String),
}

pub(super) struct Route {
    pub(super) path: &'static str,
    /// The parameters in addition to those that format tables.
    pub(super) parameters: &'static [&'static Parameter],
    pub(super) shows: &'static str,
    pub(super) form: Form,
    pub(super) cost: Cost,
    pub(super) answer: fn(&AdminState, &Query, Clocks) -> Answer,
}

/// The cost of an answer. All but the cheapest are produced outside the runtime's workers, few at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
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

/// Describes data for `/openapi.json`.
pub(super) type Describe = fn(&mut SchemaGenerator) -> Schema;

pub(super) enum Form {
    /// Data of this schema, as text or JSON; `?watch` continues with the changes from this feed.
    Followed(Describe, fn(&AdminState, &Query) -> ChangeStream),
    /// Data of this schema, as text or JSON.
    Data(Describe),
    /// As `Followed`, but the changes only over the Unix socket: they contain what other users send.
    Watched(Describe, fn(&AdminState, &Query) -> ChangeStream),
    /// Checks: status 200, or 503 if one of them failed.
    Verdict(Describe),
    /// Text of one of these content types, whatever format is requested.
    Own(&'static [&'static str]),
}

impl Form {
    pub(super) fn feed(&self) -> Option<fn(&AdminState, &Query) -> ChangeStream> {
        match self {
            Self::Followed(_, feed) | Self::Watched(_, feed) => Some(*feed),
            Self::Data(_) | Self::Verdict(_) | Self::Own(_) => None,
        }
    }
}

/// The queue where a request waits for its turn: one request of each kind is answered at a time.
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
        let mut parameters = self.parameters.to_vec();
        match self.form {
            Form::Followed(..) | Form::Watched(..) => parameters.extend([&query::WATCH, &query::FOLLOWED_OUTPUT]),
            Form::Data(_) | Form::Verdict(_) => parameters.push(&query::OUTPUT),
            Form::Own(_) => {}
        }
        parameters
    }
}
