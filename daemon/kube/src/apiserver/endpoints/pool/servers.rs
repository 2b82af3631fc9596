//! The known addresses and the one in use.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use fastrand::Rng;
use nodelb_core::model::moment::Moment;

use super::candidate::Candidate;
use crate::apiserver::address::Address;
use crate::apiserver::endpoints::timeouts::PoolTimeouts;

#[derive(Clone, Debug)]
pub struct Pool {
    pub(super) timeouts: PoolTimeouts,
    /// All addresses in order of preference.
    pub(super) candidates: Vec<Candidate>,
    pub(super) in_use: Option<InUse>,
    /// When the last session over an address ended.
    pub(super) lost: Option<Moment>,
    /// The address that was most recently in use, also while none is in use.
    pub(super) last_used: Option<Address>,
    pub(super) switches: u64,
    /// The addresses that the cluster currently lists.
    pub(super) listed: BTreeSet<SocketAddr>,
    pub(super) learned_name: Arc<str>,
    pub(super) seed: u64,
    /// Randomizes times, so that the nodes of a cluster do not act simultaneously.
    pub(super) random: Rng,
}

#[derive(Clone, Debug)]
pub(super) struct InUse {
    pub(super) address: Address,
    pub(super) opened: Moment,
    /// Whether it is already recorded that requests over this session keep failing.
    pub(super) has_failed_session: bool,
    /// The number of consecutive failed probes.
    pub(super) strikes: u32,
}
