//! Rows about the daemon itself: what its sources read, the apiservers, the checks, the configuration, the routes.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use strum::VariantNames;

use super::answer::{Answer, Part, answers};
use super::row::rows;
use crate::check::Check;
use crate::output::table::{Style, sections};
use crate::time::Time;
use nodelb_core::source_report::{SourceReport, SourceState};

const RESULTS: [&str; 2] = ["ok", "failed"];
const NAME_STATES: [&str; 4] = ["Ok", "Held", "Empty", "Pending"];
const ORIGINS: [&str; 2] = ["default", "file"];

rows! {
    /// A place that a source reads.
    SourceRow in "sources" {
        /// The source.
        source: String = name("Source").spare(),
        /// The file, the directory, or the kind of objects, such as `services`; with the namespace, and the name of a
        /// single service, if nodelb reads only some: `services/shop`.
        path: String = name("Path"),
        /// Whether nodelb serves the current content of the place.
        state: SourceState = one_of("State", SourceState::VARIANTS),
        /// The number of services read from it.
        services: u64 = number("Services"),
        /// The number of slices read from it.
        slices: u64 = number("Slices").spare(),
        /// The hash of what is served of the file, or of all files in the directory: the same on every host with the same
        /// files.
        content: Option<String> = text("Content").spare(),
        /// The time since which it is in this state with these problems.
        since: Time = age("Since"),
        /// The content that was ignored on purpose.
        notices: Vec<String> = texts("Notices"),
        /// The problems, each with line and remedy.
        problems: Vec<String> = texts("Problems"),
    }

    /// A question to DNS servers, because backends in service files have names.
    NameRow in "names" {
        /// The name.
        name: String = name("Name"),
        /// The type of the records: A, AAAA or SRV.
        records: String = text("Type"),
        /// Whether the records in use are current: `Ok`, `Held`, `Empty` or `Pending`.
        state: String = one_of("State", &NAME_STATES),
        /// The number of records in use.
        count: u64 = number("Records"),
        /// The TTL of the last answer in seconds, as the server sent it.
        ttl: Option<u64> = number("TTL").spare(),
        /// The time until the next query in seconds; absent while a query waits for its answer.
        next: Option<u64> = number("Next").spare(),
        /// The server of the last answer.
        server: Option<String> = text("Server").spare(),
        /// The time since which the state is the same.
        since: Time = age("Since"),
        /// The services with such a backend.
        services: Vec<String> = list("Services"),
        /// Why the records are not current, or which addresses are left out.
        error: Option<String> = text("Error"),
    }

    /// A known apiserver address.
    ApiserverRow in "apiservers" {
        /// The address.
        address: String = name("Address"),
        /// Where the address comes from.
        from: String = text("From").spare(),
        /// The state, such as `Healthy`.
        state: String = text("State"),
        /// The time since which it is in this state.
        since: Time = age("Since"),
        /// Whether the session in use leads to this address.
        in_use: bool = flag("In-Use"),
        /// The time when it last worked; absent if it never has.
        worked: Option<Time> = age("Worked").spare(),
        /// The time of the latest error.
        failed: Option<Time> = age("Failed").spare(),
        /// The latest error, unless the address has worked since.
        error: Option<String> = text("Error"),
        /// The reason why the address is in use or not.
        why: String = text("Why"),
    }

    /// The session in use.
    SessionRow in "session" {
        /// The address of the apiserver; absent without a session.
        apiserver: Option<String> = name("Apiserver"),
        /// The time of the last response; absent before the first one.
        last_response: Option<Time> = age("Last-Response"),
        /// The number of times that the address in use has changed.
        switches: u64 = number("Switches"),
        /// The reason why nodelb cannot try to connect.
        problem: Option<String> = text("Problem"),
    }

    /// A check.
    CheckRow in "checks" {
        /// The name.
        check: String = text("Check"),
        /// The result.
        result: String = one_of("Result", &RESULTS),
        /// The details; for a failed check, the reason and what to do.
        detail: String = text("Detail"),
    }

    /// A configuration key.
    ConfigRow in "config" {
        /// The name, such as `datapath.max-slots`.
        key: String = name("Key"),
        /// Whether the configuration file sets the value.
        from: String = one_of("From", &ORIGINS),
        /// The value.
        #[schemars(schema_with = "any_value")]
        value: serde_json::Value = text("Value"),
    }

    /// A route of the admin API.
    RouteRow in "routes" {
        /// The path.
        route: String = name("Route"),
        /// The description of the response.
        shows: String = text("Shows"),
        /// The parameters of the query string.
        parameters: Vec<String> = list("Parameters"),
    }
}

