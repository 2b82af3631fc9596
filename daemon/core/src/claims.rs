//! The owner of each frontend address. Several services may claim one address: the oldest admissible claim owns it, and
//! the others wait and are shown as conflicts.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::compile::guard::Refusal;
use crate::compile::plan::FrontendPlan;
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::service::{FrontendKind, PortKey, Service, ServiceName, Source};
use crate::state::entries::{FrontendEntry, OutsideEntry, Realised, ServiceId};
use crate::state::owner::OwnerTag;
use crate::state::status::Status;

/// One service's claim to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub key: Arc<PortKey>,
    /// The file that describes the service; empty for Kubernetes.
    pub file: Arc<str>,
    pub source: Source,
    /// The creation time of the service in seconds since 1970, if known.
    pub created: Option<u64>,
    pub kind: FrontendKind,
    /// Whether clients on the node get a backend on this node only.
    pub inside_local: bool,
    /// See [`PortKey::is_other_family`].
    pub is_other_family: bool,
    /// `inside_local` for clients outside the node.
    pub outside_local: bool,
    /// Whether clients outside the node may connect to the address.
    pub is_outside: bool,
    /// Whether only those in the service's source ranges may.
    pub has_ranges: bool,
    /// The service id of the port, or the reason why the claim can never own the address, regardless of other claims.
    pub target: Result<ServiceId, Arc<Refusal>>,
    /// Since when the claim has existed unchanged.
    pub since: Moment,
}

impl Claim {
    pub(crate) fn new(
        key: &Arc<PortKey>,
        service: &Service,
        frontend: &FrontendPlan,
        id: Result<ServiceId, Refusal>,
    ) -> Self {
        let target = match &frontend.refusal {
            Some(refusal) => Err(Arc::new(refusal.clone())),
            None => id.map_err(Arc::new),
        };
        Self {
            key: Arc::clone(key),
            file: if service.source == Source::Files { Arc::clone(&service.origin.object) } else { Arc::default() },
            source: service.source,
            created: service.created,
            kind: frontend.kind,
            inside_local: frontend.inside_local,
            is_other_family: key.is_other_family(frontend.address),
            outside_local: frontend.outside_local,
            is_outside: frontend.is_outside,
            has_ranges: frontend.has_ranges,
            target,
            since: Moment::default(),
        }
    }

    /// The claim with the smallest rank owns the address.
    fn rank(&self, incumbent: Incumbent) -> Rank<'_> {
        let (is_other, file) = match incumbent {
            Incumbent::None => (false, &*self.file),
            Incumbent::Unknown => (false, ""),
            Incumbent::Service(hash) => (OwnerTag::new(&self.key, self.source).service != hash, &*self.file),
        };
        (self.target.is_err(), self.created.unwrap_or(0), is_other, file, &self.key, self.kind)
    }

    /// The name of the service, with its file if it has one.
    pub fn described(&self) -> String {
        match &*self.file {
            "" => self.key.service.to_string(),
            file => format!("{} ({file})", self.key.service),
        }
    }

    fn says_the_same(&self, other: &Self) -> bool {
        Self { since: self.since, ..other.clone() } == *self
    }
}

/// In this order: inadmissible, creation time, not the current owner, file, port, kind.
type Rank<'a> = (bool, u64, bool, &'a str, &'a PortKey, FrontendKind);

/// The current owner of an address according to the maps. Among claims of equal age it keeps the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incumbent {
    /// The maps do not contain the address.
    None,
    /// An earlier nodelb wrote the entry without an owner. It then belongs to the first service by name.
    Unknown,
    /// The service with this hash, see [`OwnerTag::service`].
    Service(u32),
}

impl Incumbent {
    pub(crate) fn find(address: &L4Addr, realised: &Realised) -> Self {
        if !realised.frontends.contains_key(address) {
            return Self::None;
        }
        let tag = realised.service_at(*address).and_then(|entry| entry.tag);
        tag.map_or(Self::Unknown, |tag| Self::Service(tag.service))
    }
}

/// Why one description of a service takes precedence over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// It is in a local file without a creation time, and counts as older than anything in Kubernetes.
    LocalFile,
    Older,
    /// Their ages are equal, so something other than age decides.
    Equal,
}

impl Precedence {
    /// Compares two descriptions, each with its source and creation time; `first` is the one that takes precedence.
    pub fn between(first: (Source, Option<u64>), other: (Source, Option<u64>)) -> Self {
        let is_local = first == (Source::Files, None) && other.0 == Source::Kubernetes && other.1.is_some();
        match () {
            () if is_local => Self::LocalFile,
            () if first.1.unwrap_or(0) < other.1.unwrap_or(0) => Self::Older,
            () => Self::Equal,
        }
    }
}

