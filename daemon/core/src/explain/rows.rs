//! What readers see: one row type per question, built from a [`crate::snapshot::Snapshot`]. The admin API, the command
//! line and the scenario tests print these rows and nothing else, so they cannot disagree.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::compile::select::Choice;
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::service::{BackendState, FrontendKind, ServiceName, Source, TrafficPolicy};
use crate::state::status::Status;

/// A row of `/frontends`: one claim of one service to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendReport {
    /// What a client dials.
    pub address: L4Addr,
    /// Which kind of address.
    pub kind: FrontendKind,
    /// Whose.
    pub service: ServiceName,
    /// Port name, empty for an unnamed port.
    pub port: Arc<str>,
    /// Whom a client on this node reaches, each backend once, in address order.
    pub backends: Vec<L4Addr>,
    /// What is special about it, such as `Affinity=10800s` or `Local`; in alphabetical order.
    pub flags: Vec<String>,
    /// Whether the kernel has it.
    pub status: Status,
    /// Since when it has this status.
    pub since: Moment,
    /// Why not, with the remedy; of a NodePort also which process has bound it, of a frontend without backends also which
    /// backends nodelb refuses to use or found unhealthy.
    pub error: Option<String>,
}

/// A row of `/services`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReport {
    /// Full name.
    pub service: ServiceName,
    /// Who describes it.
    pub source: Source,
    /// Which file or object.
    pub origin: Arc<str>,
    /// `http=80/TCP` for each port; a port of an unnamed port is `80/TCP`.
    pub ports: Vec<String>,
    /// For clients inside the cluster.
    pub internal_policy: TrafficPolicy,
    /// For clients outside the cluster.
    pub external_policy: TrafficPolicy,
    /// Session affinity in seconds.
    pub affinity_seconds: Option<u32>,
    /// How many addresses it claims.
    pub frontends: usize,
    /// How many different backends its slices name, and how many of them new connections can reach.
    pub backends: usize,
    /// See `backends`.
    pub selectable: usize,
    /// The worst status of its frontends.
    pub status: Status,
    /// The first error of its frontends, or why the whole service is not served, or which backends nodelb refuses to use
    /// or found unhealthy.
    pub error: Option<String>,
}

/// A row of `/backends`: one backend of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendReport {
    /// Where it listens.
    pub address: L4Addr,
    /// Whose.
    pub service: ServiceName,
    /// Port name, empty for an unnamed port.
    pub port: Arc<str>,
    /// As the source says, or `Quarantined` if it failed nodelb's own checks; of a held backend that the source does
    /// not name any more, `NotReady`.
    pub state: BackendState,
    /// Share of new connections.
    pub weight: u16,
    /// Node, empty where unknown.
    pub node: Arc<str>,
    /// Zone, empty where unknown.
    pub zone: Arc<str>,
    /// Whether new connections can reach it; if not, why.
    pub choice: Choice,
    /// Which file or object says so; of a held backend that none names any more, the one that took it away.
    pub origin: Arc<str>,
    /// Why it is refused, or the last error of its checks.
    pub reason: Option<String>,
}

/// How much there is, counted without building a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Services, each name once.
    pub services: usize,
    /// Services one of whose frontends is held.
    pub held: usize,
    /// Services of which a port has no backend that a new connection can reach.
    pub without_backends: usize,
    /// Services that wait for a load balancer's address, see [`crate::model::service::Service::awaits_load_balancer`].
    pub awaiting_load_balancer: usize,
    /// Rows of `/frontends` by status; a status that none has is missing.
    pub frontends: BTreeMap<Status, usize>,
    /// Of those in error: what cannot own its address whoever else claims it.
    pub refused: usize,
    /// Of those in error: what waits for the claim that owns its address.
    pub outranked: usize,
    /// Backends that the slices of the services name, once for each port; in quarantine those that failed their checks.
    pub backends: BTreeMap<BackendState, usize>,
    /// Backends that a new connection can reach, once for each port and family.
    pub selectable: usize,
}

/// Which two disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Between {
    /// What a source says, and what nodelb makes of it.
    SourceMemory,
    /// What nodelb wants, and what the maps hold.
    MemoryKernel,
    /// What the maps hold, and what a connection meets.
    KernelConnect,
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl Between {
    /// How they print, in the order of their definition.
    pub const NAMES: [&'static str; 3] = ["source/memory", "memory/kernel", "kernel/connect"];
}

/// A row of `/diff`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which two disagree.
    pub between: Between,
    /// About what: an address, a service port, a hook.
    pub what: String,
    /// Whose it is, if any service's.
    pub service: Option<ServiceName>,
    /// What the source says, where that is one of the two.
    pub source: Option<String>,
    /// What nodelb wants.
    pub memory: Option<String>,
    /// What the maps hold, or a connection met.
    pub kernel: Option<String>,
    /// Why, most likely.
    pub cause: String,
    /// What nodelb does about it, or whoever reads this could.
    pub action: String,
}
