//! The ways of packets of clients outside the node to backends: which of them pass a firewall of this node, and which leave by
//! a device without programs although other machines are behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use nodelb_core::model::addr::Addr;
use nodelb_core::packets::outcomes::Answered;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{ServiceId, Slot};
use nodelb_host::messages;
use nodelb_report::problems::{self, DroppingChain, Ways};
use tracing::{info, warn};

use crate::node::netlink::{self, Way};

/// The maximum number of backends of which the route is asked for. Each question takes some microseconds.
const MOST: usize = 2_048;

/// What is on the ways, and what was logged about it.
#[derive(Debug, Default)]
pub(super) struct WaysLook {
    pub(super) found: Arc<Ways>,
    /// The chains that something was behind at the last look.
    logged: Option<Vec<DroppingChain>>,
    logged_gateways: BTreeSet<Arc<str>>,
}

impl WaysLook {
    /// Looks at what is behind these chains and these devices, and logs the first time that something is.
    pub(super) async fn look(
        &mut self,
        chains: &[DroppingChain],
        without_programs: BTreeMap<u32, Arc<str>>,
        snapshot: &Arc<Snapshot>,
    ) {
        let (of, through) = (Arc::clone(snapshot), chains.to_vec());
        let read = tokio::task::spawn_blocking(move || ways(&of, (through, &without_programs), netlink::ways_out));
        // Routes that cannot be read are read again in some seconds.
        let Ok(Ok(found)) = read.await else { return };
        self.found = Arc::new(found);
        let unanswered = problems::behind_firewall(snapshot, &self.found.firewall, &Answered::default());
        let behind = unanswered.map(|unanswered| (chains.to_vec(), unanswered.cause));
        let is_new = behind.as_ref().map(|(chains, _)| chains) != self.logged.as_ref();
        if let Some((_, cause)) = behind.as_ref().filter(|_| is_new) {
            info!(message_id = %messages::FORWARD_DROPS, "{cause}");
        }
        self.logged = behind.map(|(chains, _)| chains);
        self.logged_gateways.retain(|device| self.found.gateways.contains_key(device));
        for gateway in problems::gateways(snapshot, &self.found) {
            if self.logged_gateways.insert(gateway.device) {
                warn!(message_id = %messages::GATEWAY_WITHOUT_PROGRAMS, "{}", gateway.cause);
            }
        }
    }
}

/// What is on the ways to the backends for clients outside the node that have no address of this node. `ways_out` asks for the
/// routes.
///
/// Packets to those that no uplink reaches pass the firewall; the programs redirect those to other machines past it.
fn ways(
    snapshot: &Snapshot,
    (chains, without_programs): (Vec<DroppingChain>, &BTreeMap<u32, Arc<str>>),
    ways_out: impl FnOnce(Vec<Addr>) -> io::Result<BTreeMap<Addr, Way>>,
) -> io::Result<Ways> {
    let realised = &snapshot.realised;
    let own = &snapshot.facts.node().addresses;
    let views: BTreeSet<(ServiceId, bool)> =
        realised.outside.values().map(|entry| (entry.service, entry.local)).collect();
    let slots = views.into_iter().flat_map(|(id, local)| {
        let entry = realised.services.get(&id);
        entry.into_iter().flat_map(move |entry| entry.view(local)).map(move |slot| (id, slot))
    });
    let is_elsewhere = |addr: Addr| !addr.is_loopback() && !own.contains(&addr);
    let slots: Vec<(ServiceId, &Slot)> = slots.filter(|(_, slot)| is_elsewhere(slot.addr.addr)).collect();
    let addresses: BTreeSet<Addr> = slots.iter().map(|(_, slot)| slot.addr.addr).collect();
    let mut found = Ways::default();
    if addresses.is_empty() || chains.is_empty() && without_programs.is_empty() {
        return Ok(found);
    }
    let ways = ways_out(addresses.into_iter().take(MOST).collect())?;
    for (id, slot) in slots {
        let addr = slot.addr.addr;
        let Some(way) = ways.get(&addr).filter(|way| !realised.uplinks.contains_key(&way.device)) else { continue };
        if chains.iter().any(|chain| chain.drops(addr.family())) {
            found.firewall.behind.entry(id).or_default().insert(slot.backend);
        }
        if let Some(device) = without_programs.get(&way.device).filter(|_| way.has_gateway) {
            found.gateways.entry(Arc::clone(device)).or_default().insert(id);
        }
    }
    found.firewall.chains = chains;
    Ok(found)
}

#[cfg(test)]
#[path = "tests/ways.rs"]
mod tests;