/// A frontend address: its claims in order of precedence, and the state of the first one in the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    claims: SmallVec<[Claim; 1]>,
    pub status: RowStatus,
}

/// The status of the owner's claim, regardless of whether it has healthy backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowStatus {
    pub status: Status,
    pub since: Moment,
    /// Why the status is not OK.
    pub error: Option<Arc<str>>,
}

impl RowStatus {
    /// The initial status of a claim: usually the round that plans an operation also completes it.
    pub fn ok(since: Moment) -> Self {
        Self { status: Status::Ok, since, error: None }
    }
}

impl Default for RowStatus {
    fn default() -> Self {
        Self::ok(Moment::default())
    }
}

impl Row {
    /// Replaces the service's claims. An unchanged claim keeps its age, unless another claim owns the address now.
    pub(crate) fn replace(
        &mut self,
        service: &ServiceName,
        claims: impl Iterator<Item = Claim>,
        incumbent: Incumbent,
        now: Moment,
    ) {
        let owner = self.owner().map(|(claim, _)| Arc::clone(&claim.key));
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
        self.claims.sort_by(|a, b| a.rank(incumbent).cmp(&b.rank(incumbent)));
        if owner.is_some_and(|before| self.owner().is_none_or(|(claim, _)| claim.key != before)) {
            self.status.since = now;
            self.claims.iter_mut().filter(|claim| claim.target.is_ok()).for_each(|claim| claim.since = now);
        }
    }

    /// Sets since when the claim at this position has had its status.
    pub(crate) fn date(&mut self, place: usize, since: Moment) {
        if let Some(claim) = self.claims.get_mut(place) {
            claim.since = since;
        }
        if place == 0 {
            self.status.since = since;
        }
    }

    /// Sets the age of the first claim, if it is refused.
    pub(crate) fn date_refusal(&mut self, now: Moment) {
        self.claims.first_mut().filter(|claim| claim.target.is_err()).into_iter().for_each(|claim| claim.since = now);
    }

    /// Whether this is the only claim, except for its age, and owns the address.
    pub fn has_only(&self, claim: &Claim) -> bool {
        matches!(&*self.claims, [known] if known.target.is_ok() && known.says_the_same(claim))
    }

    /// The claims in order of precedence, the owner first.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// The admissible claims that wait for the owner.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, &Claim)> {
        self.claims.iter().enumerate().skip(1).filter(|(_, claim)| claim.target.is_ok())
    }

    /// The claim that is in effect, if any claim is admissible.
    pub fn owner(&self) -> Option<(&Claim, ServiceId)> {
        let first = self.claims.first()?;
        first.target.as_ref().ok().map(|id| (first, *id))
    }

    /// The entry that the maps should contain for the address.
    pub fn entry(&self) -> Option<FrontendEntry> {
        self.owner().map(|(claim, service)| FrontendEntry {
            service,
            inside_local: claim.inside_local || claim.is_other_family,
            outside_local: claim.outside_local,
        })
    }

    /// The entry that `outside` should contain for the address.
    pub fn outside(&self) -> Option<OutsideEntry> {
        let (claim, service) = self.owner().filter(|(claim, _)| claim.is_outside)?;
        Some(OutsideEntry { service, local: claim.outside_local, has_ranges: claim.has_ranges })
    }

    /// The status of the claim at this position, regardless of whether it has healthy backends.
    pub fn status_of(&self, place: usize, address: L4Addr) -> RowStatus {
        let claim = &self.claims[place];
        let (status, error) = match (&claim.target, self.owner()) {
            (Err(refusal), _) => (Status::Refused, refusal.to_string()),
            (Ok(_), Some((owner, _))) if place > 0 => {
                let precedence = Precedence::between((owner.source, owner.created), (claim.source, claim.created));
                let why = match precedence {
                    _ if owner.key.service == claim.key.service => "another port of this service",
                    Precedence::LocalFile => "which a local file describes: files take precedence over Kubernetes",
                    Precedence::Older => "which is older",
                    Precedence::Equal => "which already has it",
                };
                let owner = owner.described();
                let text = format!("{address} is owned by {owner}, {why}; takes over when that service gives it up");
                (Status::Conflict, text)
            }
            _ => return self.status.clone(),
        };
        RowStatus { status, since: claim.since, error: Some(error.into()) }
    }
}

#[cfg(test)]
#[path = "tests/claims.rs"]
mod tests;
