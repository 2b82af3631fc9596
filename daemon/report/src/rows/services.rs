//! Rows about services, their addresses, their backends and their changes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantNames;

use super::answer::{Answer, answers};
use super::row::{Micros, Row, ToCell, rows};
use crate::durations;
use crate::explain::reports::port_text;
use crate::explain::rows::{BackendReport, FrontendReport, OutsideAccess};
use crate::output::schema::{Column, Schema};
use crate::output::table::{Cell, Style, Table};
use crate::time::{Clocks, Time};
use nodelb_core::compile::select::Choice;
use nodelb_core::history::{Kernel, Record, What};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::calendar::utc;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::{BackendState, FrontendKind};
use nodelb_core::state::status::Status;
use nodelb_core::text::{filled, listed, signed};

/// The names of traffic policies in Kubernetes.
const POLICIES: [&str; 2] = ["Cluster", "Local"];

rows! {
    /// A claim of a service to an address.
    FrontendRow in "frontends" {
        /// The address that clients connect to.
        address: L4Addr = name("Address"),
        /// The type of the address, such as `ClusterIP`; absent if unknown: without the daemon, or with the status Kept.
        #[serde(rename = "type")]
        kind: Option<String> = one_of("Type", FrontendKind::VARIANTS).spare(),
        /// The service that claims the address; absent if unknown, as the type.
        service: Option<String> = name("Service"),
        /// The port name; absent for an unnamed port.
        port: Option<String> = name("Port").spare(),
        /// The backends that a client on this node can reach, in address order.
        backends: Vec<L4Addr> = list("Backends"),
        /// Special properties, such as `Affinity=10800s` or `Local`.
        flags: Vec<String> = list("Flags").spare(),
        /// Whether clients outside the node are served, or why not.
        outside: String = exceptions("Outside", OutsideAccess::VARIANTS, &OutsideAccess::USUAL).spare(),
        /// Whether connections reach a backend, and if not, why.
        status: Status = one_of("Status", Status::VARIANTS),
        /// The time since which it has this status; absent if unknown, as the type.
        since: Option<Time> = age("Since"),
        /// Why the status is not OK, with the remedy, and other problems of the address.
        error: Option<String> = text("Error"),
    }

    /// A description of a service by one source.
    ServiceRow in "services" {
        /// The full name, `namespace/name`; absent if unknown, with the status Kept.
        service: Option<String> = name("Service"),
        /// The source that describes the service.
        source: String = name("Source").spare(),
        /// The ports, such as `http=80/TCP`.
        ports: Vec<String> = list("Ports"),
        /// The traffic policy for clients inside the cluster.
        internal_policy: String = one_of("Internal-Policy", &POLICIES).wide(),
        /// The traffic policy for clients outside the cluster.
        external_policy: String = one_of("External-Policy", &POLICIES).wide(),
        /// The session affinity timeout in seconds; absent without affinity.
        affinity: Option<u64> = number("Affinity").wide(),
        /// How packets of clients outside reach backends on other machines: `direct` or `tunnel`; absent if translated.
        forward: Option<String> = name("Forward").wide(),
        /// The number of addresses that the service claims.
        frontends: u64 = number("Frontends").spare(),
        /// Whether clients outside the node are served at any of its addresses, or why not.
        outside: String = exceptions("Outside", OutsideAccess::VARIANTS, &OutsideAccess::USUAL).spare(),
        /// The number of backends.
        backends: u64 = number("Backends"),
        /// The number of backends that new connections can reach.
        selectable: u64 = number("Selectable"),
        /// The worst status of its addresses.
        status: Status = one_of("Status", Status::VARIANTS),
        /// The file or object that describes the service.
        origin: Option<String> = text("Origin").wide(),
        /// The first problem.
        error: Option<String> = text("Error"),
    }

    /// A backend of a service port.
    BackendRow in "backends" {
        /// The transport address of the backend.
        address: L4Addr = name("Address"),
        /// The service; absent if unknown: without the daemon, or from before the start.
        service: Option<String> = name("Service"),
        /// The port name; absent for an unnamed port.
        port: Option<String> = name("Port").spare(),
        /// The state according to the source and nodelb's own health checks; absent if unknown, as the service.
        state: Option<BackendState> = one_of("State", BackendState::VARIANTS),
        /// The share of new connections relative to the other backends.
        weight: u64 = number("Weight").wide(),
        /// The node; absent if unknown.
        node: Option<String> = text("Node").spare(),
        /// The zone; absent if unknown.
        zone: Option<String> = text("Zone").wide(),
        /// Whether new connections can reach the backend, and if not, the reason.
        choice: Choice = one_of("Choice", Choice::VARIANTS),
        /// The file or object that contains the backend.
        origin: Option<String> = text("Origin").wide(),
        /// Why the backend is refused, who drains it until when, or the last error of its health checks.
        reason: Option<String> = text("Reason"),
        /// The result of the last health check; absent if the backend has not been checked.
        check: Option<String> = text("Check").wide(),
        /// The time of the last health check.
        checked: Option<Time> = age("Checked").wide(),
        /// The time that the last health check took.
        latency: Option<Micros> = duration("Latency").wide(),
    }

    /// A change of a service port, or of nodelb itself.
    HistoryRow in "history" {
        /// The sequence number, which increases over restarts.
        sequence: u64 = number("Sequence"),
        /// The time when nodelb received the change.
        time: Time = age("Time"),
        /// The service; absent for a change of nodelb itself.
        service: Option<String> = name("Service"),
        /// The service port, such as `http/TCP/IPv4`.
        port: Option<String> = name("Port"),
        /// The kind of the change.
        what: What = one_of("What", What::VARIANTS),
        /// The object that caused the change.
        object: Option<String> = text("Object"),
        /// The version of the object.
        resource_version: Option<String> = name("Resource-Version"),
        /// The generation of the object.
        generation: Option<u64> = number("Generation"),
        /// The client that wrote the object.
        writer: Option<String> = text("Writer"),
        /// The time when the client wrote it, in RFC 3339.
        written: Option<String> = name("Written"),
        /// The backends that can be selected since the change.
        added: Vec<L4Addr> = list("Added"),
        /// The backends that can no longer be selected.
        removed: Vec<L4Addr> = list("Removed"),
        /// The backends that stay in use although the source removed them.
        held: Vec<L4Addr> = list("Held"),
        /// The backends that nodelb refuses to use.
        refused: Vec<L4Addr> = list("Refused"),
        /// The addresses that the change is about; of a service port, those that it has only since the change.
        frontends: Vec<L4Addr> = list("Frontends"),
        /// The addresses that the service port had until the change.
        withdrawn: Vec<L4Addr> = list("Withdrawn"),
        /// The time from the change of the object to `time`.
        to_nodelb: Option<Micros> = duration("To-Nodelb"),
        /// The time from `time` until the maps contained the change.
        to_kernel: Option<Micros> = duration("To-Kernel"),
        /// Whether the change is in the kernel: `done`, or why not; absent if nothing had to change.
        kernel: Option<String> = text("Kernel"),
        /// The source.
        source: Option<String> = name("Source"),
        /// Further information.
        detail: Option<String> = text("Detail"),
    }
}

