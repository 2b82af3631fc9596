//! `/packets`: packets of clients outside the node and what became of them, while a client watches.

use std::sync::Arc;
use std::time::Duration;

use nodelb_core::snapshot::Snapshot;
use nodelb_datapath::packets::{Captured, EventFilter, PacketEvent, unix_micros};
use nodelb_report::rows::{DIRECTIONS, LINKS, LostRow, PacketRow, Packets as PacketsAnswer, WatcherRow};
use tokio::sync::watch;
use tokio::time::timeout;

use super::changes::{AnyRow, Change, Mark};
use super::connections::requested_ids;
use super::query::Query;
use super::state::{AdminState, latest};
use crate::devices::events::{Lost, PacketWatch};
use crate::devices::report::DevicesReport;

/// The number of packets in one piece of an answer.
const PIECE: usize = 1000;

/// The interval at which lost packets are looked for while there are no others.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Returns no packet, because they are shown only while a client watches, and one row about those who watch; no row
/// without the packet path.
pub(super) fn packets(state: &AdminState) -> PacketsAnswer {
    let watchers = state.packets.as_ref().and_then(|packets| packets.watchers.as_ref());
    let row = watchers.map(|watchers| {
        let (number, lost) = watchers.counts();
        WatcherRow { watchers: number as u64, lost }
    });
    PacketsAnswer { packets: Vec::new(), watchers: row.into_iter().collect() }
}

/// Follows the packets that match a query.
pub(super) struct Packets {
    /// `None` without the packet path: there will be no packet.
    watch: Option<PacketWatch>,
    devices: Option<watch::Receiver<Arc<DevicesReport>>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The event that [`Self::changed`] has waited for.
    first: Option<Arc<PacketEvent>>,
}

impl Packets {
    /// Follows packets from now on. A service that gets another port later is not followed at that port.
    pub(super) fn new(state: &AdminState, query: &Query) -> Self {
        let wanted = EventFilter { services: requested_ids(&state.snapshot(), query), only_dropped: query.dropped };
        let packets = state.packets.as_ref();
        Self {
            watch: packets.and_then(|packets| packets.watchers.as_ref()).map(|watchers| watchers.watch(wanted)),
            devices: packets.map(|packets| packets.devices.clone()),
            snapshots: state.owner.snapshot.clone(),
            first: None,
        }
    }

    /// Waits for a packet, or for lost ones that none follows; `false` if there will be none.
    pub(super) async fn changed(&mut self) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        while self.first.is_none() {
            match timeout(LOOK_EVERY, watch.next()).await {
                Ok(None) => return false,
                Ok(event) => self.first = event,
                Err(_) if watch.has_lost() => return true,
                Err(_) => {}
            }
        }
        true
    }

    /// Returns the packets since the last call.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        let Some(watch) = &mut self.watch else { return Vec::new() };
        let mut events: Vec<Arc<PacketEvent>> = self.first.take().into_iter().collect();
        while events.len() < PIECE
            && let Some(event) = watch.take()
        {
            events.push(event);
        }
        let mut lost = watch.take_lost();
        if events.is_empty() && lost.number > 0 {
            let row = AnyRow::Lost(LostRow { lost: lost.number, lost_at_most: lost.is_at_most });
            return vec![Change { mark: Mark::Changed, number: None, row }];
        }
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let devices = self.devices.as_ref().map(latest).unwrap_or_default();
        let row = |event: &Arc<PacketEvent>| {
            AnyRow::Packet(row(event, &snapshot, &devices, std::mem::take(&mut lost)).into())
        };
        events.iter().map(row).map(|row| Change { mark: Mark::Added, number: None, row }).collect()
    }
}

/// The row about a packet. `lost` packets before it are not shown.
fn row(event: &PacketEvent, snapshot: &Snapshot, devices: &DevicesReport, lost: Lost) -> PacketRow {
    let device = |ifindex: u32| {
        let known = devices.devices.iter().find(|it| it.device.ifindex == ifindex);
        known.map_or_else(|| format!("({ifindex})"), |it| it.device.name.to_string())
    };
    let [arriving, leaving] = DIRECTIONS;
    let after = event.after.as_ref();
    PacketRow {
        time: unix_micros(event.time),
        device: device(event.ifindex),
        direction: if event.is_leaving { leaving } else { arriving }.into(),
        verdict: event.verdict.name().into(),
        reason: event.reason.as_ref().map(ToString::to_string),
        service: event.service.and_then(|id| snapshot.service_of(id)),
        link: link(&event.before),
        length: event.before.length.into(),
        bytes: hex(&event.before.bytes),
        next_device: event.next_ifindex.map(device),
        next_link: after.map(link),
        next_length: after.map(|after| after.length.into()),
        next_bytes: after.map(|after| hex(&after.bytes)),
        lost: lost.number,
        lost_at_most: lost.number > 0 && lost.is_at_most,
    }
}

fn link(captured: &Captured) -> String {
    let [ethernet, ip] = LINKS;
    if captured.has_ethernet { ethernet } else { ip }.into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "tests/packets.rs"]
mod tests;
