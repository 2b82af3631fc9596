//! Room for work that takes time, such as open checks or queries, shared between services. Pure.
//!
//! The namespace with the least under way is next, and in it the service with the least, in turns where that is equal. Neither
//! may have more under way than what is left for others: a service alone has a quarter of the room, all of a namespace half
//! of it, and the first question of another one never waits. What a silent server or dead host holds up is a share of its
//! own, so that a service's other work does not wait for it either.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use nodelb_core::model::service::ServiceName;

/// The owner of some work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Share {
    pub(crate) service: ServiceName,
    /// Whether it had no answer the last time.
    pub(crate) was_silent: bool,
}

/// Work that waits for room, and how much is under way.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    room: usize,
    /// The number under way.
    open: usize,
    /// The number of turns that were given.
    turns: u64,
    namespaces: Turns<Arc<str>>,
    services: HashMap<Arc<str>, Turns<Share>>,
    waiting: HashMap<Share, VecDeque<T>>,
}

/// The namespaces or shares with work that waits or is under way.
#[derive(Debug)]
struct Turns<K> {
    of: HashMap<K, Turn>,
    /// Those with work that waits, in the order of their turns.
    order: BTreeSet<(Turn, K)>,
}

/// What a namespace or share has under way, and the number of its last turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    open: usize,
    last: u64,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Turns<K> {
    /// Work waits. A new one comes after those that wait already.
    fn wait(&mut self, who: &K, turns: u64) {
        let turn = *self.of.entry(who.clone()).or_insert(Turn { open: 0, last: turns });
        self.order.insert((turn, who.clone()));
    }

    fn set(&mut self, who: &K, change: impl FnOnce(&mut Turn), still_waits: bool) {
        let Some(turn) = self.of.get_mut(who) else { return };
        let before = *turn;
        change(turn);
        let after = *turn;
        self.order.remove(&(before, who.clone()));
        if still_waits {
            self.order.insert((after, who.clone()));
        } else if after.open == 0 {
            self.of.remove(who);
        }
    }

    fn begin(&mut self, who: &K, turns: u64, still_waits: bool) {
        self.set(who, |turn| *turn = Turn { open: turn.open + 1, last: turns }, still_waits);
    }

    fn end(&mut self, who: &K) {
        let waits = self.of.get(who).is_some_and(|turn| self.order.contains(&(*turn, who.clone())));
        self.set(who, |turn| turn.open -= 1, waits);
    }

    /// Those with work that waits and less under way than this.
    fn below(&self, limit: usize) -> impl Iterator<Item = (Turn, &K)> {
        self.order.iter().map(|(turn, who)| (*turn, who)).take_while(move |(turn, _)| turn.open < limit)
    }
}

impl<T> Shares<T> {
    /// `room` is the maximum number under way.
    pub(crate) fn new(room: usize) -> Self {
        let (namespaces, services, waiting) = (Turns::default(), HashMap::new(), HashMap::new());
        Self { room: room.max(1), open: 0, turns: 0, namespaces, services, waiting }
    }

    /// Something is to begin as soon as there is room.
    pub(crate) fn wait(&mut self, share: &Share, work: T) {
        let namespace = &share.service.namespace;
        self.namespaces.wait(namespace, self.turns);
        self.services.entry(Arc::clone(namespace)).or_default().wait(share, self.turns);
        self.waiting.entry(share.clone()).or_default().push_back(work);
    }

    /// What may begin now. It is under way until [`Self::end`].
    pub(crate) fn begin(&mut self) -> Option<(Share, T)> {
        let free = self.room - self.open;
        let share = self.namespaces.below(free).find_map(|(turn, namespace)| {
            let limit = (free - turn.open).div_ceil(2);
            self.services.get(namespace)?.below(limit).next().map(|(_, share)| share.clone())
        })?;
        let queue = self.waiting.get_mut(&share)?;
        let work = queue.pop_front()?;
        let waits = !queue.is_empty();
        if !waits {
            self.waiting.remove(&share);
        }
        self.open += 1;
        self.turns += 1;
        let namespace = &share.service.namespace;
        let services = self.services.get_mut(namespace)?;
        services.begin(&share, self.turns, waits);
        let waits = !services.order.is_empty();
        self.namespaces.begin(namespace, self.turns, waits);
        Some((share, work))
    }

    pub(crate) fn end(&mut self, share: &Share) {
        let namespace = &share.service.namespace;
        let Some(services) = self.services.get_mut(namespace) else { return };
        self.open -= 1;
        services.end(share);
        if services.of.is_empty() {
            self.services.remove(namespace);
        }
        self.namespaces.end(namespace);
    }

    /// The number under way.
    pub(crate) const fn open(&self) -> usize {
        self.open
    }
}

#[cfg(test)]
#[path = "tests/shares.rs"]
mod tests;
