//! Applies operations to the maps. Owns the order of the stores within one operation; the caller decides the order of
//! the operations.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags};
use nodelb_core::datapath::MapError;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{MAX_VIEW_SLOTS, MapOp, MapState, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::ring;
use nodelb_core::state::runs::{Need, Owned, Run, Runs};

use crate::counters::Counters;
use crate::crash::CrashPoint;
use crate::error::map_failed;
use crate::grace::Grace;
use crate::layout::{self, Client, Policy, View};
use crate::maps::{Epoch, Maps, ViewKind};
use crate::outside::{OUTSIDE, OutsideMaps, RANGES, UPLINKS, put};
use crate::packet_path::OpenedPackets;
use crate::packets::outside_addrs::OutsideAddrs;
use crate::packets::{PacketBloom, PacketCounter};
use crate::read::{has_its_ring, whole_run};
use crate::sys;

/// The smallest number of consecutive operations of one kind that are combined into one system call, which costs as
/// much as a few single ones.
const BATCH_MIN: usize = 16;
/// The largest number of operations in one system call, so that no call uses the CPU for long.
const BATCH_MAX: usize = 1024;

/// The only writer of the maps.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) maps: Arc<Maps>,
    pub(crate) runs: Runs,
    pub(crate) placed: Placements,
    pub(crate) grace: Option<Grace>,
    pub(crate) counters: Option<Arc<Counters>>,
    /// What the packet programs count; `None` without the packet path.
    pub(crate) packet_counter: Option<Arc<PacketCounter>>,
    /// Lets the packet programs find addresses of `outside`; `None` without the packet path.
    pub(crate) bloom: Option<Arc<PacketBloom>>,
    /// The addresses of `outside`; `None` without the packet path.
    pub(crate) outside_addrs: Option<Arc<OutsideAddrs>>,
    pub(crate) epoch: Epoch,
    pub(crate) crash: CrashPoint,
}

/// The position of each service's two lists with their rings, as this writer has placed them. The maps contain the positions too, but
/// any program that may write the maps can change them there.
#[derive(Debug, Default)]
pub(crate) struct Placements {
    runs: Vec<[Run; 2]>,
    owned: Vec<[Owned; 2]>,
    /// Whether the counts of an id belong to a deleted service. The maps of counts are new at each start.
    has_old_counts: Vec<bool>,
    /// Deleted services that a program may still be reading, each with the number of the round.
    left: BTreeMap<ServiceId, u64>,
}

/// No slots, and no space in use.
const NOWHERE: Run = Run { first: 0, len: 0 };

impl Placements {
    /// The positions in maps with trusted content, which is this state.
    pub(crate) fn read(maps: &Maps, state: &MapState, runs: &mut Runs) -> Self {
        let mut placed = Self::default();
        for id in (0..maps.limits.services).filter(|id| maps.policy(*id).in_use) {
            placed.put(ServiceId(id));
            for which in [ViewKind::Cluster, ViewKind::Local] {
                let has_rings = state.services.get(&ServiceId(id)).is_some_and(|entry| entry.has_rings);
                let run = whole_run(maps.view(id, which).run, has_rings);
                placed.set(ServiceId(id), which, run);
                runs.own(&mut placed.owned[id as usize][which as usize], maps.view(id, which).run.len);
            }
        }
        placed
    }

    fn get(&self, id: ServiceId, which: ViewKind) -> Run {
        self.runs.get(id.0 as usize).map_or(NOWHERE, |runs| runs[which as usize])
    }

    /// Records that the service exists; returns whether the counts of its id belong to a deleted service.
    fn put(&mut self, id: ServiceId) -> bool {
        self.make_room(id);
        std::mem::take(&mut self.has_old_counts[id.0 as usize])
    }

    fn delete(&mut self, id: ServiceId) {
        if let Some(has_old_counts) = self.has_old_counts.get_mut(id.0 as usize) {
            *has_old_counts = true;
        }
    }

    fn make_room(&mut self, id: ServiceId) {
        let index = id.0 as usize;
        if index >= self.runs.len() {
            self.runs.resize(index + 1, [NOWHERE; 2]);
            self.owned.resize(index + 1, [Owned::default(); 2]);
            self.has_old_counts.resize(index + 1, false);
        }
    }

    fn set(&mut self, id: ServiceId, which: ViewKind, run: Run) {
        self.make_room(id);
        self.runs[id.0 as usize][which as usize] = run;
    }
}

impl Writer {
    /// Makes changes of the maps known to the packet programs that a start has loaded.
    pub(crate) fn serve_packets(&mut self, packets: Option<&OpenedPackets>) {
        self.packet_counter = packets.map(|packets| Arc::clone(&packets.counter));
        self.bloom = packets.map(|packets| Arc::clone(&packets.bloom));
        self.outside_addrs = packets.map(|packets| Arc::clone(&packets.outside_addrs));
    }