/// The schema of a configuration value.
fn any_value(_: &mut SchemaGenerator) -> Schema {
    let types = ["array", "boolean", "integer", "number", "object", "string"];
    json_schema!({
        "type": types,
        "items": { "type": types, "items": true, "additionalProperties": true },
        "additionalProperties": true,
    })
}

answers! {
    /// The response of `/sources`.
    Sources {
        /// The places: files first, then their DNS names, then Kubernetes.
        sources: Vec<SourceRow>,
    }

    /// The response of `/dns`.
    Names {
        /// The questions, by name and type.
        names: Vec<NameRow>,
    }

    /// The response of `/config`.
    ConfigAnswer {
        /// The keys in the order of `config.example.toml`.
        config: Vec<ConfigRow>,
    }

    /// The response of `/readyz`.
    Readyz {
        /// The checks of readiness.
        readyz: Vec<CheckRow>,
    }

    /// The response of `/`.
    Routes {
        /// Every route.
        routes: Vec<RouteRow>,
    }
}

/// The response of `/healthz`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Healthz {
    /// The checks of liveness.
    pub healthz: Vec<CheckRow>,
    /// Whether text shows the checks also if all have passed.
    #[serde(skip)]
    pub is_verbose: bool,
}

impl Answer for Healthz {
    /// `ok`, as in Kubernetes, or the checks.
    fn text(&self, now: Time, style: &Style) -> String {
        let [ok, _] = RESULTS;
        match self.is_verbose || self.healthz.iter().any(|check| check.result != ok) {
            true => self.healthz.table(now, style).to_text(),
            false => format!("{ok}\n"),
        }
    }
}

/// The response of `/apiservers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Apiservers {
    /// The addresses in order of preference.
    pub apiservers: Vec<ApiserverRow>,
    /// The session in use; absent if Kubernetes is not configured.
    pub session: Option<SessionRow>,
}

impl Answer for Apiservers {
    fn text(&self, now: Time, style: &Style) -> String {
        let Some(session) = &self.session else {
            return "Kubernetes is not configured (section [kubernetes] of nodelb.toml).\n".into();
        };
        sections(&[self.apiservers.table(now, style), session.table(now, style)])
    }
}

impl From<&SourceReport> for SourceRow {
    fn from(report: &SourceReport) -> Self {
        Self {
            source: report.source.to_string(),
            path: report.path.clone(),
            state: report.state,
            services: report.services as u64,
            slices: report.slices as u64,
            content: report.content_text(),
            since: Time::from_seconds(report.since),
            notices: report.notices.clone(),
            problems: report.problems.clone(),
        }
    }
}

impl From<&Check> for CheckRow {
    fn from(check: &Check) -> Self {
        let [ok, failed] = RESULTS;
        let result = if check.passed { ok } else { failed };
        Self { check: check.name.clone(), result: result.into(), detail: check.detail.clone() }
    }
}

impl ConfigRow {
    pub fn new(key: String, value: serde_json::Value, is_default: bool) -> Self {
        let [default, file] = ORIGINS;
        Self { key, from: if is_default { default } else { file }.into(), value }
    }
}
