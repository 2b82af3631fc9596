//! Backends with a name: the slices that follow from what is known about the names.
//!
//! Only something usable replaces what a name has: records of which an address may be used. At a start, records of an earlier
//! run count where the maps agree, and otherwise the maps have the last known backends.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use imbl::OrdMap;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::cause::HOLD_ENDED;
use crate::model::named::{
    self, AnswerState, MAX_BACKENDS, NameAnswer, NameRecords, Named, NamedAddress, Question, RecordType,
};
use crate::model::service::{Backend, Origin, PortKey, ServiceName, Slice, SliceName, SlicePort, Source};
use crate::state::used::Used;

/// Why a name has no backends before its first answer.
const UNANSWERED: &str = "no server has answered yet";

type Key = (Addr, u16);

#[derive(Debug, Default)]
pub(super) struct Names {
    answers: BTreeMap<Question, NameAnswer>,
    /// The slices of each question, with their services.
    slices: BTreeMap<Question, BTreeMap<SliceName, ServiceName>>,
    /// The slices of each service, with their ports.
    siblings: BTreeMap<ServiceName, BTreeMap<SliceName, Arc<str>>>,
    dirty: BTreeSet<SliceName>,
    /// The slices of which the maps may have backends from before the start, because nothing usable is known since.
    from_start: BTreeSet<SliceName>,
    used: Used,
    /// The addresses that services claim; `None` if they may have changed.
    claimed: Option<HashSet<L4Addr, RandomState>>,
}

/// What the resolution of a slice depends on, besides its name.
pub(super) struct Context<'a> {
    /// The slice as it is.
    pub(super) before: Option<&'a Slice>,
    /// The names of all services.
    pub(super) named: &'a OrdMap<SliceName, Arc<Named>>,
    /// The slices of the service.
    pub(super) slices: &'a [Arc<Slice>],
    /// Whether nodelb serves the address itself.
    pub(super) is_frontend: &'a dyn Fn(L4Addr) -> bool,
    /// Whether checks or drains may have kept the backend out of the maps.
    pub(super) is_kept_out: &'a dyn Fn(Key) -> bool,
}

pub(super) struct Resolved {
    pub(super) slice: Slice,
    /// Why addresses are left out.
    pub(super) left_out: Option<String>,
    /// Whether the maps of the start do not matter any more.
    pub(super) is_settled: bool,
}

/// The usable addresses of records, and why the first of the others is left out.
#[derive(Default)]
struct Found {
    backends: BTreeMap<Key, Backend>,
    refused: Option<String>,
}

impl Names {
    pub(super) fn new(used: Used) -> Self {
        Self { used, ..Self::default() }
    }

    /// `is_start` says whether the maps may have backends of the name from before the start.
    pub(super) fn describe(&mut self, named: &Named, is_start: bool) {
        if is_start {
            self.from_start.insert(named.slice.clone());
        }
        self.slices.entry(named.question.clone()).or_default().insert(named.slice.clone(), named.service.clone());
        let siblings = self.siblings.entry(named.service.clone()).or_default();
        siblings.insert(named.slice.clone(), Arc::clone(&named.port));
        self.dirty.insert(named.slice.clone());
    }

    pub(super) fn is_of_start(&self, slice: &SliceName) -> bool {
        self.from_start.contains(slice)
    }

    /// The service is removed: if it is described again, it is new.
    pub(super) fn forget_used(&mut self, service: &ServiceName, source: Source) {
        self.used.forget(service, source);
    }

    pub(super) fn forget(&mut self, named: &Named) {
        self.from_start.remove(&named.slice);
        self.dirty.remove(&named.slice);
        if let Some(slices) = self.slices.get_mut(&named.question) {
            slices.remove(&named.slice);
            if slices.is_empty() {
                self.slices.remove(&named.question);
            }
        }
        if let Some(siblings) = self.siblings.get_mut(&named.service) {
            siblings.remove(&named.slice);
            if siblings.is_empty() {
                self.siblings.remove(&named.service);
            }
        }
    }

    /// The other slices with names of the port.
    fn siblings(&self, named: &Named) -> impl Iterator<Item = &SliceName> {
        let all = self.siblings.get(&named.service).into_iter().flatten();
        all.filter(|(slice, port)| **slice != named.slice && **port == named.port).map(|(slice, _)| slice)
    }

    /// The first slices of the ports of the service, which have what no name explains.
    fn firsts(&self, service: &ServiceName) -> Vec<SliceName> {
        let (mut firsts, mut ports): (_, Vec<&Arc<str>>) = (Vec::new(), Vec::new());
        for (slice, port) in self.siblings.get(service).into_iter().flatten() {
            if !ports.contains(&port) {
                ports.push(port);
                firsts.push(slice.clone());
            }
        }
        firsts
    }

    pub(super) fn answer(&mut self, question: Question, answer: Option<NameAnswer>) {
        for (slice, service) in self.slices.get(&question).into_iter().flatten() {
            self.dirty.insert(slice.clone());
            if self.used.has_service(service, Source::Files) {
                self.dirty.extend(self.firsts(service));
            }
        }
        match answer {
            Some(answer) => drop(self.answers.insert(question, answer)),
            None => drop(self.answers.remove(&question)),
        }
    }

