//! Addresses that several services claim: who has lost one in a round and who has taken one over, for the journal. Who
//! owns an address is decided in `claims.rs`; an address that one service claims never comes here.

use std::sync::Arc;

use super::Engine;
use crate::claims::Row;
use crate::model::addr::L4Addr;
use crate::model::service::PortKey;

/// A claim that must wait since this round, or for somebody else than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outranked {
    /// What is claimed.
    pub address: L4Addr,
    /// Who has to wait.
    pub claimant: Arc<PortKey>,
    /// For whom.
    pub owner: Arc<PortKey>,
    /// Why, as `/frontends` says it.
    pub text: Arc<str>,
    /// The claimant, with its file if it has one.
    pub described: String,
}

/// A claim that waited and owns its address since this round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// What is claimed.
    pub address: L4Addr,
    /// Who owns it now.
    pub owner: Arc<PortKey>,
    /// Who owned it before.
    pub before: Arc<PortKey>,
}

/// The claims to an address before the round, as far as a round can change how they stand to each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    owner: Option<Arc<PortKey>>,
    waiting: Vec<Arc<PortKey>>,
}

impl Line {
    pub(super) fn of(row: &Row) -> Self {
        Self {
            owner: row.owner().map(|(claim, _)| Arc::clone(&claim.key)),
            waiting: row.waiting().map(|(_, claim)| Arc::clone(&claim.key)).collect(),
        }
    }

    fn had(&self, owner: &Arc<PortKey>, waiting: &Arc<PortKey>) -> bool {
        self.owner.as_ref() == Some(owner) && self.waiting.contains(waiting)
    }
}

impl Engine {
    /// Compares how the contested addresses stand now with how they stood before the round: what happened in between is
    /// no news.
    pub(super) fn tell_contests(&mut self) {
        for (address, before) in std::mem::take(&mut self.contested) {
            let Some(row) = self.rows.get(&address) else { continue };
            let Some((owner, _)) = row.owner() else { continue };
            for (place, claim) in row.waiting().filter(|(_, claim)| !before.had(&owner.key, &claim.key)) {
                self.round.outranked.push(Outranked {
                    address,
                    claimant: Arc::clone(&claim.key),
                    owner: Arc::clone(&owner.key),
                    described: claim.described(),
                    text: row.status_of(place, address).error.unwrap_or_default(),
                });
            }
            if let Some(before) = before.owner.filter(|_| before.waiting.contains(&owner.key)) {
                self.round.takeovers.push(Takeover { address, owner: Arc::clone(&owner.key), before });
            }
        }
    }
}
