//! Decides which of the reported sockets are stale. Keeps only those: pods decide how many sockets they open, and that
//! must not determine nodelb's state.

use std::collections::HashMap;

use nodelb_core::model::addr::L4Addr;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::stale::{self, Flow, Stale};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Suspect {
    /// The flows that the socket may have reached its backend through; if there are several, it is unknown which. At
    /// least one, and all of the same socket.
    pub(super) flows: Vec<Flow>,
    /// The reason, by the flow that leaves it the most time.
    pub(super) why: Stale,
}

pub(super) struct Judge<'s> {
    snapshot: &'s Snapshot,
    known: HashMap<(L4Addr, L4Addr), Option<Stale>>,
    /// The flows of the current socket, which are reported consecutively.
    socket: Vec<Flow>,
    suspects: Vec<Suspect>,
}

impl<'s> Judge<'s> {
    pub(super) fn by(snapshot: &'s Snapshot) -> Self {
        Self { snapshot, known: HashMap::new(), socket: Vec::new(), suspects: Vec::new() }
    }

    pub(super) fn see(&mut self, flow: Flow) {
        if self.socket.first().is_some_and(|first| first.socket != flow.socket) {
            self.conclude();
        }
        // A socket that several processes have may be reported by each.
        if !self.socket.contains(&flow) {
            self.socket.push(flow);
        }
    }

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
        match each.collect::<Option<Vec<Stale>>>().and_then(|reasons| reasons.into_iter().max()) {
            Some(why) => suspects.push(Suspect { flows: std::mem::take(socket), why }),
            None => socket.clear(),
        }
    }
}
