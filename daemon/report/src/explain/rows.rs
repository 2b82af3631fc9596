//! The row types that readers see, one for each kind of question, built from a [`nodelb_core::snapshot::Snapshot`]. The admin
//! API, the command line and the scenario tests print exactly these rows, so they cannot disagree.

use std::sync::Arc;

use nodelb_core::compile::select::Choice;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{BackendState, FrontendKind, ServiceName};
use nodelb_core::state::status::Status;

/// A row of `/frontends`: one service's claim to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendReport {
    pub address: L4Addr,
    pub kind: FrontendKind,
    pub service: ServiceName,
    /// The port name, empty for an unnamed port.
    pub port: Arc<str>,
    /// The backends that a client on this node can reach, each once, in address order.
    pub backends: Vec<L4Addr>,
    /// Special properties, such as `Affinity=10800s` or `Local`, in alphabetical order.
    pub flags: Vec<String>,
    pub outside: OutsideAccess,
    pub status: Status,
    pub since: Moment,
    /// Why the status is not OK, with the remedy. For a NodePort also the process that has bound it; for a frontend
    /// without backends also the backends that nodelb refuses to use or found unhealthy.
    pub error: Option<String>,
}

/// Whether clients outside the node are served at an address, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::VariantNames)]
pub enum OutsideAccess {
    /// They are served if the service's source ranges admit them.
    Served,
    /// They would be served, but nodelb translates no new connections from outside the node now, and keeps existing ones.
    Draining,
    /// The service has source ranges, but none of the address's family, so that no client is admitted.
    NoSourceRange,
    /// The policy Local requires a backend on this node, and there is none: their packets are dropped.
    NoLocalBackend,
    /// Every backend has a loopback address, which only processes of the node reach.
    Loopback,
    /// The address is refused, or another service owns it.
    Refused,
    /// The address is only for clients on the node: a ClusterIP, or an address of a file that does not state otherwise.
    NodeOnly,
    /// No client outside the node is served, because the packet path is off, or its programs are not attached now.
    Off,
}

impl OutsideAccess {
    /// The names of those that no client outside the node notices.
    pub const USUAL: [&'static str; 2] = ["NodeOnly", "Off"];
}

/// A row of `/backends`: one backend of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendReport {
    pub address: L4Addr,
    pub service: ServiceName,
    /// The port name, empty for an unnamed port.
    pub port: Arc<str>,
    /// The state as reported by the source, `Quarantined` if the backend failed nodelb's own health checks, or
    /// `Maintenance` if it is drained.
    /// `NotReady` for a held backend that the source no longer reports.
    pub state: BackendState,
    pub weight: u16,
    /// The name of the node, empty if unknown.
    pub node: Arc<str>,
    /// The zone, empty if unknown.
    pub zone: Arc<str>,
    pub choice: Choice,
    pub is_drained: bool,
    /// The file or object that contains the backend. For a held backend that none contains any more, the one that
    /// removed it.
    pub origin: Arc<str>,
    pub reason: Option<String>,
}
