//! Operations that wait until more is known. Owns which entries they are about, each once however often its operation is
//! planned.

use std::collections::BTreeSet;

use super::Engine;
use crate::addr::L4Addr;
use crate::diff::Touched;
use crate::state::{MapOp, ServiceId};

/// The entries that differ from what is desired, and that are not to be changed yet.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    services: BTreeSet<ServiceId>,
    frontends: BTreeSet<L4Addr>,
}

impl Deferred {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty()
    }

    /// How many entries wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.services.len() + self.frontends.len()
    }
}

impl Engine {
    pub(super) fn look_at_deferred_again(&mut self) {
        let Deferred { services, frontends } = std::mem::take(&mut self.deferred);
        self.touch(Touched {
            services: services.into_iter().collect(),
            frontends: frontends.into_iter().collect(),
            node_addrs: Vec::new(),
        });
    }

    /// Takes out what must wait until more is known.
    pub(super) fn defer(&mut self, ops: &mut Vec<MapOp>) {
        if self.is_pruned {
            return;
        }
        let (premature, now): (Vec<MapOp>, Vec<MapOp>) = ops.drain(..).partition(|op| self.is_premature(op));
        *ops = now;
        for op in premature {
            match op {
                MapOp::PutService(id, _) | MapOp::DeleteService(id) => {
                    self.deferred.services.insert(id);
                }
                MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) => {
                    self.deferred.frontends.insert(address);
                }
                MapOp::PutNodeAddr(_) | MapOp::DeleteNodeAddr(_) => {}
            }
        }
    }
}
