//! Rows about the kernel: the content of the maps, differences, and the path of a connection.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantNames;

use super::answer::{Answer, Part, answers};
use super::row::rows;
use super::services::HistoryRow;
use crate::explain::explanation::{ConnectResult, ViewKind};
use crate::output::table::{Style, sections};
use crate::output::wrap::{printable, push_words};
use crate::time::Time;
use nodelb_core::compile::select::Choice;
use nodelb_core::difference::{Between, Difference};
use nodelb_core::model::service::BackendState;

rows! {
    /// The service and the views that an address leads to.
    MapFrontendRow in "frontends" {
        /// The address.
        address: String = name("Address"),
        /// The id of the service port.
        id: u64 = number("Id").spare(),
        /// The service port; absent for an unknown id.
        service: Option<String> = name("Service"),
        /// The view for clients on this node.
        inside: String = one_of("Inside", ViewKind::VARIANTS).spare(),
        /// The view for clients outside of it.
        outside: String = one_of("Outside", ViewKind::VARIANTS).spare(),
    }

    /// The sizes of a service port's views.
    MapServiceRow in "services" {
        /// The id of the service port.
        id: u64 = number("Id").spare(),
        /// The service port; absent for an unknown id.
        service: Option<String> = name("Service"),
        /// The number of slots of the view `cluster`.
        cluster: u64 = number("Cluster"),
        /// The number of slots of the view `local`.
        local: u64 = number("Local"),
        /// Whether it has a backend, on this node or elsewhere.
        has_backends: bool = flag("Has-Backends").spare(),
        /// The session affinity timeout in seconds; absent without affinity.
        affinity: Option<u64> = number("Affinity").spare(),
        /// How packets of clients outside reach backends on other machines: `direct` or `tunnel`; absent if translated.
        forward: Option<String> = name("Forward").spare(),
    }

    /// A backend of a view.
    MapSlotRow in "slots" {
        /// The id of the service port.
        id: u64 = number("Id").spare(),
        /// The service port; absent for an unknown id.
        service: Option<String> = name("Service"),
        /// The view.
        view: String = one_of("View", ViewKind::VARIANTS),
        /// The backend.
        backend: String = name("Backend"),
        /// The id of the backend.
        backend_id: u64 = number("Backend-Id").spare(),
        /// The number of its slots.
        slots: u64 = number("Slots"),
    }

    /// An address on which NodePorts are answered.
    NodeAddressRow in "node_addresses" {
        /// The address.
        address: String = name("Address"),
    }

    /// The usage of a map.
    LimitRow in "limits" {
        /// The name of the map.
        map: String = name("Map"),
        /// The number of entries in use, of affinity, connections and half_open at the last count; absent if it is not known.
        used: Option<u64> = number("Used"),
        /// The maximum number of entries.
        limit: u64 = number("Limit"),
        /// The configuration key that sets the maximum.
        config_key: String = name("Config-Key"),
    }

    /// A difference between source, memory and kernel.
    DifferenceRow in "differences" {
        /// The two sides that disagree.
        between: String = one_of("Between", Between::VARIANTS),
        /// The subject: an address, a service port or a hook.
        what: String = name("What"),
        /// The service concerned.
        service: Option<String> = name("Service"),
        /// The value according to the source.
        source: Option<String> = text("Source"),
        /// The desired value.
        memory: Option<String> = text("Memory"),
        /// The value in the maps, or the result of a connection.
        kernel: Option<String> = text("Kernel"),
        /// The most likely cause.
        likely_cause: String = text("Likely-Cause"),
        /// nodelb's action, or what the reader can do.
        what_happens: String = text("What-Happens"),
    }

    /// What was compared.
    ComparedRow in "compared" {
        /// The number of services.
        services: u64 = number("Services"),
        /// The number of addresses.
        frontends: u64 = number("Frontends"),
    }

    /// What happens to a connection.
    VerdictRow in "verdict" {
        /// The destination.
        to: String = name("To"),
        /// The client.
        from: String = text("From"),
        /// The result.
        verdict: String = one_of("Verdict", ConnectResult::VARIANTS),
        /// The error that the client gets; absent unless the connection is refused.
        errno: Option<String> = text("Errno"),
        /// The service.
        service: Option<String> = name("Service"),
        /// The port name; absent for an unnamed port.
        port: Option<String> = name("Port").spare(),
        /// The address of the service that matched.
        frontend: Option<String> = name("Frontend").spare(),
        /// The view from which a backend is chosen.
        view: Option<String> = one_of("View", ViewKind::VARIANTS).spare(),
        /// The number of backends in it; absent unless the connection is forwarded.
        backends: Option<u64> = number("Backends"),
        /// Whether the kernel has the address.
        in_kernel: Option<bool> = flag("In-Kernel").spare(),
    }

    /// A step of a connection.
    StepRow in "trace" {
        /// The name of the step.
        step: String = name("Step"),
        /// What was found.
        finding: String = text("Finding"),
    }

    /// A backend of the service that a connection leads to.
    TraceBackendRow in "backends" {
        /// The transport address.
        address: String = name("Address"),
        /// The state according to the source and nodelb's own health checks; absent if unknown, which happens only
        /// without the daemon.
        state: Option<BackendState> = one_of("State", BackendState::VARIANTS),
        /// Whether new connections can reach the backend, and if not, the reason.
        choice: Choice = one_of("Choice", Choice::VARIANTS),
        /// The share of new connections.
        share: Option<String> = text("Share"),
        /// The node; absent if unknown.
        node: Option<String> = text("Node").spare(),
        /// The zone; absent if unknown.
        zone: Option<String> = text("Zone").spare(),
        /// The file or object that contains the backend.
        origin: Option<String> = text("Origin"),
        /// Why the backend is not used, who drains it until when, or the last error of its health checks.
        reason: Option<String> = text("Reason"),
    }
}