answers! {
    /// The response of `/frontends`.
    Frontends {
        /// The claims, by address, then in order of precedence.
        frontends: Vec<FrontendRow>,
    }

    /// The response of `/services`.
    Services {
        /// The services, by name, then source.
        services: Vec<ServiceRow>,
    }

    /// The response of `/backends`.
    Backends {
        /// The backends, by service, port and address.
        backends: Vec<BackendRow>,
    }
}

/// The response of `/history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryAnswer {
    /// The changes, the oldest first.
    pub history: Vec<HistoryRow>,
}

/// Changes are made at the same time if so many milliseconds are between them.
pub(crate) const SAME_TIME: u64 = 1_000;

/// The maximum number of services in a row that has several.
const SHOWN: usize = 3;

/// The end of [`HistoryRow::object`] if the object was removed.
const REMOVED: &str = " (removed)";

/// The columns of the short form of a change.
static SHORT: Schema = Schema {
    name: "history",
    columns: &[
        Column::age("Age"),
        Column::name("Service"),
        Column::one_of("Change", What::VARIANTS),
        Column::list("Backends"),
        Column::duration("Applied").spare(),
        Column::text("Cause"),
    ],
};

/// The same with the time of each change.
static SHORT_WITH_TIMES: Schema = Schema {
    name: "history",
    columns: &[
        Column::age("Time"),
        Column::name("Service"),
        Column::one_of("Change", What::VARIANTS),
        Column::list("Backends"),
        Column::duration("Applied").spare(),
        Column::text("Cause"),
    ],
};

impl Answer for HistoryAnswer {
    fn text(&self, now: Time, style: &Style) -> String {
        HistoryRow::table(&self.history, now, style).to_text()
    }
}

