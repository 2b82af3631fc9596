//! What the resolver reports: a row for each question, the row of `/sources`, and counts. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::Question;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::table::Facts;
use nodelb_core::text::listed;

use super::answer::{Answer, Ttl};
use super::ask::Failure;
use super::entry::Entry;
use super::names::Names;

/// The maximum number of problems in the row of `/sources`; `/dns` has the others.
const SHOWN: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsReport {
    pub names: Vec<NameReport>,
    pub queries: BTreeMap<QueryResult, u64>,
    /// The row of `/sources`; `None` if no backend has a name.
    pub source: Option<SourceReport>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameReport {
    pub question: Question,
    pub state: NameState,
    pub records: usize,
    pub server: Option<Arc<str>>,
    /// The TTL of the last answer in seconds, as the server sent it.
    pub ttl: Option<Ttl>,
    /// The time of the next query; `None` while a query waits for its answer.
    pub due: Option<Moment>,
    /// The time since which the state is the same.
    pub since: Moment,
    pub services: Vec<ServiceName>,
    /// Why the records are not current, or which addresses are left out.
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter, strum::VariantNames)]
pub enum NameState {
    Ok,
    /// The last known ones are in use.
    Held,
    Empty,
    /// No server has answered yet.
    Pending,
}

impl NameState {
    fn of(entry: &Entry) -> Self {
        match (entry.is_held(), &entry.known) {
            (true, _) => Self::Held,
            (false, Some(_)) if entry.was_answered => Self::Ok,
            (false, None) if entry.was_answered => Self::Empty,
            (false, _) => Self::Pending,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum QueryResult {
    Records,
    /// No records of the type.
    Empty,
    NoSuchName,
    /// An error code, such as SERVFAIL, or no connection.
    Failed,
    Timeout,
}

impl QueryResult {
    pub(super) fn of_answer(answer: &Answer) -> Self {
        match answer {
            Answer::Records(..) | Answer::Alias(..) => Self::Records,
            Answer::Empty(_) => Self::Empty,
            Answer::NoSuchName(_) => Self::NoSuchName,
        }
    }

    pub(super) fn of_failure(failure: &Failure) -> Self {
        if failure.is_timeout { Self::Timeout } else { Self::Failed }
    }
}

/// The report about these names. `refused` has the addresses that are left out, and `server_problems` is what is
/// wrong with the list of servers; `now` is the time on both clocks; `before` is the last row of `/sources`.
pub(super) fn report(
    names: &Names,
    (refused, server_problems): (&Facts, &[String]),
    queries: BTreeMap<QueryResult, u64>,
    now: (Moment, u64),
    before: Option<&SourceReport>,
) -> DnsReport {
    let rows: Vec<NameReport> =
        names.entries().map(|(question, entry)| name_report(question, entry, names, refused)).collect();
    let source = (!names.wanted().is_empty()).then(|| source((names, server_problems), &rows, now.1, before));
    DnsReport { names: rows, queries, source }
}

fn name_report(question: &Question, entry: &Entry, names: &Names, refused: &Facts) -> NameReport {
    let slices = &entry.slices;
    let mut services: Vec<ServiceName> =
        slices.iter().filter_map(|slice| Some(names.wanted().get(slice)?.service.clone())).collect();
    services.dedup();
    let left_out = || slices.iter().find_map(|slice| refused.left_out.get(slice).map(ToString::to_string));
    NameReport {
        question: question.clone(),
        state: NameState::of(entry),
        records: entry.known.as_ref().map_or(0, |known| known.records.len()),
        server: entry.server.clone().or_else(|| entry.known.as_ref().map(|known| Arc::clone(&known.server))),
        ttl: entry.ttl,
        due: (!entry.is_open).then_some(entry.due),
        since: entry.since,
        services,
        problem: entry.problem.as_deref().map(str::to_owned).or_else(left_out),
    }
}

/// The row of `/sources`. A name without records of one family is usual, so it is no problem.
fn source(
    (names, server_problems): (&Names, &[String]),
    rows: &[NameReport],
    unix: u64,
    before: Option<&SourceReport>,
) -> SourceReport {
    let held = rows.iter().filter(|row| row.state == NameState::Held).count();
    // Some servers answer for one family of addresses only.
    let answered: BTreeSet<_> = rows.iter().filter(|row| row.records > 0).map(|row| &row.question.name).collect();
    let has_no_answer = |row: &NameReport| row.state == NameState::Pending && row.problem.is_some();
    let is_unanswered = |row: &NameReport| has_no_answer(row) && !answered.contains(&row.question.name);
    let is_failing = rows.iter().any(|row| row.state == NameState::Held || is_unanswered(row));
    let has_none = rows.iter().all(|row| row.state == NameState::Empty || is_unanswered(row));
    let state = match (has_none, is_failing) {
        (true, _) => SourceState::Error,
        (false, true) => SourceState::LastGood,
        (false, false) => SourceState::Ok,
    };
    let is_usual = |row: &NameReport| row.state == NameState::Empty || has_no_answer(row) && !is_unanswered(row);
    let is_problem = |row: &&NameReport| !is_usual(row) || has_none;
    let problem = |row: &NameReport| Some(format!("{}: {}", row.question, row.problem.as_deref()?));
    let of_names = rows.iter().filter(is_problem).filter_map(problem);
    let mut problems: Vec<String> = server_problems.iter().cloned().chain(of_names).collect();
    let more = problems.len().saturating_sub(SHOWN);
    problems.truncate(SHOWN);
    if more > 0 {
        problems.push(format!("{more} more; see `nodelb dns`"));
    }
    let services: BTreeSet<&ServiceName> = names.wanted().values().map(|named| &named.service).collect();
    let notice = (held > 0).then(|| {
        let names = rows.iter().filter(|row| row.state == NameState::Held).map(|row| &row.question);
        format!("{held} of {} names held: {}", rows.len(), listed(names, 3))
    });
    let since = before.filter(|before| (before.state, &before.problems) == (state, &problems)).map(|row| row.since);
    SourceReport {
        source: Source::Files,
        path: "DNS names".into(),
        kind: Some("dns"),
        state,
        services: services.len(),
        slices: names.wanted().len(),
        content: None,
        notices: notice.into_iter().collect(),
        problems,
        since: since.unwrap_or(unix),
        last_received: None,
    }
}