    /// Services claim other addresses than before.
    pub(super) fn note_claims(&mut self) {
        if self.claimed.take().is_some() {
            self.dirty.extend(self.slices.values().flat_map(BTreeMap::keys).cloned());
        }
    }

    pub(super) fn take_dirty(&mut self) -> BTreeSet<SliceName> {
        std::mem::take(&mut self.dirty)
    }

    /// Finds out what services claim, if that may have changed.
    pub(super) fn set_claims(&mut self, claims: impl Iterator<Item = L4Addr>) {
        self.claimed.get_or_insert_with(|| claims.collect());
    }

    pub(super) fn is_claimed(&self, address: &L4Addr) -> bool {
        self.claimed.as_ref().is_some_and(|claimed| claimed.contains(address))
    }

    /// Something usable is known of the slice, or that there is nothing: the maps of the start do not matter any more.
    pub(super) fn settle(&mut self, slice: &SliceName) {
        self.from_start.remove(slice);
    }

    /// Whether nothing usable is known since the start of some name of the service.
    pub(super) fn awaits(&self, service: &ServiceName) -> bool {
        let slices = || self.siblings.get(service).into_iter().flat_map(BTreeMap::keys);
        !self.from_start.is_empty() && slices().any(|slice| self.from_start.contains(slice))
    }

    /// The slice that follows.
    pub(super) fn resolve(&self, named: &Named, context: &Context<'_>) -> Resolved {
        let answer = self.answers.get(&named.question);
        let records = answer.and_then(|answer| answer.records.as_ref());
        let mut problem = answer.and_then(|answer| answer.problem.clone());
        let mut origin = origin(&named.question, records);
        if let Some(AnswerState::Ended(after)) = answer.map(|answer| &answer.state) {
            origin.object = format!("{HOLD_ENDED}{after} of {}", origin.object).into();
            return Resolved { slice: slice(named, origin, Vec::new(), problem), left_out: None, is_settled: true };
        }
        let mut found = records.map(|records| usable(named, records, context.is_frontend)).unwrap_or_default();
        let refused = found.refused.take();
        let is_settled = records.is_some_and(|records| !records.is_recalled) && !found.backends.is_empty();
        if self.from_start.contains(&named.slice)
            && !is_settled
            && let Some(backends) = self.as_in_maps(named, &found, context)
        {
            if !backends.keys().eq(found.backends.keys()) {
                problem = problem.or_else(|| Some(UNANSWERED.into()));
            }
            found.backends = backends;
        }
        if !found.backends.is_empty() {
            let slice = slice(named, origin, ports(named, found.backends.into_values()), problem);
            return Resolved { slice, left_out: refused, is_settled };
        }
        let why = || match (&refused, records) {
            (Some(refused), _) => refused.clone(),
            (None, Some(_)) => "none of the targets has an address".into(),
            (None, None) => UNANSWERED.into(),
        };
        let problem = problem.or_else(|| Some(why().into()));
        let kept = context.before.map(|before| kept(named, before)).filter(|kept| !kept.is_empty());
        if let (Some(kept), Some(before)) = (kept, context.before) {
            let slice = slice(named, before.origin.clone(), ports(named, kept.into_iter()), problem);
            return Resolved { slice, left_out: refused, is_settled };
        }
        let is_answered = answer.is_some_and(|answer| answer.state == AnswerState::Answered);
        let is_unknown = !is_answered || self.from_start.contains(&named.slice);
        // A slice that has the port says that the backends are not known, one that lacks it that there are none.
        let ports = if is_unknown { ports(named, std::iter::empty()) } else { Vec::new() };
        Resolved { slice: slice(named, origin, ports, problem), left_out: refused, is_settled }
    }

    /// What the maps say of the name's backends at a start: those of the records that they have, and for the first name those
    /// that no name explains. `None` if the maps had none, or none of them is explained otherwise: then the engine keeps
    /// them as they are.
    fn as_in_maps(&self, named: &Named, found: &Found, context: &Context<'_>) -> Option<BTreeMap<Key, Backend>> {
        let known = self.known(named);
        if known.is_empty() {
            return None;
        }
        let is_in_maps = |key: &Key| known.contains(key) || (context.is_kept_out)(*key);
        let own = found.backends.iter().filter(|(key, _)| is_in_maps(key)).map(|(key, it)| (*key, it.clone()));
        let mut backends: BTreeMap<Key, Backend> = own.collect();
        let siblings: Vec<&Arc<Named>> = self.siblings(named).filter_map(|slice| context.named.get(slice)).collect();
        if siblings.iter().any(|sibling| sibling.slice < named.slice) {
            return Some(backends);
        }
        let is_of_port = |port: &&SlicePort| port.name == named.port && named.protocols.contains(&port.protocol);
        let is_named = |slice: &&Arc<Slice>| context.named.contains_key(&slice.name);
        let listed = context.slices.iter().filter(|slice| !is_named(slice));
        let listed = listed.flat_map(|slice| slice.ports.iter().filter(is_of_port)).flat_map(|port| &port.backends);
        let mut explained: BTreeSet<Key> = listed.map(|backend| (backend.addr, backend.port)).collect();
        for sibling in siblings {
            let records = self.answers.get(&sibling.question).and_then(|answer| answer.records.as_ref());
            explained.extend(
                records.into_iter().flat_map(|it| usable(sibling, it, context.is_frontend).backends.into_keys()),
            );
        }
        explained.extend(found.backends.keys());
        let is_alone = backends.is_empty() && explained.iter().all(|key| !known.contains(key));
        if !is_alone {
            let weight = if named.question.record == RecordType::Srv { 1 } else { named.backend.weight };
            let unexplained = known.iter().filter(|key| !explained.contains(key));
            let new = |(addr, port): &Key| Backend { addr: *addr, port: *port, weight, ..named.backend.clone() };
            backends.extend(unexplained.map(|key| (*key, new(key))));
        }
        Some(backends)
    }