impl HistoryRow {
    /// The table of these changes: every column with [`Style::wide`], otherwise the most important ones. In a terminal, what
    /// happens to several services for one cause is one row.
    pub fn table(rows: &[Self], now: Time, style: &Style) -> Table {
        let short = if style.zone.is_some() { &SHORT_WITH_TIMES } else { &SHORT };
        let mut table = Table::new(if style.wide { Self::schema() } else { short }, style);
        if style.wide || style.width.is_none() {
            rows.iter().for_each(|row| table.push(&row.shown(now, style)));
        } else {
            joined(rows).iter().for_each(|joined| table.push(&joined.cells(now)));
        }
        table.or_text("No changes found.".into())
    }

    /// Whether the same has happened at the same time.
    fn is_same(&self, other: &Self) -> bool {
        fn lists(row: &HistoryRow) -> [&[L4Addr]; 6] {
            [&row.added, &row.removed, &row.held, &row.refused, &row.frontends, &row.withdrawn]
        }
        fn cause(row: &HistoryRow) -> [&Option<String>; 5] {
            [&row.object, &row.resource_version, &row.writer, &row.kernel, &row.detail]
        }
        self.what == other.what && lists(self) == lists(other) && cause(self) == cause(other)
    }

    /// The cells of such a table.
    pub fn shown(&self, now: Time, style: &Style) -> Vec<Cell<'_>> {
        if style.wide { self.cells(now) } else { self.short(now).into() }
    }

    /// How the service was removed, or lost the address, such as `its entry in /etc/nodelb/services.d/shop.toml was
    /// removed`; `None` if no cause is recorded.
    pub fn removal(&self) -> Option<String> {
        let object = self.object.as_deref()?;
        let version = self.resource_version.as_ref().map(|version| format!("resourceVersion {version}"));
        let writer = self.writer.as_ref().map(|writer| format!("written by {writer}"));
        let facts: Vec<String> = version.into_iter().chain(writer).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
        Some(match object.strip_suffix(REMOVED) {
            Some(file) if file.starts_with('/') => format!("its entry in {file} was removed"),
            Some(object) => format!("{object} was deleted{facts}"),
            None => format!("{object} changed{facts}"),
        })
    }

    /// The sentence about a service that this change removed, such as `the service shop/web was removed 3s ago: its entry
    /// in /etc/nodelb/services.d/shop.toml was removed`.
    pub fn gone(&self, now: Time) -> String {
        let cause = self.removal().map(|cause| format!(": {cause}")).unwrap_or_default();
        let service = self.service.as_deref().unwrap_or_default();
        format!("the service {service} was removed {} ago{cause}", durations::human(self.time.age(now)))
    }

    pub fn short(&self, now: Time) -> [Cell<'_>; 6] {
        let lists = [('+', &self.added), ('-', &self.removed), ('=', &self.held), ('!', &self.refused)];
        let backends = lists.into_iter().flat_map(|(sign, list)| signed(sign, list)).collect();
        let version = self.resource_version.as_ref().map(|version| format!("rv {version}"));
        let addresses = |list: &[L4Addr]| list.iter().map(L4Addr::to_string).collect::<Vec<_>>().join(", ");
        let frontends = filled(&addresses(&self.frontends)).filter(|_| self.detail.is_none());
        let withdrawn = filled(&addresses(&self.withdrawn)).map(|list| format!("no longer has {list}"));
        let (applied, problem) = match (self.to_kernel, &self.kernel) {
            (Some(Micros(micros)), Some(kernel)) if kernel == "done" => (Cell::Duration(micros), None),
            (_, kernel) => (Cell::None, kernel.clone()),
        };
        let (writer, detail) = (self.writer.clone(), self.detail.clone());
        let parts = [problem, self.object.clone(), version, writer, frontends, withdrawn, detail];
        let cause: Vec<String> = parts.into_iter().flatten().collect();
        [
            Cell::Since { time: self.time, now },
            self.service.to_cell(now),
            self.what.to_cell(now),
            Cell::List(backends),
            applied,
            Cell::Text(cause.join(", ").into()),
        ]
    }
}

/// A change, or the same change of several services.
struct Joined<'r> {
    first: &'r HistoryRow,
    services: Vec<&'r str>,
}

/// Joins the same changes of several services.
fn joined(rows: &[HistoryRow]) -> Vec<Joined<'_>> {
    let mut found: Vec<Joined<'_>> = Vec::new();
    for row in rows {
        let service = row.service.as_deref();
        let is_joined = |it: &&mut Joined<'_>| {
            it.first.is_same(row) && service.is_some_and(|service| !it.services.contains(&service))
        };
        let recent = found.iter_mut().rev().take_while(|it| it.first.time.0.abs_diff(row.time.0) <= SAME_TIME);
        match recent.filter(|_| service.is_some()).find(is_joined) {
            Some(joined) => joined.services.extend(service),
            None => found.push(Joined { first: row, services: service.into_iter().collect() }),
        }
    }
    found
}

