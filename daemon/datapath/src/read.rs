//! Reads the content of the maps and never writes. Content that nodelb cannot have written is reported and left out.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nodelb_core::datapath::MapError;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{MapState, NextIds, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::kernel_check::{Content, EntryKey};
use nodelb_core::state::ring;
use nodelb_core::state::runs::{Run, Runs};

use crate::error::map_failed;
use crate::layout::{self, Client, Policy};
use crate::maps::{Maps, ViewKind};
use crate::outside::look_up;
use crate::sys;

/// Reads the maps at any time and from any thread, without synchronising with their owner.
#[derive(Clone, Debug)]
pub struct KernelReader {
    pub(crate) maps: Arc<Maps>,
}

impl KernelReader {
    /// The current content of the maps. If the owner writes at the same time, the result may contain some of its
    /// operations and not others, but never a part of one.
    pub fn dump(&self) -> Result<MapState, MapError> {
        Ok(self.content()?.state)
    }

    /// [`Self::dump`], with the content that nodelb cannot have written.
    pub fn content(&self) -> Result<Content, MapError> {
        content(&self.maps)
    }

    /// The number of slots that are in use or rest before they are used again. Makes no system call. `now` is on the
    /// writer's clock.
    pub fn slots_taken(&self, now: Moment) -> usize {
        self.maps.slot_usage.taken(now) as usize
    }

    /// The number of clients in `affinity`. Reads all of them and keeps none in memory.
    pub fn clients(&self) -> Result<usize, MapError> {
        let mut count = 0;
        sys::each_batch::<16, 16>(&self.maps.affinity, |keys, _| count += keys.len())
            .map_err(map_failed("affinity"))?;
        Ok(count)
    }
}

pub(crate) fn content(maps: &Maps) -> Result<Content, MapError> {
    let mut content = Content::default();
    for id in 0..maps.limits.services {
        add_service(maps, id, &mut content);
    }
    for (key, value) in sys::entries(&maps.frontends).map_err(map_failed("frontends"))? {
        match layout::parse_frontend_key(&key) {
            Some(addr) => add_frontend(addr, &value, &mut content),
            None => {
                let text = format!("frontend with the key {key:02x?}: nodelb did not write it");
                content.broken.with_invalid_key.push(text);
            }
        }
    }
    for (key, _) in sys::entries::<16, 4>(&maps.node_addrs).map_err(map_failed("node_addrs"))? {
        content.state.node_addrs.insert(layout::parse_node_addr(&key));
    }
    maps.outside.read(&mut content)?;
    Ok(content)
}

/// The last backend of each client, for services with affinity.
pub(crate) fn clients(maps: &Maps) -> io::Result<Vec<Client>> {
    let mut clients = Vec::new();
    sys::each_batch(&maps.affinity, |keys, values| {
        clients.extend(keys.iter().zip(values).map(|(key, value)| layout::parse_client(key, value)));
    })?;
    Ok(clients)
}

/// The entries with these keys. Makes one system call for each entry that is not in shared memory.
pub(crate) fn read(maps: &Maps, keys: &[EntryKey]) -> Result<Content, MapError> {
    let mut content = Content::default();
    for key in keys {
        match key {
            EntryKey::Service(id) if id.0 < maps.limits.services => add_service(maps, id.0, &mut content),
            EntryKey::Service(_) => {}
            EntryKey::Frontend(addr) => {
                if let Some(value) = look_up(Some(&maps.frontends), "frontends", &layout::frontend_key(addr))? {
                    add_frontend(*addr, &value, &mut content);
                }
            }
            EntryKey::Outside(_) | EntryKey::SourceRange(..) | EntryKey::Uplink(_) => {
                maps.outside.read_entry(key, &mut content)?;
            }
            EntryKey::NodeAddress(addr) => {
                if look_up::<4>(Some(&maps.node_addrs), "node_addrs", &layout::node_addr(*addr))?.is_some() {
                    content.state.node_addrs.insert(*addr);
                }
            }
        }
    }
    Ok(content)
}

fn add_frontend(addr: L4Addr, value: &layout::FrontendBytes, content: &mut Content) {
    match layout::parse_frontend(&addr, value) {
        Some(entry) => {
            content.state.frontends.insert(addr, entry);
        }
        None => {
            let text = format!("frontend {addr}: its value {value:02x?} was not written by nodelb");
            content.broken.entries.insert(EntryKey::Frontend(addr), text);
        }
    }
}

