//! What became of the connections that clients outside the node have begun: whether backends accept them. The latest
//! connections decide, and never an older one that still exists.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Arc;

use crate::model::addr::{L4Addr, Protocol};
use crate::model::moment::Moment;
use crate::model::service::PortKey;
use crate::snapshot::Snapshot;
use crate::state::entries::{BackendId, ServiceEntry, ServiceId};
use crate::text::listed;

/// So many connections in a row that no backend accepted are a problem.
pub const SILENT_FROM: u64 = 3;

/// What is known of a backend is forgotten if no connection was begun for this time, in milliseconds.
pub const FORGOTTEN_AFTER: u64 = 300_000;

/// The maximum number of backends in one line.
const SHOWN: usize = 3;

/// Numbers of connections to a backend of a service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// The backend has answered. With direct return, the client has acknowledged that.
    pub answered: u64,
    /// The backend has answered with RST.
    pub refused: u64,
    pub unanswered: u64,
}

impl AddAssign for Outcomes {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
    }
}

/// A backend, and what became of the connections to it that had begun in one interval.
pub type Outcome = (ServiceId, BackendId, Outcomes);

/// Connections to a backend in a row that it refused or did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Silence {
    connections: u64,
    /// Those of them that it refused.
    refused: u64,
    since: Moment,
}

/// What is known of a backend.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// `None` if one was accepted in the last interval: which connection of an interval began last is not known.
    silence: Option<Silence>,
    last: Moment,
    /// The connections of the last interval began after this.
    begun: Moment,
}

/// Backends of a service port that do not answer clients outside the node, or refuse them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Whether no backend accepts connections that clients have tried in the last minutes.
    pub is_whole: bool,
    pub backends: Vec<BackendId>,
    /// The number of connections since the last that each has accepted.
    pub connections: u64,
    /// Those of them that were refused.
    pub refused: u64,
    pub since: Moment,
}

/// [`Silent`] with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentPort {
    pub key: Arc<PortKey>,
    pub is_whole: bool,
    pub backends: Vec<L4Addr>,
    pub connections: u64,
    pub refused: u64,
    pub since: Moment,
}

impl SilentPort {
    /// What is wrong, as a sentence without a full stop.
    pub fn text(&self) -> String {
        let (connections, what) = (self.connections, self.what());
        let backends = listed(&self.backends, SHOWN);
        let others = if self.is_whole { "" } else { "; other backends answer" };
        format!("the last {connections} connections of clients outside the node to {backends} {what}{others}")
    }

    /// What became of the connections, such as `got no answer`.
    pub fn what(&self) -> &'static str {
        match self.refused {
            0 => "got no answer",
            refused if refused == self.connections => "were refused",
            _ => "were refused or got no answer",
        }
    }
}

/// The backends of service ports that have ever answered.
pub type Answered = BTreeMap<ServiceId, BTreeSet<BackendId>>;

/// Service ports with a backend that accepts connections, and the time after which the last ones that it accepted began.
pub type Accepted = BTreeMap<ServiceId, Moment>;

/// What is known of all backends that clients outside the node have tried.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    known: BTreeMap<ServiceId, BTreeMap<BackendId, Known>>,
    /// All connections since the start.
    total: Outcomes,
    /// Readers may have it; it changes rarely.
    answered: Arc<Answered>,
}

