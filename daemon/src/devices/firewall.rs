//! Which backends the packets of clients outside the node reach only if a firewall of this node accepts them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use nodelb_core::model::addr::Addr;
use nodelb_core::packets::outcomes::Answered;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{BackendId, ServiceId, Slot};
use nodelb_host::messages;
use nodelb_report::problems::{self, DroppingChain, Firewall};
use tracing::info;

use crate::node::netlink;

/// The maximum number of backends of which the route is asked for. Each question takes some microseconds.
const MOST: usize = 2_048;

/// What the firewall may drop, and what was logged about it.
#[derive(Debug, Default)]
pub(super) struct FirewallLook {
    pub(super) found: Arc<Firewall>,
    logged: Option<Vec<DroppingChain>>,
}

impl FirewallLook {
    /// Looks at what is behind these chains, if there are any, and logs the first time that something is.
    pub(super) async fn look(&mut self, chains: &[DroppingChain], snapshot: &Arc<Snapshot>) {
        if chains.is_empty() {
            *self = Self::default();
            return;
        }
        let (of, through) = (Arc::clone(snapshot), chains.to_vec());
        let read = tokio::task::spawn_blocking(move || behind(&of, &through, netlink::ways_out));
        // Routes that cannot be read are read again in some seconds.
        let Ok(Ok(behind)) = read.await else { return };
        self.found = Arc::new(Firewall { chains: chains.to_vec(), behind });
        let unanswered = problems::behind_firewall(snapshot, &self.found, &Answered::default());
        if let Some(unanswered) = unanswered.filter(|_| self.logged.as_deref() != Some(chains)) {
            info!(message_id = %messages::FORWARD_DROPS, "{}", unanswered.cause);
            self.logged = Some(chains.to_vec());
        }
    }
}

/// The backends for clients outside the node that are not reached by an uplink, and have no address of this node: packets to
/// them pass these chains. The programs redirect those to other machines past them. `ways_out` asks for the routes.
fn behind(
    snapshot: &Snapshot,
    chains: &[DroppingChain],
    ways_out: impl FnOnce(Vec<Addr>) -> io::Result<BTreeMap<Addr, u32>>,
) -> io::Result<BTreeMap<ServiceId, BTreeSet<BackendId>>> {
    let realised = &snapshot.realised;
    let own = &snapshot.facts.node().addresses;
    let views: BTreeSet<(ServiceId, bool)> =
        realised.outside.values().map(|entry| (entry.service, entry.local)).collect();
    let slots = views.into_iter().flat_map(|(id, local)| {
        let entry = realised.services.get(&id);
        entry.into_iter().flat_map(move |entry| entry.view(local)).map(move |slot| (id, slot))
    });
    let drops = |addr: Addr| chains.iter().any(|chain| chain.drops(addr.family()));
    let may_be_behind = |addr: Addr| drops(addr) && !addr.is_loopback() && !own.contains(&addr);
    let slots: Vec<(ServiceId, &Slot)> = slots.filter(|(_, slot)| may_be_behind(slot.addr.addr)).collect();
    let addresses: BTreeSet<Addr> = slots.iter().map(|(_, slot)| slot.addr.addr).collect();
    let ways = ways_out(addresses.into_iter().take(MOST).collect())?;
    let mut found: BTreeMap<ServiceId, BTreeSet<BackendId>> = BTreeMap::new();
    for (id, slot) in slots {
        if ways.get(&slot.addr.addr).is_some_and(|device| !realised.uplinks.contains_key(device)) {
            found.entry(id).or_default().insert(slot.backend);
        }
    }
    Ok(found)
}

#[cfg(test)]
#[path = "tests/firewall.rs"]
mod tests;