fn add_service(maps: &Maps, id: u32, content: &mut Content) {
    let policy = maps.policy(id);
    if !policy.in_use {
        return;
    }
    let Policy { has_backends, affinity_seconds, may_be_bound, has_ranges, forward, .. } = policy;
    let Policy { is_last_resort, is_local_last_resort, .. } = policy;
    match [ViewKind::Cluster, ViewKind::Local].map(|which| list(maps, id, which, policy.has_rings)) {
        [Ok((cluster, has_ring)), Ok((local, has_local_ring))] => {
            let has_rings = policy.has_rings && has_ring && has_local_ring;
            let tag = layout::parse_owner(policy.source, maps.owner(id));
            let is_canary = ServiceId(id) == ServiceId::CANARY;
            let next_ids = if is_canary { layout::parse_next_ids(maps.owner(id)) } else { NextIds::default() };
            let lists = ServiceEntry { cluster, local, has_rings, tag, next_ids, ..ServiceEntry::default() };
            let lists = ServiceEntry { is_last_resort, is_local_last_resort, ..lists };
            let entry = ServiceEntry { has_backends, affinity_seconds, may_be_bound, has_ranges, forward, ..lists };
            content.state.services.insert(ServiceId(id), Arc::new(entry));
        }
        [Err(wrong), _] | [_, Err(wrong)] => add_broken_service(ServiceId(id), &wrong, content),
    }
}

fn add_broken_service(id: ServiceId, wrong: &dyn fmt::Display, content: &mut Content) {
    content.broken.entries.insert(EntryKey::Service(id), format!("service {id}: {wrong}"));
}

/// Reads a list, and whether it is followed by its ring, if `has_ring` is set. The list is valid if its view is
/// unchanged after the read: then it was published during the whole read.
fn list(maps: &Maps, service: u32, which: ViewKind, has_ring: bool) -> Result<(Arc<[Slot]>, bool), ListError> {
    loop {
        let view = maps.view(service, which);
        let inside = |run: Run| run.first.checked_add(run.len).is_some_and(|end| end <= maps.limits.slots);
        let slots = inside(view.run)
            .then(|| (view.run.first..view.run.first + view.run.len).map(|at| layout::parse_slot(maps.slot(at))));
        let list = slots.map(Iterator::collect::<Option<Arc<[Slot]>>>);
        let whole = whole_run(view.run, has_ring);
        let is_right = |list: &[Slot]| inside(whole) && has_its_ring(maps, whole, list);
        let has_ring = has_ring && list.iter().flatten().any(|list| is_right(list));
        // Orders the loads above before the load below.
        fence(Ordering::Acquire);
        if maps.view(service, which) != view {
            continue;
        }
        return match list {
            Some(Some(list)) => Ok((list, has_ring)),
            Some(None) => Err(ListError::Slot(view.run)),
            None => Err(ListError::Outside(view.run)),
        };
    }
}

/// The run of a list together with its ring, if it has one.
pub(crate) fn whole_run(list: Run, has_ring: bool) -> Run {
    let len = if has_ring { ring::slots_with_ring(list.len as usize) } else { list.len as usize };
    Run { len: u32::try_from(len).unwrap_or(u32::MAX), ..list }
}

/// Whether the run contains the ring of the list behind it.
pub(crate) fn has_its_ring(maps: &Maps, whole: Run, list: &[Slot]) -> bool {
    let ring = ring::ring(list);
    let places = (whole.first..whole.first + whole.len).skip(list.len());
    places.zip(ring.chunks(ring::OFFSETS_PER_SLOT)).all(|(at, part)| maps.slot(at) == layout::ring_words(part))
}

/// The bookkeeping of the slots in use. If two services share slots, the content reports both and leaves them out,
/// whichever of them is wrong.
pub(crate) fn runs(maps: &Maps, content: &mut Content) -> Runs {
    let mut used: Vec<(Run, ServiceId)> = Vec::new();
    for (id, entry) in &content.state.services {
        let runs = [ViewKind::Cluster, ViewKind::Local].map(|which| maps.view(id.0, which).run);
        let views = runs.map(|run| whole_run(run, entry.has_rings));
        used.extend(views.into_iter().filter(|run| run.len > 0).map(|run| (run, *id)));
    }
    used.sort_unstable();
    let mut runs = Runs::new(maps.limits.slots);
    let mut last: Option<(u32, ServiceId)> = None;
    let mut shared = Vec::new();
    for &(run, id) in &used {
        if !runs.reserve(run) {
            shared.push(id);
            shared.extend(last.map(|(_, other)| other));
        }
        let end = run.first.saturating_add(run.len);
        if last.is_none_or(|(furthest, _)| end > furthest) {
            last = Some((end, id));
        }
    }
    shared.sort_unstable();
    shared.dedup();
    for id in shared {
        content.state.services.remove(&id);
        add_broken_service(id, &"another service uses the same slots", content);
    }
    runs
}

enum ListError {
    Outside(Run),
    Slot(Run),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, Run { first, len }) = match self {
            Self::Outside(run) => ("exceeds the slots map", run),
            Self::Slot(run) => ("has a slot without a backend", run),
        };
        write!(f, "its list of {len} slots from {first} on {what}")
    }
}