    /// The backends of the name's port in the maps at the start.
    fn known(&self, named: &Named) -> BTreeSet<Key> {
        let mut known = BTreeSet::new();
        for (protocol, family) in named.protocols.iter().flat_map(|it| named.families.iter().map(move |f| (*it, *f))) {
            let key = PortKey { service: named.service.clone(), port: Arc::clone(&named.port), protocol, family };
            known.extend(self.used.of_port(&key, Source::Files).into_iter().flatten().copied());
        }
        known
    }
}

/// Which record says so: the server, and the time since which its answer is the same.
fn origin(question: &Question, records: Option<&NameRecords>) -> Origin {
    Origin {
        object: format!("DNS {} record of {}", question.record, question.name).into(),
        writer: records.map(|records| Arc::clone(&records.server)).unwrap_or_default(),
        written: records.map(|records| records.since),
        ..Origin::default()
    }
}

/// The addresses of the first priority that has a usable one.
fn usable(named: &Named, records: &NameRecords, is_frontend: &dyn Fn(L4Addr) -> bool) -> Found {
    let mut found = Found::default();
    for priority in &records.priorities {
        let of_family = priority.iter().filter(|address| named.families.contains(&address.addr.family()));
        for NamedAddress { addr, srv } in of_family {
            let (port, weight) = srv.unwrap_or((named.backend.port, named.backend.weight));
            if let Some(why) = refusal_of(named, &found, (*addr, port), is_frontend) {
                let text = || format!("{} is left out: {why}", std::net::SocketAddr::new(addr.ip(), port));
                found.refused.get_or_insert_with(text);
                continue;
            }
            let new = || Backend { addr: *addr, port, weight: 0, ..named.backend.clone() };
            let backend = found.backends.entry((*addr, port)).or_insert_with(new);
            backend.weight = backend.weight.saturating_add(weight);
        }
        if !found.backends.is_empty() {
            break;
        }
    }
    found
}

fn refusal_of(named: &Named, found: &Found, key: Key, is_frontend: &dyn Fn(L4Addr) -> bool) -> Option<&'static str> {
    if found.backends.len() == MAX_BACKENDS && !found.backends.contains_key(&key) {
        return Some("only the first 4096 backends of a name are used");
    }
    let is_own = |protocol: &Protocol| is_frontend(L4Addr::new(key.0, key.1, *protocol));
    let own = "an address that nodelb serves itself, so that connections would lead back to a service";
    named::refusal(key.0).or_else(|| named.protocols.iter().any(is_own).then_some(own))
}

/// The backends of the slice as the file describes them now: of the families of its frontends and, except for SRV records,
/// with its weight.
fn kept(named: &Named, before: &Slice) -> Vec<Backend> {
    let all = before.ports.first().into_iter().flat_map(|port| &port.backends);
    let is_srv = named.question.record == RecordType::Srv;
    let of_family = all.filter(|backend| named.families.contains(&backend.addr.family()));
    let as_described = |it: &Backend| {
        let weight = if is_srv { it.weight } else { named.backend.weight };
        Backend { addr: it.addr, port: it.port, weight, ..named.backend.clone() }
    };
    of_family.map(as_described).collect()
}

fn ports(named: &Named, backends: impl Iterator<Item = Backend>) -> Vec<SlicePort> {
    let backends: Vec<Backend> = backends.collect();
    let port = |protocol: &Protocol| SlicePort {
        name: Arc::clone(&named.port),
        protocol: *protocol,
        backends: backends.clone(),
    };
    named.protocols.iter().map(port).collect()
}

fn slice(named: &Named, origin: Origin, ports: Vec<SlicePort>, problem: Option<Arc<str>>) -> Slice {
    let (name, service): (SliceName, ServiceName) = (named.slice.clone(), named.service.clone());
    Slice { name, service, source: Source::Files, origin, ports, problem }
}

#[cfg(test)]
#[path = "tests/names.rs"]
mod tests;
