//! Addresses that several services claim: who has lost one in a round and who has taken one over, for the journal. Who
//! owns an address is decided in `claims.rs`; an address that one service claims never comes here.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

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
struct Line {
    owner: Option<Arc<PortKey>>,
    waiting: Vec<Arc<PortKey>>,
}

impl Line {
    fn of(row: &Row) -> Self {
        Self {
            owner: row.owner().map(|(claim, _)| Arc::clone(&claim.key)),
            waiting: row.waiting().map(|(_, claim)| Arc::clone(&claim.key)).collect(),
        }
    }

    fn had(&self, owner: &Arc<PortKey>, waiting: &Arc<PortKey>) -> bool {
        self.owner.as_ref() == Some(owner) && self.waiting.contains(waiting)
    }
}

/// Addresses with several claims whose line this round has touched, each as it was before.
#[derive(Debug, Default)]
pub(super) struct Contests(BTreeMap<L4Addr, Line>);

impl Contests {
    /// The claims to the address are about to change.
    pub(super) fn note_before(&mut self, address: L4Addr, row: &Row) {
        if row.claims().len() > 1 {
            self.0.entry(address).or_insert_with(|| Line::of(row));
        }
    }

    /// The claims to the address have changed.
    pub(super) fn note_after(&mut self, address: L4Addr, row: &Row) {
        if row.claims().len() > 1 {
            // One claim before: nobody waited.
            self.0.entry(address).or_default();
        }
    }

    /// Compares how the contested addresses stand now with how they stood before the round: what happened in between is
    /// no news.
    pub(super) fn finish(&mut self, rows: &OrdMap<L4Addr, Arc<Row>>) -> (Vec<Outranked>, Vec<Takeover>) {
        let (mut outranked, mut takeovers) = (Vec::new(), Vec::new());
        for (address, before) in std::mem::take(&mut self.0) {
            let Some(row) = rows.get(&address) else { continue };
            let Some((owner, _)) = row.owner() else { continue };
            for (place, claim) in row.waiting().filter(|(_, claim)| !before.had(&owner.key, &claim.key)) {
                outranked.push(Outranked {
                    address,
                    claimant: Arc::clone(&claim.key),
                    owner: Arc::clone(&owner.key),
                    described: claim.described(),
                    text: row.status_of(place, address).error.unwrap_or_default(),
                });
            }
            if let Some(before) = before.owner.filter(|_| before.waiting.contains(&owner.key)) {
                takeovers.push(Takeover { address, owner: Arc::clone(&owner.key), before });
            }
        }
        (outranked, takeovers)
    }
}
