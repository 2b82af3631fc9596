//! A problem, and the reports of the daemon's parts that problems follow from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::earlier::Earlier;
use super::reason::{Reason, ReasonEntry, Severity};
use crate::check::Check;
use crate::explain::summary::Summary;
use crate::time::{Clocks, Time};
use nodelb_core::history::History;
use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::model::ipsec::Policies;
use nodelb_core::model::service::ServiceName;
use nodelb_core::packets::outcomes::{Accepted, Answered, SilentPort};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use nodelb_core::state::entries::{BackendId, ServiceId};

/// How the detail of an event about repaired hooks begins, as opposed to one about entries of maps.
pub const HOOKS: &str = "hooks: ";

/// The window for dropped packets, in milliseconds.
pub(super) const DROPS_WITHIN: u64 = 300_000;

/// The maximum number of names in one line about the node.
pub(super) const SHOWN: usize = 4;

/// A table counts as nearly full from this usage, in percent.
const TABLE_PERCENT: u64 = 90;

/// What a problem of a service has in common with those of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedCause {
    pub(super) of: Shared,
    /// What is wrong, without names of services.
    pub(super) what: String,
    /// The command that shows the services, without the address of hosts.
    pub(super) command: &'static str,
}

/// What services share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shared {
    /// The hosts that they have backends on, or the address that they claim; none if they are not known.
    Hosts(BTreeSet<Addr>),
    /// A part of the node, such as the names that it asks DNS servers for.
    Part(&'static str),
}

/// A problem: what is wrong with which object, since when, why, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The kind of the problem.
    pub reason: Reason,
    /// The service, file, address or part of the daemon that has the problem.
    pub object: String,
    /// The time since which it has it; `None` if that is not known.
    pub since: Option<Time>,
    /// What is wrong and why, in one line.
    pub cause: String,
    /// The command that shows more.
    pub command: String,
    /// Whether the node is not ready because of it.
    pub blocks_readiness: bool,
    /// The services, if several have the problem for the same cause: `object` is the host, the address or the part of the
    /// node that they share.
    #[serde(default)]
    pub services: Vec<String>,
    /// What it may have in common with the problems of other services.
    #[serde(skip)]
    pub(crate) shared: Option<SharedCause>,
}

impl Problem {
    pub(super) fn new(reason: Reason, object: impl Into<String>, cause: impl Into<String>) -> Self {
        let object = object.into();
        let ReasonEntry { severity, command, .. } = *reason.entry();
        let command = command.replace("{}", &object);
        let (cause, services) = (cause.into(), Vec::new());
        Self { severity, reason, object, since: None, cause, command, blocks_readiness: false, services, shared: None }
    }

    #[must_use]
    pub fn severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    pub(super) fn of_services(self, services: &BTreeSet<ServiceName>) -> Self {
        Self { services: services.iter().map(ToString::to_string).collect(), ..self }
    }

    pub(super) fn shared(self, shared: Option<SharedCause>) -> Self {
        Self { shared, ..self }
    }

    /// Whether the service has the problem.
    pub fn is_of(&self, service: &str) -> bool {
        self.object == service || self.services.iter().any(|it| it == service)
    }

    pub(super) fn since(self, since: Option<Time>) -> Self {
        Self { since, ..self }
    }
}

/// The apiservers, as far as they matter for problems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiserverState {
    /// The address in use; `None` if no apiserver is in use.
    pub in_use: Option<String>,
    /// The time of the last response; `None` before the first one.
    pub last_response: Option<Time>,
    /// When the last connection to one ended; `None` while there is one, and before the first one.
    pub lost: Option<Time>,
    /// Why no apiserver can be used, such as a kubeconfig that cannot be read, or the last error of an address.
    pub problem: Option<String>,
    /// Why the connection in use still has the previous credentials, and since when.
    pub not_renewed: Option<(Time, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableUsage {
    pub name: &'static str,
    /// The number of entries in use; `None` if it is not known.
    pub used: Option<u64>,
    pub limit: u64,
    /// The configuration key that sets the maximum.
    pub key: &'static str,
    /// Whether the kernel evicts old entries when the map is full. Then a full map is no problem.
    pub is_cache: bool,
    /// Since when it is nearly full.
    pub full_since: Option<Time>,
}

impl TableUsage {
    /// Whether so many entries are in use that there may soon be no room for others.
    pub fn is_nearly_full(&self) -> bool {
        !self.is_cache && self.used.is_some_and(|used| used * 100 > self.limit * TABLE_PERCENT)
    }
}

/// Packets of clients outside the node with the same fate, since the start of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedPackets {
    pub reason: &'static str,
    /// What the programs did with them, as `nodelb drops` says it.
    pub verdict: &'static str,
    pub packets: u64,
    pub first: Time,
    pub last: Time,
}

/// Sysctls because of which the kernel does not forward packets of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotForwarding {
    pub family: Family,
    /// Such as `net.ipv4.ip_forward is 0`.
    pub settings: Vec<String>,
    /// Whether no uplink forwards them.
    pub is_everywhere: bool,
}

