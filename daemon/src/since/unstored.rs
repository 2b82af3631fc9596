//! What a killed run had no time to store: the history has an event soon, and the file of statuses a moment later. The
//! statuses follow the later events. What neither has, and the maps show, is an event of this start, without a cause.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nodelb_core::before::{Lasting, Statuses};
use nodelb_core::history::{Event, Kernel, Record, What};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::cause::Cause;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{PortKey, Source};
use nodelb_core::state::entries::MapState;
use nodelb_core::state::owner::OwnerTag;
use nodelb_core::state::status::Status;

/// The detail of an event about which nothing else is known.
const UNKNOWN: &str = "before this start; the previous run ended before it could store when and why";

/// Addresses that reach backends or not, unlike before, by the hashes of their service port.
type Changed = BTreeMap<((u32, u32), bool), (Source, Vec<L4Addr>)>;

/// Brings the statuses up to date with the events. `moment` converts the time of a record, unless it is before the boot.
pub(super) fn follow(
    statuses: &mut Statuses,
    records: &[Record],
    maps: &MapState,
    moment: impl Fn(u64) -> Option<Moment>,
) {
    let mut by_port: HashMap<(u32, u32), Vec<(Moment, &Event)>> = HashMap::new();
    for record in records {
        if let (Some(port), Some(at)) = (&record.event.port, moment(record.at)) {
            by_port.entry(OwnerTag::hashes_of(port)).or_default().push((at, &record.event));
        }
    }
    if by_port.is_empty() {
        return;
    }
    for (address, entry) in &maps.frontends {
        let tag = maps.services.get(&entry.service).and_then(|service| service.tag);
        let Some((tag, events)) = tag.and_then(|tag| Some((tag, by_port.get(&(tag.service, tag.port))?))) else {
            continue;
        };
        let known = statuses.get(&(*address, tag.service)).copied();
        let latest = events.iter().fold(known, |known, (at, event)| match known {
            Some(known) if *at <= known.since => Some(known),
            _ => after(known, event, *address, *at),
        });
        // The history is about all clients, and an address may lead its clients to the backends of this node alone.
        let fits = |it: &Lasting| (it.status != Status::NoBackends) == maps.reaches_any(*address);
        if let Some(latest) = latest.filter(fits) {
            statuses.insert((*address, tag.service), latest);
        }
    }
}

/// The status of the address after the event, and since when.
fn after(known: Option<Lasting>, event: &Event, address: L4Addr, at: Moment) -> Option<Lasting> {
    let now = |status| Some(Lasting { status, since: at });
    let is = |status| known.is_some_and(|known| known.status == status);
    let is_about = event.frontends.shown.contains(&address);
    match event.what {
        _ if matches!(event.kernel, Kernel::Failed(_) | Kernel::Deferred) => known,
        What::Emptied if !is(Status::NoBackends) => now(Status::NoBackends),
        What::LastResort if !is(Status::LastResort) => now(Status::LastResort),
        What::Held if !is(Status::Held) => now(Status::Held),
        What::Recovered => now(Status::Ok),
        What::Released if is(Status::Held) => now(Status::Ok),
        What::Added if is_about && event.added.is_empty() => now(Status::NoBackends),
        What::Added | What::Changed | What::TakenOver | What::Admitted if is_about => now(Status::Ok),
        What::Removed => None,
        _ if is(Status::NoBackends) && !event.added.is_empty() => now(Status::Ok),
        _ => known,
    }
}

/// The events that were not recorded: the maps contradict the statuses.
pub(super) fn unrecorded(statuses: &Statuses, ports: &[PortKey], maps: &MapState) -> Vec<Event> {
    let mut changed = Changed::new();
    for ((address, service), before) in statuses.iter().filter(|(_, before)| before.status.is_in_maps()) {
        let tag = maps.service_at(*address).and_then(|entry| entry.tag).filter(|tag| tag.service == *service);
        let is_usable = maps.reaches_any(*address);
        if let Some(tag) = tag.filter(|_| (before.status != Status::NoBackends) != is_usable) {
            let port = ((tag.service, tag.port), is_usable);
            changed.entry(port).or_insert_with(|| (tag.source, Vec::new())).1.push(*address);
        }
    }
    if changed.is_empty() {
        return Vec::new();
    }
    let ports: HashMap<_, _> = ports.iter().map(|port| (OwnerTag::hashes_of(port), port)).collect();
    let event = |hashes, is_usable, source, addresses: Vec<L4Addr>| {
        let port = PortKey::clone(ports.get(&hashes)?);
        let what = if is_usable { What::Changed } else { What::Emptied };
        let event = Event::for_port(&Arc::new(port), Some(source), what, Cause::default());
        Some(Event { frontends: addresses.into_iter().collect(), detail: Some(UNKNOWN.into()), ..event })
    };
    let events = changed.into_iter().map(|((hashes, is_usable), (source, at))| event(hashes, is_usable, source, at));
    events.flatten().collect()
}

#[cfg(test)]
#[path = "tests/unstored.rs"]
mod tests;
