//! What a client meets at an address, and where stories take place: a world has maps, clients that dial, and load
//! balancers that ask. In memory nobody does; what comes out there is what the state says.

use std::collections::BTreeSet;
use std::fmt;

use nodelb_core::compile::guard::Guard;
use nodelb_core::datapath::Limits;
use nodelb_core::explain::trace::{Errno, Verdict, trace};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{MapState, ServiceId};

use crate::model::Maps;

/// Who dials. Each is a network namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Host,
    Pod,
}

/// What becomes of all connections to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Each of these backends is reached.
    Reaches(BTreeSet<L4Addr>),
    /// So is one of them, for as long as the client does not stay away for so many seconds.
    Keeps { service: ServiceId, seconds: u32, one_of: BTreeSet<L4Addr> },
    /// The connection fails at once.
    Refused(Errno),
    /// nodelb does nothing.
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
    /// For this client: the loopback addresses of a pod are its own, and never the node's.
    pub(crate) fn seen_by(&self, client: Client, to: L4Addr) -> Self {
        if client == Client::Pod && to.addr.is_loopback() { Self::PassesThrough } else { self.clone() }
    }

    /// What follows from the content of the maps.
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

/// See the module.
pub(crate) trait World {
    type Maps: Maps;

    /// Empty maps; those of the story before are gone.
    fn maps(&mut self, limits: Limits, guard: &Guard) -> Result<Self::Maps, String>;

    /// What the client meets at the address, as [`Outcome`] prints it, where the state says `traced`.
    fn dial(&mut self, to: L4Addr, from: Client, traced: &Outcome) -> Result<String, String>;

    /// What a load balancer is told that asks at a healthCheckNodePort, where the snapshot says `expected`.
    fn ask(&mut self, at: L4Addr, snapshot: Snapshot, expected: &str) -> Result<String, String>;

    /// From now on each of these listens, where anyone does: also those that must not be reached.
    fn listen(&mut self, backends: &BTreeSet<L4Addr>) -> Result<(), String>;

    /// So many seconds pass.
    fn wait(&mut self, seconds: u64);
}
