//! Addresses that several services claim: which claims lost or took over an address in a round, for the journal.
//! `claims.rs` decides on the owner. Addresses with a single claim do not appear here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;

use crate::claims::Row;
use crate::model::addr::L4Addr;
use crate::model::service::PortKey;

/// A claim that has to wait since this round, or that waits for a different owner than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressConflict {
    pub address: L4Addr,
    pub claimant: Arc<PortKey>,
    pub owner: Arc<PortKey>,
    /// The reason, in the words of `/frontends`.
    pub text: Arc<str>,
    /// The claimant, with its file if it has one.
    pub described: String,
}

/// A claim that owns its address since this round, after another service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    pub address: L4Addr,
    pub owner: Arc<PortKey>,
    /// The service port that owned the address before; `None` if its name is not known.
    pub before: Option<Arc<PortKey>>,
}

impl fmt::Display for Takeover {
    /// Formats as `takes over 198.51.100.9:80/TCP from shop/web:http/TCP/IPv4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "takes over {} from ", self.address)?;
        match &self.before {
            Some(before) => before.fmt(f),
            None => f.write_str("another service"),
        }
    }
}

/// The claims to an address before the round: what can change their order.
#[derive(Clone, Debug, Default)]
struct ClaimOrder {
    owner: Option<Arc<PortKey>>,
    waiting: Vec<Arc<PortKey>>,
}

impl ClaimOrder {
    fn new(row: &Row) -> Self {
        Self {
            owner: row.owner().map(|(claim, _)| Arc::clone(&claim.key)),
            waiting: row.waiting().map(|(_, claim)| Arc::clone(&claim.key)).collect(),
        }
    }

    fn had(&self, owner: &Arc<PortKey>, waiting: &Arc<PortKey>) -> bool {
        self.owner.as_ref() == Some(owner) && self.waiting.contains(waiting)
    }
}

/// Addresses with several claims that this round has touched, each with its claims before the round.
#[derive(Debug, Default)]
pub(super) struct Conflicts(BTreeMap<L4Addr, ClaimOrder>);

impl Conflicts {
    pub(super) fn note_before(&mut self, address: L4Addr, row: &Row) {
        if row.claims().len() > 1 {
            self.0.entry(address).or_insert_with(|| ClaimOrder::new(row));
        }
    }

    pub(super) fn note_after(&mut self, address: L4Addr, row: &Row) {
        if row.claims().len() > 1 {
            // At most one claim existed before, so none waited.
            self.0.entry(address).or_default();
        }
    }

    /// Compares the contested addresses with their state before the round. Intermediate states within the round are not
    /// reported.
    pub(super) fn finish(&mut self, rows: &OrdMap<L4Addr, Arc<Row>>) -> (Vec<AddressConflict>, Vec<Takeover>) {
        let (mut conflicts, mut takeovers) = (Vec::new(), Vec::new());
        for (address, before) in std::mem::take(&mut self.0) {
            let Some(row) = rows.get(&address) else { continue };
            let Some((owner, _)) = row.owner() else { continue };
            for (place, claim) in row.waiting().filter(|(_, claim)| !before.had(&owner.key, &claim.key)) {
                conflicts.push(AddressConflict {
                    address,
                    claimant: Arc::clone(&claim.key),
                    owner: Arc::clone(&owner.key),
                    described: claim.described(),
                    text: row.status_of(place, address).error.unwrap_or_default(),
                });
            }
            if let Some(before) = before.owner.filter(|_| before.waiting.contains(&owner.key)) {
                takeovers.push(Takeover { address, owner: Arc::clone(&owner.key), before: Some(before) });
            }
        }
        (conflicts, takeovers)
    }
}