answers! {
    /// The response of `/maps`.
    Maps {
        /// The addresses.
        frontends: Vec<MapFrontendRow>,
        /// The service ports.
        services: Vec<MapServiceRow>,
        /// The backends of each view.
        slots: Vec<MapSlotRow>,
        /// The addresses on which NodePorts are answered.
        node_addresses: Vec<NodeAddressRow>,
        /// The usage of each map.
        limits: Vec<LimitRow>,
    }
}

/// The response of `/trace`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceAnswer {
    /// The result.
    pub verdict: VerdictRow,
    /// The steps, in the order in which they happen.
    pub trace: Vec<StepRow>,
    /// The backends, with the reason for or against each.
    pub backends: Vec<TraceBackendRow>,
    /// If no service has the address: the change with which the last one gave it up.
    pub removed: Option<HistoryRow>,
}

impl Maps {
    /// Whether no entry of a service is shown.
    pub fn has_no_services(&self) -> bool {
        self.frontends.is_empty() && self.services.is_empty() && self.slots.is_empty()
    }
}

impl Answer for TraceAnswer {
    fn text(&self, now: Time, style: &Style) -> String {
        let mut tables = vec![self.verdict.table(now, style), self.trace.table(now, style)];
        if !self.backends.is_empty() {
            tables.push(self.backends.table(now, style));
        }
        sections(&tables)
    }
}

/// The response of `/diff`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffAnswer {
    /// The differences.
    pub differences: Vec<DifferenceRow>,
    /// What was compared.
    pub compared: ComparedRow,
    /// Whether everything was compared, rather than one service or address.
    pub whole: bool,
}

impl Answer for DiffAnswer {
    /// One block for each difference; one line if there are none.
    fn text(&self, _: Time, style: &Style) -> String {
        if self.differences.is_empty() {
            return self.agreement() + "\n";
        }
        let blocks: Vec<String> = self.differences.iter().map(|row| row.block(style)).collect();
        blocks.join("\n")
    }
}

impl DiffAnswer {
    /// The text for the case that there are no differences.
    fn agreement(&self) -> String {
        let about = if self.whole { "" } else { " about what was asked for" };
        let ComparedRow { services, frontends } = self.compared;
        let [services, frontends] = [(services, "service"), (frontends, "frontend")]
            .map(|(number, what)| format!("{number} {what}{}", if number == 1 { "" } else { "s" }));
        format!("source, memory and kernel agree{about}: {services}, {frontends}; compared just now")
    }
}

/// The indentation of the values in a block.
const INDENT: usize = 10;

impl DifferenceRow {
    /// The difference as several lines.
    fn block(&self, style: &Style) -> String {
        let service = self.service.as_deref().map(|service| format!("  {service}")).unwrap_or_default();
        let what = printable(&self.what);
        let taken = what.chars().count() + service.chars().count() + self.between.len() + 4;
        let gap = if taken > style.width.unwrap_or(usize::MAX) { "\n" } else { "" };
        let mut out = format!("{what}{gap}{service}  ({})\n", self.between);
        let values = [
            ("source", self.source.as_deref()),
            ("memory", self.memory.as_deref()),
            ("kernel", self.kernel.as_deref()),
            ("cause", Some(&*self.likely_cause)),
            ("next", Some(&*self.what_happens)),
        ];
        for (name, value) in values.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            out.push_str(&format!("  {name:<width$}", width = INDENT - 2));
            let room = style.width.map_or(usize::MAX, |width| width.saturating_sub(INDENT).max(20));
            push_words(&mut out, &printable(value), (0, room), INDENT);
            out.push('\n');
        }
        out
    }
}

impl From<Difference> for DifferenceRow {
    fn from(row: Difference) -> Self {
        Self {
            between: row.between.to_string(),
            what: row.what,
            service: row.service.map(|service| service.to_string()),
            source: row.source,
            memory: row.memory,
            kernel: row.kernel,
            likely_cause: row.cause,
            what_happens: row.action,
        }
    }
}
