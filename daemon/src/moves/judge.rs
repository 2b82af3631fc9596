//! Which of the sockets that are told one after the other should move on. Keeps those and no others: how many sockets a pod
//! opens is the pod's business, not nodelb's memory.

use std::collections::HashMap;

use nodelb_core::model::addr::L4Addr;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::stale::{self, Flow, Stale};

/// A socket that should move on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Suspect {
    /// By which services it may have come to its backend; of one that came by several it is not known by which. At least
    /// one, and all of one socket.
    pub(super) flows: Vec<Flow>,
    /// Why it should, by one of them.
    pub(super) why: Stale,
}

/// Judges by one picture.
pub(super) struct Judge<'s> {
    snapshot: &'s Snapshot,
    /// Of each service and backend once.
    known: HashMap<(L4Addr, L4Addr), Option<Stale>>,
    /// The flows of the socket that is being told of: they follow each other.
    socket: Vec<Flow>,
    suspects: Vec<Suspect>,
}

impl<'s> Judge<'s> {
    pub(super) fn by(snapshot: &'s Snapshot) -> Self {
        Self { snapshot, known: HashMap::new(), socket: Vec::new(), suspects: Vec::new() }
    }

    /// Takes in one flow.
    pub(super) fn see(&mut self, flow: Flow) {
        if self.socket.first().is_some_and(|first| first.socket != flow.socket) {
            self.conclude();
        }
        self.socket.push(flow);
    }

    /// The sockets none of whose flows is right.
    pub(super) fn suspects(mut self) -> Vec<Suspect> {
        self.conclude();
        self.suspects
    }

    fn conclude(&mut self) {
        let Self { snapshot, known, socket, suspects } = self;
        let each = socket.iter().map(|flow| {
            let (frontend, backend) = (flow.frontend, flow.backend);
            known.entry((frontend, backend)).or_insert_with(|| stale::stale(snapshot, frontend, backend)).clone()
        });
        match each.collect::<Option<Vec<Stale>>>().and_then(|mut reasons| reasons.pop()) {
            Some(why) => suspects.push(Suspect { flows: std::mem::take(socket), why }),
            None => socket.clear(),
        }
    }
}
