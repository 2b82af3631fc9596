//! When the connections end that have an address of the node which it no longer has.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::addr::Addr;
use nodelb_datapath::packets::ConnectionEnds;
use tokio::time::Instant;

use crate::node::addresses::Machine;

/// In how many looks, a second apart, an address must be gone until the connections that have it end: network managers remove
/// addresses and set them again. A process that was stopped meanwhile makes one late look, and not several.
const LOOKS: u32 = 5;

pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Ends connections; returns how many entries it deletes.
pub(crate) type EndConnections = Arc<dyn Fn(&dyn Fn(&ConnectionEnds) -> bool) -> io::Result<u64> + Send + Sync>;

/// Whether the backend sees an address of the node which is not among these.
pub(super) fn is_abandoned(ends: &ConnectionEnds, own: &BTreeSet<Addr>) -> bool {
    ends.past_stack.is_some_and(|(source, _)| !own.contains(&source.addr))
}

/// The wait until the connections end that have an address of the node which it no longer has.
#[derive(Debug)]
pub(super) struct Abandoned {
    /// The addresses of the node that backends may see, with their interfaces. Those of links come and go with pods.
    own: BTreeMap<Addr, u32>,
    /// The looks at these addresses that remain, and when the last one was.
    looks: u32,
    last: Option<Instant>,
    /// The addresses that are gone, and their interfaces; `None` after a start, when they are not known.
    gone: Option<BTreeMap<Addr, u32>>,
    /// Whether one of these interfaces is down.
    is_held: bool,
}

impl Abandoned {
    pub(super) fn new() -> Self {
        Self { own: BTreeMap::new(), looks: LOOKS, last: None, gone: None, is_held: false }
    }

    pub(super) const fn is_counting(&self) -> bool {
        self.looks > 0 && !self.is_held
    }

    /// Looks at the addresses; returns whether the others are gone for good. While an interface is down, its addresses are
    /// not: the kernel removes those of IPv6 with the state of the link.
    pub(super) fn look(&mut self, machine: &Machine) -> bool {
        let addresses = machine.addresses.iter().filter(|it| !it.addr.is_link_local());
        let own: BTreeMap<Addr, u32> = addresses.map(|it| (it.addr, it.interface)).collect();
        if self.own != own {
            let before = std::mem::replace(&mut self.own, own);
            if self.last.is_some() {
                let gone = self.gone.get_or_insert_default();
                gone.extend(before);
                gone.retain(|addr, _| !self.own.contains_key(addr));
            }
            (self.looks, self.last) = (LOOKS, Some(Instant::now()));
            return false;
        }
        let is_down = |index: &u32| machine.interfaces.get(index).is_some_and(|it| !it.is_up && !it.is_loopback);
        self.is_held = match &self.gone {
            Some(gone) => gone.values().any(is_down),
            None => machine.interfaces.keys().any(is_down),
        };
        let is_early = self.last.is_some_and(|last| last.elapsed() < LOOK_EVERY);
        if !self.is_counting() || is_early {
            return false;
        }
        self.looks -= 1;
        self.last = Some(Instant::now());
        let is_over = self.looks == 0;
        if is_over {
            self.gone = Some(BTreeMap::new());
        }
        is_over
    }
}