    pub(crate) fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        self.release_completed();
        let mut results = Vec::with_capacity(ops.len());
        while results.len() < ops.len() {
            let rest = &ops[results.len()..];
            let batch = &rest[..batch_len(rest)];
            if batch.len() >= BATCH_MIN && self.apply_batch(batch) {
                self.crash.pass();
                results.extend(std::iter::repeat_n(Ok(()), batch.len()));
            } else {
                // Also after a batch that has failed midway: each operation may be repeated.
                results.extend(batch.iter().map(|op| self.apply_one(op, now)));
            }
        }
        self.maps.slot_usage.set(&self.runs, now);
        results
    }

    /// Ends the round: what was unpublished in it rests from now on. If the kernel can report grace periods, nothing is
    /// reused before it has confirmed that no program reads it any more, starting with the first round that ends like
    /// this.
    pub(crate) fn end_round(&mut self, ended: Moment) {
        let grace = self.grace.get_or_insert_with(|| {
            let grace = Grace::default();
            if grace.is_available() {
                self.runs.wait_for_release();
            }
            grace
        });
        let round = self.runs.rounds();
        self.runs.end_round(ended);
        let has_left = self.placed.left.values().any(|left| *left == round);
        let is_unpublished = has_left || self.runs.has_freed(round);
        if is_unpublished && !self.runs.is_released(round) {
            grace.request(round + 1);
        }
    }

    /// Applies the grace periods that have ended since the last call.
    fn release_completed(&mut self) {
        let Some(grace) = &self.grace else { return };
        match grace.completed() {
            Some(rounds) => self.runs.release(rounds),
            None => self.runs.rest_by_time_alone(),
        }
        let runs = &self.runs;
        self.placed.left.retain(|_, round| !runs.is_released(*round));
    }

    /// Copies the backends of the clients that fit, those that were used last, unless the map has a later use of them. The
    /// kernel evicts last what is stored last.
    pub(crate) fn copy_affinity(&self, mut clients: Vec<Client>) -> io::Result<()> {
        clients.sort_unstable_by_key(|client| client.last_used_ns);
        let too_many = clients.len().saturating_sub(self.maps.limits.affinity as usize);
        for client in &clients[too_many..] {
            let (key, value) = layout::client(client);
            let known = sys::look_up(&self.maps.affinity, &key)?.and_then(|known| known.try_into().ok());
            let known = known.map(|known| layout::parse_client(&key, &known));
            if known.is_none_or(|known| known.last_used_ns < client.last_used_ns) {
                sys::update(&self.maps.affinity, &key, &value)?;
                self.crash.pass();
            }
        }
        Ok(())
    }

    /// Applies a batch; returns whether the kernel accepted all operations.
    fn apply_batch(&self, batch: &[MapOp]) -> bool {
        let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0u32);
        for op in batch {
            match op {
                MapOp::PutFrontend(addr, entry) => {
                    keys.extend(layout::frontend_key(addr));
                    values.extend(layout::frontend(addr, entry));
                }
                MapOp::DeleteFrontend(addr) => keys.extend(layout::frontend_key(addr)),
                _ => return false,
            }
            count += 1;
        }
        let frontends = &self.maps.frontends;
        let done = self.epoch.change(|| {
            if values.is_empty() {
                frontends.delete_batch(&keys, count, MapFlags::ANY, MapFlags::ANY)
            } else {
                frontends.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
            }
        });
        done.is_ok()
    }

    fn apply_one(&mut self, op: &MapOp, now: Moment) -> Result<(), MapError> {
        match op {
            MapOp::PutService(id, entry) => self.put_service(*id, entry, now),
            MapOp::DeleteService(id) => self.delete_service(*id, now),
            MapOp::PutFrontend(addr, entry) => self.change(|maps| {
                let full = || MapError::Full { map: "frontends", limit: maps.limits.frontends };
                let (key, value) = (layout::frontend_key(addr), layout::frontend(addr, entry));
                put(&maps.frontends, "frontends", (&key, &value), full)
            }),
            MapOp::DeleteFrontend(addr) => self.change(|maps| {
                sys::delete(&maps.frontends, &layout::frontend_key(addr)).map_err(map_failed("frontends"))
            }),
            MapOp::PutNodeAddr(addr) => self.change(|maps| {
                let full = || MapError::TooManyNodeAddrs { limit: maps.node_addrs.max_entries() };
                put(&maps.node_addrs, "node_addrs", (&layout::node_addr(*addr), &0u32.to_ne_bytes()), full)
            }),
            MapOp::DeleteNodeAddr(addr) => self.change(|maps| {
                sys::delete(&maps.node_addrs, &layout::node_addr(*addr)).map_err(map_failed("node_addrs"))
            }),
            MapOp::PutOutside(addr, entry) => {
                if let Some(bloom) = &self.bloom {
                    bloom.add_outside(addr);
                }
                let (key, value) = (layout::frontend_key(addr), layout::outside(addr, entry));
                self.change(|maps| maps.outside.put(OUTSIDE, &key, &value))?;
                self.change_outside_addrs(|addrs| addrs.add(addr))
            }
            MapOp::DeleteOutside(addr) => {
                self.change(|maps| maps.outside.delete(OUTSIDE, &layout::frontend_key(addr)))?;
                self.change_outside_addrs(|addrs| addrs.remove(addr))
            }
            MapOp::PutSourceRange(id, range) => {
                self.change(|maps| maps.outside.put(RANGES, &layout::range(*id, *range), &0u32.to_ne_bytes()))
            }
            MapOp::DeleteSourceRange(id, range) => {
                self.change(|maps| maps.outside.delete(RANGES, &layout::range(*id, *range)))
            }
            MapOp::PutUplink(index, entry) => {
                self.change_outside(|maps| maps.put(UPLINKS, &index.to_ne_bytes(), &layout::uplink(entry)))
            }
            MapOp::DeleteUplink(index) => self.change_outside(|maps| maps.delete(UPLINKS, &index.to_ne_bytes())),
        }
    }

    /// Makes one system call on the maps that the epoch covers.
    fn change(&self, work: impl FnOnce(&Maps) -> Result<(), MapError>) -> Result<(), MapError> {
        self.epoch.change(|| work(&self.maps))?;
        self.crash.pass();
        Ok(())
    }

    /// Makes one system call on a map for clients outside the node.
    fn change_outside(&self, work: impl FnOnce(&OutsideMaps) -> Result<(), MapError>) -> Result<(), MapError> {
        work(&self.maps.outside)?;
        self.crash.pass();
        Ok(())
    }

    /// Makes one system call on the map of the addresses of `outside`, if there is one.
    fn change_outside_addrs(&self, work: impl FnOnce(&OutsideAddrs) -> io::Result<()>) -> Result<(), MapError> {
        let Some(addrs) = &self.outside_addrs else { return Ok(()) };
        work(addrs).map_err(map_failed("outside_addrs"))?;
        self.crash.pass();
        Ok(())
    }

    fn put_service(&mut self, id: ServiceId, entry: &ServiceEntry, now: Moment) -> Result<(), MapError> {
        if id.0 >= self.maps.limits.services {
            return Err(MapError::Full { map: "services", limit: self.maps.limits.services });
        }
        if self.placed.left.get(&id).is_some_and(|round| !self.runs.is_released(*round)) {
            return Err(MapError::Resting);
        }
        let cluster = self.place(id, ViewKind::Cluster, entry, now)?;
        let local = match self.place(id, ViewKind::Local, entry, now) {
            Ok(local) => local,
            Err(error) => {
                if let Some(fresh) = cluster.filter(|run| *run != self.placed.get(id, ViewKind::Cluster)) {
                    self.runs.free_unpublished(fresh);
                }
                return Err(error);
            }
        };
        if self.placed.put(id) {
            self.reset_counts(id);
        }
        // Before the views: a service is in use as long as any program can find slots through it.
        let policy = Policy {
            in_use: true,
            has_backends: entry.has_backends,
            affinity_seconds: entry.affinity_seconds,
            may_be_bound: entry.may_be_bound,
            has_rings: entry.has_rings,
            has_ranges: entry.has_ranges,
            is_last_resort: entry.is_last_resort,
            is_local_last_resort: entry.is_local_last_resort,
            forward: entry.forward,
            source: entry.tag.map(|tag| tag.source),
        };
        let owner = match id {
            ServiceId::CANARY => layout::next_ids_word(entry.next_ids),
            _ => layout::owner_word(entry.tag),
        };
        if self.maps.owner(id.0) != owner {
            // During the change the entry names no source, so that readers ignore the owner word.
            let before = self.maps.policy(id.0);
            if before.source.is_some() {
                self.maps.set_policy(id.0, Policy { source: None, ..before });
            }
            self.maps.set_owner(id.0, owner);
            self.crash.pass();
        }
        if self.maps.policy(id.0) != policy {
            self.maps.set_policy(id.0, policy);
            self.crash.pass();
        }
        for (which, run, list) in [(ViewKind::Cluster, cluster, &entry.cluster), (ViewKind::Local, local, &entry.local)]
        {
            if let Some(run) = run {
                if run != self.placed.get(id, which) {
                    self.write(run, list);
                }
                let len = u32::try_from(list.len()).expect("invariant: place refuses longer lists");
                self.switch(id, which, (run, len), now);
            }
        }
        Ok(())
    }

    fn reset_counts(&self, id: ServiceId) {
        if let Some(counters) = &self.counters {
            counters.reset(id);
        }
        if let Some(counter) = &self.packet_counter {
            counter.reset(id);
        }
    }

    /// Selects a run for the list and its ring; `None` if both are already stored. The previous run is used again if
    /// only the view no longer points to it: that takes no space.
    fn place(
        &mut self,
        id: ServiceId,
        which: ViewKind,
        entry: &ServiceEntry,
        now: Moment,
    ) -> Result<Option<Run>, MapError> {
        let list = which.list(entry);
        let len = match u32::try_from(entry.run_len(list)) {
            Ok(len) if list.len() <= MAX_VIEW_SLOTS => len,
            _ => {
                let reason = format!("service {id} has {} slots, {MAX_VIEW_SLOTS} at most fit a view", list.len());
                return Err(MapError::Failed { map: "services", reason });
            }
        };
        let placed = self.placed.get(id, which);
        let is_same = |(at, slot)| self.maps.slot(at) == layout::slot_words(slot);
        let has_ring = || !entry.has_rings || has_its_ring(&self.maps, placed, list);
        if placed.len == len && (placed.first..).zip(list).all(is_same) && has_ring() {
            let shown = self.maps.view(id.0, which).run;
            let is_published = shown.first == placed.first && shown.len as usize == list.len();
            return Ok((!is_published).then_some(placed));
        }
        let owned = self.placed.owned.get(id.0 as usize).map_or_else(Owned::default, |owned| owned[which as usize]);
        let need = Need { list: list.len().try_into().unwrap_or(u32::MAX), run: len, owned };
        match self.runs.allocate(need, now) {
            Some(run) => Ok(Some(run)),
            None if self.runs.has_room_after_rest(need) => Err(MapError::Resting),
            None => Err(MapError::Full { map: "slots", limit: self.maps.limits.slots }),
        }
    }

    /// Writes the list, and its ring if the run has space for one.
    fn write(&self, run: Run, list: &[Slot]) {
        let end = run.first + run.len;
        for (at, slot) in (run.first..end).zip(list) {
            self.maps.set_slot(at, layout::slot_words(slot));
        }
        let behind = (run.first..end).skip(list.len());
        if run.len as usize > list.len() {
            for (at, part) in behind.zip(ring::ring(list).chunks(ring::OFFSETS_PER_SLOT)) {
                self.maps.set_slot(at, layout::ring_words(part));
            }
        }
        self.crash.pass();
    }

    /// Publishes the first `len` slots of the run, and puts the old run to rest if it differs.
    fn switch(&mut self, id: ServiceId, which: ViewKind, (run, len): (Run, u32), now: Moment) {
        let generation = self.maps.view(id.0, which).generation.wrapping_add(1);
        self.maps.publish(id.0, which, View { run: Run { len, ..run }, generation });
        let before = self.placed.get(id, which);
        if run != before {
            self.runs.free(before, now);
            self.placed.set(id, which, run);
            self.runs.own(&mut self.placed.owned[id.0 as usize][which as usize], len);
        }
        self.crash.pass();
    }

    fn delete_service(&mut self, id: ServiceId, now: Moment) -> Result<(), MapError> {
        if id.0 >= self.maps.limits.services {
            return Ok(());
        }
        let mut is_there = self.maps.policy(id.0).in_use;
        for which in [ViewKind::Cluster, ViewKind::Local] {
            if self.maps.view(id.0, which).run.len > 0 || self.placed.get(id, which).len > 0 {
                self.switch(id, which, (NOWHERE, 0), now);
                is_there = true;
            }
        }
        self.placed.delete(id);
        self.placed.owned.get_mut(id.0 as usize).into_iter().flatten().for_each(|owned| self.runs.disown(owned));
        if !is_there {
            return Ok(());
        }
        self.maps.set_policy(id.0, Policy::default());
        self.maps.set_owner(id.0, 0);
        if self.grace.is_some() {
            self.placed.left.insert(id, self.runs.rounds());
        }
        self.crash.pass();
        Ok(())
    }
}

/// The number of leading operations that have the kind of the first and fit into one batch; at least 1.
fn batch_len(ops: &[MapOp]) -> usize {
    let puts = |op: &&MapOp| matches!(op, MapOp::PutFrontend(..));
    let deletes = |op: &&MapOp| matches!(op, MapOp::DeleteFrontend(_));
    let ops = &ops[..ops.len().min(BATCH_MAX)];
    ops.iter().take_while(puts).count().max(ops.iter().take_while(deletes).count()).max(1)
}