/// A chain of a firewall on this node that drops forwarded packets unless a rule accepts them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppingChain {
    /// Such as `the chain FORWARD of the table filter`.
    pub name: String,
    /// The family of the packets that it drops; `None` for both.
    pub family: Option<Family>,
}

impl DroppingChain {
    pub fn drops(&self, family: Family) -> bool {
        self.family.is_none_or(|own| own == family)
    }
}

/// What a firewall on this node may keep from clients outside of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    pub chains: Vec<DroppingChain>,
    /// The backends of service ports for clients outside the node that their packets reach through these chains.
    pub behind: BTreeMap<ServiceId, BTreeSet<BackendId>>,
}

/// What is on the ways of packets of clients outside the node to backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    pub firewall: Firewall,
    /// Devices without programs that lead to a router, with the service ports that have backends behind it.
    pub gateways: BTreeMap<Arc<str>, BTreeSet<ServiceId>>,
}

/// What remains of reloads of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    /// The keys that changed and wait for a restart, and the time since which some do.
    pub restart: Option<(Time, Vec<String>)>,
    /// Why the file was refused, if it was, and the time of the first reload that did.
    pub refused: Option<(Time, String)>,
}

impl Reloads {
    pub fn applied(&self, now: Time, restart_keys: Vec<String>) -> Self {
        let since = self.restart.as_ref().map_or(now, |(since, _)| *since);
        Self { restart: (!restart_keys.is_empty()).then_some((since, restart_keys)), refused: None }
    }

    pub fn refused(&self, now: Time, why: String) -> Self {
        let since = self.refused.as_ref().map_or(now, |(since, _)| *since);
        Self { refused: Some((since, why)), restart: self.restart.clone() }
    }
}

/// Why new connections of clients outside the node are not translated, unless the configuration turns that off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslated {
    pub reason: String,
    /// Whether existing connections are.
    pub is_draining: bool,
    /// Whether that concerns only services of Kubernetes.
    pub is_of_kubernetes: bool,
}

/// What the daemon's parts report.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub clocks: Clocks,
    pub checks: Vec<Check>,
    pub snapshot: Arc<Snapshot>,
    pub summary: Arc<Summary>,
    pub history: Arc<History>,
    /// The places that sources read.
    pub sources: Vec<Arc<SourceReport>>,
    /// The apiservers; `None` if Kubernetes is not configured.
    pub apiserver: Option<ApiserverState>,
    /// Whether the maps are in memory, so that nothing is translated.
    pub is_in_memory: bool,
    pub tables: Vec<TableUsage>,
    /// Whether the process that closes stale sockets has stopped.
    pub is_reaper_down: bool,
    /// The number of open file descriptors, and its limit.
    pub open_files: Option<(u64, u64)>,
    pub reloads: Arc<Reloads>,
    /// The files of the state directory that cannot be written: since when, and what follows.
    pub unwritten: Vec<(Time, String)>,
    /// The files of the state directory that have not been read yet: since when, and what follows.
    pub unread: Vec<(Time, String)>,
    /// The addresses of `admin.listen` that cannot be opened, with the reasons.
    pub closed_listeners: Vec<(String, String)>,
    /// Why packets of clients outside the node are not translated, although the node stays ready.
    pub packet_failure: Option<String>,
    pub untranslated: Option<Untranslated>,
    /// Whether no device that leads to other machines is up and has an address now.
    pub is_cut_off: bool,
    /// The names in `packets.devices` that no device has, and what to do, if other devices have the programs.
    pub missing_devices: Option<String>,
    /// Whether another service proxy is present, such as kube-proxy.
    pub has_other_proxy: bool,
    /// Who else can change the pin directory, with the remedy, if others can.
    pub foreign_pins: Option<String>,
    /// The programs of other software that run before those of the packet path, with their devices.
    pub programs_ahead: Vec<String>,
    /// The devices at which XDP is configured and other software has it, each with what follows.
    pub xdp_taken: Vec<String>,
    /// The programs of other software at the hooks of connect and sendmsg: those that run before nodelb's, and those
    /// that run after them.
    pub socket_programs: [Vec<String>; 2],
    /// The packets of clients outside the node that were not served, by reason and verdict.
    pub drops: Vec<DroppedPackets>,
    /// The sysctls that keep the kernel from forwarding packets of clients outside the node; `None` if they could not be
    /// read.
    pub not_forwarding: Option<Vec<NotForwarding>>,
    pub ways: Arc<Ways>,
    /// The backends of service ports that have answered clients outside the node since the start.
    pub answered: Arc<Answered>,
    /// The service ports with a backend that accepts connections of clients outside the node.
    pub accepted: Arc<Accepted>,
    /// The policies of IPsec that the packet programs follow.
    pub policies: Arc<Policies>,
    /// The service ports with backends that do not answer clients outside the node.
    pub silent: Arc<BTreeMap<ServiceId, SilentPort>>,
    /// Why health checks cannot be made, and since when, if that is so.
    pub unsent_checks: Option<(Time, String)>,
    /// The number of failed searches for connections that have ended.
    pub sweep_failures: u64,
    pub earlier: Earlier,
}
