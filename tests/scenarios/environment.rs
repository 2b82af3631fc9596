//! The environment of a scenario: maps, clients that connect, and load balancers that send health
//! checks. In memory there are no clients, and the outcome is derived from the state.

use std::collections::BTreeSet;
use std::fmt;

use nodelb_core::compile::guard::Guard;
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::packets::admission::Refusal;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{MapState, ServiceId};
use nodelb_core::trace::{Verdict, trace};

use crate::model::Maps;
use crate::outside_model::{Attempt, Frame, Met};

/// A client. Each has its own network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Host,
    Pod,
}

/// The outcome of all connections to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Connections reach all of these backends.
    Reaches(BTreeSet<L4Addr>),
    /// Session affinity: connections reach one of these backends, always the same one unless the
    /// client pauses for `seconds`.
    Keeps { service: ServiceId, seconds: u32, one_of: BTreeSet<L4Addr> },
    /// Connections fail at once.
    Refused(Refusal),
    /// nodelb does not translate connections.
    PassesThrough,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Pod => "pod",
        })
    }
}

impl Outcome {
    /// The outcome for this client: the loopback addresses of a pod are its own, never the node's.
    pub(crate) fn seen_by(&self, client: Client, to: L4Addr) -> Self {
        if client == Client::Pod && to.addr.is_loopback() { Self::PassesThrough } else { self.clone() }
    }

    /// The outcome according to the content of the maps.
    pub(crate) fn by(state: &MapState, guard: &Guard, to: L4Addr) -> Self {
        match trace(state, &guard.nodeport_range, to) {
            Verdict::Forwarded(service, slots) => {
                let backends = slots.iter().map(|slot| slot.addr).collect();
                match state.services.get(&service).map_or(0, |entry| entry.affinity_seconds) {
                    0 => Self::Reaches(backends),
                    seconds => Self::Keeps { service, seconds, one_of: backends },
                }
            }
            Verdict::Refused(_, errno) => Self::Refused(errno),
            Verdict::PassedThrough => Self::PassesThrough,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |backends: &BTreeSet<L4Addr>| backends.iter().map(L4Addr::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Reaches(backends) => write!(f, "reaches {}", list(backends)),
            Self::Keeps { one_of, .. } => write!(f, "keeps one of {}", list(one_of)),
            Self::Refused(errno) => write!(f, "is refused with {errno}"),
            Self::PassesThrough => f.write_str("passes through"),
        }
    }
}

/// The environment of a scenario; see the module.
pub(crate) trait Environment {
    type Maps: Maps;

    /// Returns empty maps and discards those of the previous scenario.
    fn maps(&mut self, limits: Limits, guard: &Guard) -> Result<Self::Maps, String>;

    /// The outcome for the client at the address, as [`Outcome`] prints it. `traced` is the outcome
    /// according to the state.
    fn connect(&mut self, to: L4Addr, from: Client, traced: &Outcome) -> Result<String, String>;

    /// The index of the device that leads to clients outside the node.
    fn uplink(&self) -> u32 {
        2
    }

    /// The outcome for a client outside the node. `expected` is the outcome according to the state; an environment with
    /// clients fails if theirs differs.
    fn connect_outside(&mut self, attempt: &Attempt, expected: &Met) -> Result<Met, String>;

    /// The outcome for the next packet of the client with this name, which keeps its connection. `expected` is
    /// the outcome according to the state.
    fn talk(&mut self, name: &str, packet: &Frame, expected: &Met) -> Result<Met, String>;

    /// The response to a load balancer at a healthCheckNodePort. `expected` is the response
    /// according to the snapshot.
    fn health_check(&mut self, at: L4Addr, snapshot: Snapshot, expected: &str) -> Result<String, String>;

    /// Makes all these backends listen, including those that must not be reached.
    fn listen(&mut self, backends: &BTreeSet<L4Addr>) -> Result<(), String>;

    /// Waits for `seconds`.
    fn wait(&mut self, seconds: u64);
}