impl Answers {
    /// Takes the outcomes of the connections of an interval, which began after `begun`. `entry`: what the maps have for a service
    /// port, if the id belongs to one, which may be another one than before after a while.
    pub fn take<'e>(
        &mut self,
        outcomes: &[Outcome],
        begun: Moment,
        now: Moment,
        entry: impl Fn(ServiceId) -> Option<&'e ServiceEntry>,
    ) {
        for (service, backend, outcomes) in outcomes {
            self.total += *outcomes;
            if outcomes.answered > 0 && !self.has_answered(*service, *backend) {
                let backends = Arc::make_mut(&mut self.answered).entry(*service).or_default();
                backends.retain(|known| entry(*service).is_some_and(|entry| entry.has(*known)));
                backends.insert(*backend);
            }
            let backends = self.known.entry(*service).or_default();
            let known = backends.entry(*backend).or_insert(Known { silence: None, last: now, begun });
            (known.last, known.begun) = (now, begun);
            known.silence = match outcomes {
                Outcomes { answered: 0, refused, unanswered } => {
                    let before = known.silence.unwrap_or(Silence { connections: 0, refused: 0, since: now });
                    let connections = before.connections + unanswered + refused;
                    Some(Silence { connections, refused: before.refused + refused, ..before })
                }
                _ => None,
            };
        }
        if self.answered.keys().any(|service| entry(*service).is_none()) {
            Arc::make_mut(&mut self.answered).retain(|service, _| entry(*service).is_some());
        }
        self.known.retain(|service, backends| {
            backends.retain(|_, known| known.last.plus(FORGOTTEN_AFTER) > now);
            entry(*service).is_some() && !backends.is_empty()
        });
    }

    pub fn total(&self) -> Outcomes {
        self.total
    }

    /// The backends that have answered since the start.
    pub fn answered(&self) -> Arc<Answered> {
        Arc::clone(&self.answered)
    }

    fn has_answered(&self, service: ServiceId, backend: BackendId) -> bool {
        self.answered.get(&service).is_some_and(|backends| backends.contains(&backend))
    }

    /// The service ports that clients have tried in the last minutes.
    pub fn services(&self) -> impl Iterator<Item = ServiceId> {
        self.known.keys().copied()
    }

    /// Whether a backend of the service port accepted the last connections to it.
    pub fn answers(&self, service: ServiceId) -> bool {
        self.known.get(&service).is_some_and(|known| known.values().any(|it| it.silence.is_none()))
    }

    /// The service ports of which a backend that they have now accepted its last connections. `entry`: as in [`Self::take`].
    pub fn accepted<'e>(&self, entry: impl Fn(ServiceId) -> Option<&'e ServiceEntry>) -> Accepted {
        let last = |(id, backends): (&ServiceId, &BTreeMap<BackendId, Known>)| {
            let entry = entry(*id)?;
            let tried = entry.cluster.iter().chain(&*entry.local).filter_map(|slot| backends.get(&slot.backend));
            Some((*id, tried.filter(|known| known.silence.is_none()).map(|known| known.begun).max()?))
        };
        self.known.iter().filter_map(last).collect()
    }

    /// The service ports with backends that do not answer, or refuse connections.
    pub fn silent_ports(&self, snapshot: &Snapshot) -> BTreeMap<ServiceId, SilentPort> {
        let port = |id: ServiceId| {
            let (key, entry) = (&snapshot.owners.get(&id)?.key, snapshot.realised.services.get(&id)?);
            let backends: BTreeMap<BackendId, L4Addr> = entry.cluster.iter().map(|it| (it.backend, it.addr)).collect();
            let Silent { is_whole, backends: silent, connections, refused, since } =
                self.silent(id, key.protocol, backends.keys().copied())?;
            let backends = silent.iter().filter_map(|it| backends.get(it).copied()).collect();
            Some((id, SilentPort { key: Arc::clone(key), is_whole, backends, connections, refused, since }))
        };
        self.services().filter_map(port).collect()
    }

    /// The backends that do not answer or refuse connections, among these, which the service port has now. Many programs send
    /// datagrams that nothing answers: UDP counts only if the service port has answered since the start.
    pub fn silent(
        &self,
        service: ServiceId,
        protocol: Protocol,
        backends: impl IntoIterator<Item = BackendId>,
    ) -> Option<Silent> {
        if protocol == Protocol::Udp && !self.answered.contains_key(&service) {
            return None;
        }
        let known = self.known.get(&service)?;
        let tried: BTreeMap<BackendId, Known> =
            backends.into_iter().filter_map(|it| Some((it, *known.get(&it)?))).collect();
        let mut silent: Vec<(BackendId, Silence)> =
            tried.iter().filter_map(|(backend, known)| Some((*backend, known.silence?))).collect();
        let count = |silent: &[(BackendId, Silence)]| silent.iter().map(|(_, it)| it.connections).sum::<u64>();
        let is_whole = silent.len() == tried.len() && count(&silent) >= SILENT_FROM;
        if !is_whole {
            silent.retain(|(_, silence)| silence.connections >= SILENT_FROM);
        }
        let since = silent.iter().map(|(_, silence)| silence.since).min()?;
        let connections = count(&silent);
        let refused = silent.iter().map(|(_, silence)| silence.refused).sum();
        Some(Silent {
            is_whole,
            backends: silent.into_iter().map(|(backend, _)| backend).collect(),
            connections,
            refused,
            since,
        })
    }
}

#[cfg(test)]
#[path = "tests/outcomes.rs"]
mod tests;
