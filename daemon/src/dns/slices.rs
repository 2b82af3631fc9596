//! The backends that follow from the answers to a name. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::service::{Backend, Origin};

use super::answer::{self, Records, Target};
use super::entry::{Entry, Known};
use super::names::Names;
use crate::files::named::{Named, Question, RecordType};

/// The maximum number of backends of a name: as many as an answer about addresses may have.
pub(super) const MAX_BACKENDS: usize = 4_096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) backends: Vec<Backend>,
    /// Why they are not current, or why there are none.
    pub(super) problem: Option<Arc<str>>,
    /// Why addresses of the answer are left out: the first one with its reason.
    pub(super) refused: Option<String>,
    /// Whether all of it follows from records of an earlier run.
    pub(super) is_recalled: bool,
}

/// Whether an address and port is a frontend of nodelb in this protocol.
pub(super) type IsFrontend<'a> = &'a dyn Fn(L4Addr) -> bool;

/// The backends of the name. `None` while nothing can be said: no server has been asked, or the targets of a new answer
/// have not been resolved yet.
pub(super) fn resolve(named: &Named, names: &Names, is_frontend: IsFrontend<'_>) -> Option<Resolved> {
    let entry = names.entry(&named.question)?;
    if entry.known.is_none() && !entry.was_asked {
        return None;
    }
    let mut resolved = Resolved { problem: entry.problem.clone(), ..Resolved::default() };
    let is_recalled = entry.is_recalled;
    let mut collected = Collected { named, is_frontend, found: BTreeMap::new(), refused: None, is_recalled };
    match entry.known.as_ref().map(|known| &known.records) {
        None => {}
        Some(Records::Addresses(addresses)) => {
            addresses.iter().for_each(|addr| collected.add(*addr, named.backend.port, named.backend.weight));
        }
        Some(Records::Targets(targets)) => {
            let problem = collected.add_targets(targets, names)?;
            resolved.problem = resolved.problem.or(problem);
        }
    }
    (resolved.refused, resolved.is_recalled) = (collected.refused, collected.is_recalled);
    resolved.backends = collected.found.into_values().collect();
    if resolved.backends.is_empty() && resolved.problem.is_none() {
        let why = resolved.refused.clone().unwrap_or_else(|| "none of the targets has an address".into());
        resolved.problem = Some(why.into());
    }
    Some(resolved)
}

/// Which record says so: the server, and the time since which its answer is the same.
pub(super) fn origin(question: &Question, known: Option<(&Arc<str>, u64)>) -> Origin {
    Origin {
        object: format!("DNS {} record of {}", question.record, question.name).into(),
        writer: known.map(|(server, _)| Arc::clone(server)).unwrap_or_default(),
        written: known.map(|(_, since)| since),
        ..Origin::default()
    }
}

struct Collected<'a> {
    named: &'a Named,
    is_frontend: IsFrontend<'a>,
    found: BTreeMap<(Addr, u16), Backend>,
    refused: Option<String>,
    is_recalled: bool,
}

impl Collected<'_> {
    fn add(&mut self, addr: Addr, port: u16, weight: u16) {
        if let Some(why) = self.refusal(addr, port) {
            let text = || format!("{} is left out: {why}", std::net::SocketAddr::new(addr.ip(), port));
            self.refused.get_or_insert_with(text);
            return;
        }
        let new = || Backend { addr, port, weight: 0, ..self.named.backend.clone() };
        let backend = self.found.entry((addr, port)).or_insert_with(new);
        backend.weight = backend.weight.saturating_add(weight);
    }

    fn refusal(&self, addr: Addr, port: u16) -> Option<&'static str> {
        if self.found.len() == MAX_BACKENDS && !self.found.contains_key(&(addr, port)) {
            return Some("only the first 4096 backends of a name are used");
        }
        let is_frontend = |protocol: &Protocol| (self.is_frontend)(L4Addr::new(addr, port, *protocol));
        let own = "an address that nodelb serves itself, so that connections would lead back to a service";
        answer::refusal(addr).or_else(|| self.named.protocols.iter().any(is_frontend).then_some(own))
    }

    /// Adds the targets of the lowest priority that has a usable one. Returns why their addresses are not current, if
    /// so; `None` while a target has not been asked for yet.
    fn add_targets(&mut self, targets: &[Target], names: &Names) -> Option<Option<Arc<str>>> {
        let mut problem = None;
        let mut priority = None;
        for target in targets {
            if priority.is_some_and(|chosen| chosen != target.priority) {
                if !self.found.is_empty() {
                    break;
                }
                problem = None;
            }
            priority = Some(target.priority);
            // A weight of 0 stands for a small share, not for none (RFC 2782).
            let weight = target.weight.max(1);
            for entry in self.lookup(target, names) {
                if entry.known.is_none() && !entry.was_asked {
                    return None;
                }
                problem = problem.or_else(|| entry.problem.clone().filter(|_| entry.known.is_some()));
                if let Some(Known { records: Records::Addresses(addresses), .. }) = &entry.known {
                    self.is_recalled &= entry.is_recalled;
                    addresses.iter().for_each(|addr| self.add(*addr, target.port, weight));
                }
            }
            let named = self.named;
            let usable = target.addresses.iter().filter(|addr| named.families.contains(&addr.family()));
            usable.for_each(|addr| self.add(*addr, target.port, weight));
        }
        Some(problem)
    }

    /// The answers about the target's addresses that the SRV answer does not contain.
    fn lookup<'n>(&self, target: &Target, names: &'n Names) -> Vec<&'n Entry> {
        let records = target.missing(&self.named.families).map(RecordType::of);
        let questions = records.map(|record| Question { name: target.name.clone(), record });
        questions.filter_map(|question| names.entry(&question)).collect()
    }
}

#[cfg(test)]
#[path = "tests/slices.rs"]
mod tests;
