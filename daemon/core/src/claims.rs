//! Who owns which frontend address. Several services may claim one; the oldest admissible claim owns it, the others
//! wait in line and are shown as such.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::addr::L4Addr;
use crate::compile::{FrontendPlan, Refusal};
use crate::datapath::Moment;
use crate::report::Status;
use crate::service::{FrontendKind, PortKey, ServiceName};
use crate::state::{FrontendEntry, ServiceId};

/// One service's claim to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Whose.
    pub(crate) key: Arc<PortKey>,
    pub(crate) created: u64,
    pub(crate) kind: FrontendKind,
    pub(crate) inside_local: bool,
    pub(crate) outside_local: bool,
    /// The port's entry in the kernel, or why the claim cannot own the address whoever else claims it.
    pub(crate) target: Result<ServiceId, Arc<Refusal>>,
    /// Since when it has been claimed just so.
    pub(crate) since: Moment,
}

impl Claim {
    pub(crate) fn new(
        key: &Arc<PortKey>,
        created: Option<u64>,
        frontend: &FrontendPlan,
        id: Result<ServiceId, Refusal>,
    ) -> Self {
        let target = match &frontend.refusal {
            Some(refusal) => Err(Arc::new(refusal.clone())),
            None => id.map_err(Arc::new),
        };
        Self {
            key: Arc::clone(key),
            created: created.unwrap_or(0),
            kind: frontend.kind,
            inside_local: frontend.inside_local,
            outside_local: frontend.outside_local,
            target,
            since: Moment::default(),
        }
    }

    fn rank(&self) -> (bool, u64, &PortKey, FrontendKind) {
        (self.target.is_err(), self.created, &self.key, self.kind)
    }

    fn says_the_same(&self, other: &Self) -> bool {
        Self { since: self.since, ..other.clone() } == *self
    }
}

/// A frontend address: its claims in line, and how the kernel stands to the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    claims: SmallVec<[Claim; 1]>,
    pub(crate) status: RowStatus,
}

/// The status of the owner's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowStatus {
    pub(crate) status: Status,
    pub(crate) since: Moment,
    pub(crate) error: Option<Arc<str>>,
}

impl RowStatus {
    /// Where a claim starts from: what is planned is usually done within the round.
    pub(crate) fn done(since: Moment) -> Self {
        Self { status: Status::Done, since, error: None }
    }
}

impl Default for RowStatus {
    fn default() -> Self {
        Self::done(Moment::default())
    }
}

impl Row {
    /// Puts these in place of the service's claims so far. An unchanged claim keeps its age.
    pub(crate) fn replace(&mut self, service: &ServiceName, claims: impl Iterator<Item = Claim>, now: Moment) {
        let mut old: SmallVec<[Claim; 1]> = SmallVec::new();
        self.claims.retain(|claim| {
            let is_replaced = claim.key.service == *service;
            if is_replaced {
                old.push(claim.clone());
            }
            !is_replaced
        });
        for mut claim in claims {
            claim.since = old.iter().find(|o| o.says_the_same(&claim)).map_or(now, |o| o.since);
            self.claims.push(claim);
        }
        self.claims.sort_by(|a, b| a.rank().cmp(&b.rank()));
    }

    /// In line, the owner first.
    pub(crate) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// The claim that counts, if any may.
    pub(crate) fn owner(&self) -> Option<(&Claim, ServiceId)> {
        let first = self.claims.first()?;
        first.target.as_ref().ok().map(|id| (first, *id))
    }

    /// What the kernel should hold for the address.
    pub(crate) fn entry(&self) -> Option<FrontendEntry> {
        self.owner().map(|(claim, service)| FrontendEntry {
            service,
            inside_local: claim.inside_local,
            outside_local: claim.outside_local,
        })
    }

    /// What `/frontends` says of the claim at this place in line.
    pub(crate) fn status_of(&self, place: usize, address: L4Addr) -> RowStatus {
        let claim = &self.claims[place];
        let error = match (&claim.target, self.owner()) {
            (Err(refusal), _) => refusal.to_string(),
            (Ok(_), Some((owner, _))) if place > 0 => {
                let why = if owner.key.service == claim.key.service {
                    "another port of this service"
                } else if owner.created < claim.created {
                    "which is older"
                } else {
                    "which is as old and comes first by name"
                };
                format!("{address} is owned by {}, {why}; takes over when that goes", owner.key.service)
            }
            _ => return self.status.clone(),
        };
        RowStatus { status: Status::Error, since: claim.since, error: Some(error.into()) }
    }
}

#[cfg(test)]
mod tests;