impl Joined<'_> {
    fn cells(&self, now: Time) -> [Cell<'_>; 6] {
        let mut cells = self.first.short(now);
        if let [_, _, ..] = &self.services[..] {
            cells[1] = Cell::Text(format!("{} services", self.services.len()).into());
            let cause = match &cells[5] {
                Cell::Text(cause) if !cause.is_empty() => format!("{cause}: "),
                _ => String::new(),
            };
            cells[5] = Cell::Text((cause + &listed(&self.services, SHOWN)).into());
        }
        cells
    }
}

impl FrontendRow {
    pub fn new(report: FrontendReport, clocks: Clocks) -> Self {
        Self {
            address: report.address,
            kind: Some(report.kind.to_string()),
            service: Some(String::from(&report.service)),
            port: filled(&report.port),
            backends: report.backends,
            flags: report.flags,
            outside: report.outside.to_string(),
            status: report.status,
            since: Some(clocks.time_of(report.since)),
            error: report.error,
        }
    }
}

/// The value of the columns `Forward`; `None` if packets are translated.
pub fn direct_return(forward: Forward) -> Option<String> {
    (forward != Forward::Translate).then(|| forward.to_string())
}

/// The last health check of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    pub result: String,
    pub time: Time,
    pub latency: Micros,
}

impl BackendRow {
    #[must_use]
    pub fn with(self, last: CheckResult) -> Self {
        let CheckResult { result, time, latency } = last;
        Self { check: Some(result), checked: Some(time), latency: Some(latency), ..self }
    }
}

impl From<BackendReport> for BackendRow {
    fn from(report: BackendReport) -> Self {
        Self {
            address: report.address,
            service: Some(String::from(&report.service)),
            port: filled(&report.port),
            state: Some(report.state),
            weight: report.weight.into(),
            node: filled(&report.node),
            zone: filled(&report.zone),
            choice: report.choice,
            origin: filled(&report.origin),
            reason: report.reason,
            check: None,
            checked: None,
            latency: None,
        }
    }
}

impl From<&Record> for HistoryRow {
    fn from(record: &Record) -> Self {
        let event = &record.event;
        let origin = &event.cause.origin;
        let object = match (event.cause.is_removed, origin.object.is_empty()) {
            (true, false) => Some(format!("{}{REMOVED}", origin.object)),
            _ => filled(&origin.object),
        };
        Self {
            sequence: record.sequence,
            time: Time(record.at),
            service: event.port.as_ref().map(|port| port.service.to_string()),
            port: event.port.as_deref().map(port_text),
            what: event.what,
            object,
            resource_version: filled(&origin.resource_version),
            generation: (origin.generation > 0).then_some(origin.generation),
            writer: filled(&origin.writer),
            written: origin.written.and_then(utc),
            added: event.added.shown.clone(),
            removed: event.removed.shown.clone(),
            held: event.held.shown.clone(),
            refused: event.refused.shown.clone(),
            frontends: event.frontends.shown.clone(),
            withdrawn: event.withdrawn.shown.clone(),
            to_nodelb: record.to_owner.map(|millis| Micros(millis.saturating_mul(1_000))),
            to_kernel: record.to_kernel.map(Micros),
            kernel: kernel(&event.kernel),
            source: event.source.map(|source| source.to_string()),
            detail: detail(record),
        }
    }
}

/// Whether the change is in the kernel, or why not.
fn kernel(kernel: &Kernel) -> Option<String> {
    match kernel {
        Kernel::Untouched => None,
        Kernel::Done => Some("done".into()),
        Kernel::Deferred => Some("waiting for initial sync".into()),
        Kernel::Failed(error) => Some(error.to_string()),
    }
}

/// Further details, one per item.
fn detail(record: &Record) -> Option<String> {
    let event = &record.event;
    let mut said: Vec<String> = event.detail.iter().map(ToString::to_string).filter(|it| !it.is_empty()).collect();
    let lists = [("added", &event.added), ("removed", &event.removed), ("held", &event.held)];
    let others = [("refused", &event.refused), ("frontends", &event.frontends), ("withdrawn", &event.withdrawn)];
    for (name, list) in lists.into_iter().chain(others).filter(|(_, list)| list.more > 0) {
        said.push(format!("{} {name}", list.more.saturating_add(list.shown.len())));
    }
    if record.is_from_before {
        said.push("before the last start".into());
    }
    filled(&said.join("; "))
}
