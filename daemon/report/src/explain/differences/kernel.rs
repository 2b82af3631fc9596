//! The rows that compare the desired state with the content of the maps.

use std::fmt;

use crate::filter::Filter;
use nodelb_core::difference::{Between, Difference};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::Source;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{MapState, ServiceEntry, ServiceId, Slot, backends_of};
use nodelb_core::state::kernel_check::{Content, EntryKey, Fault, detect};
use nodelb_core::state::status::Status;
use nodelb_core::text::listed;

/// What an operator can do to avoid waiting for the next check.
pub const CHECKS_AT_ONCE: &str = "`systemctl reload nodelb` checks immediately";

/// The time of the next drift check, which determines the text of the rows about drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextCheck {
    /// The time until the check in seconds; `None` if unknown.
    pub seconds: Option<u64>,
}

impl fmt::Display for NextCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seconds {
            Some(seconds) => write!(f, "repaired at the next check, in {seconds} s")?,
            None => f.write_str("repaired at the next check")?,
        }
        write!(f, "; {CHECKS_AT_ONCE}")
    }
}

pub(super) const ABSENT: &str = "absent";

/// Whether the filter accepts the entry.
pub(super) fn shows(snapshot: &Snapshot, actual: &Content, key: EntryKey, filter: &Filter) -> bool {
    let is_named = |id: ServiceId| snapshot.owners.get(&id).is_some_and(|owner| filter.accepts(&owner.key.service));
    let both = [&snapshot.desired, &actual.state];
    let is_of_any = filter.service.is_none() && filter.namespace.is_none();
    let is_of_service = is_of_any || both.iter().filter_map(|it| service_in(it, key)).any(is_named);
    let is_at = |addr| match key {
        EntryKey::Frontend(address) | EntryKey::Outside(address) => addr == address.addr,
        EntryKey::Service(id) => {
            let entries = both.iter().filter_map(|state| state.services.get(&id));
            let holds = entries.flat_map(|e| e.cluster.iter().chain(e.local.iter())).any(|slot| slot.addr.addr == addr);
            let owner = snapshot.owners.get(&id);
            holds || owner.is_some_and(|o| snapshot.addresses_of(&o.key.service).iter().any(|a| a.addr == addr))
        }
        EntryKey::SourceRange(_, range) => range.contains(addr),
        EntryKey::Uplink(index) => {
            let mut entries = both.iter().filter_map(|state| state.uplinks.get(&index));
            entries.any(|entry| [entry.v4, entry.v6].contains(&Some(addr)))
        }
        EntryKey::NodeAddress(own) => addr == own,
    };
    is_of_service && filter.address.is_none_or(is_at)
}

/// The service port of an entry; `None` if the maps do not have the entry, or it belongs to no service.
fn service_in(state: &MapState, key: EntryKey) -> Option<ServiceId> {
    match key {
        EntryKey::Service(id) | EntryKey::SourceRange(id, _) => Some(id),
        EntryKey::Frontend(address) => Some(state.frontends.get(&address)?.service),
        EntryKey::Outside(address) => Some(state.outside.get(&address)?.service),
        EntryKey::NodeAddress(_) | EntryKey::Uplink(_) => None,
    }
}

/// The row of an entry that differs in the maps from the desired state.
pub(super) fn entry(snapshot: &Snapshot, actual: &Content, key: EntryKey, next: NextCheck) -> Difference {
    let what = match key {
        EntryKey::Frontend(address) => address.to_string(),
        EntryKey::Service(id) => name_of(snapshot, id),
        EntryKey::NodeAddress(addr) => addr.to_string(),
        EntryKey::Outside(address) => format!("{address} for outside clients"),
        EntryKey::SourceRange(_, range) => range.to_string(),
        EntryKey::Uplink(index) => uplink_name(snapshot, index),
    };
    let states = [&snapshot.desired, &actual.state];
    let service = states.into_iter().find_map(|state| service_in(state, key)).and_then(|id| snapshot.owners.get(&id));
    let broken = actual.broken.entries.get(&key).cloned();
    let (cause, action) = likely_cause(snapshot, actual, key, next);
    let or_absent = |text: Option<String>| Some(text.unwrap_or_else(|| ABSENT.into()));
    Difference {
        between: Between::MemoryKernel,
        what,
        service: service.map(|owner| owner.key.service.clone()),
        source: None,
        memory: or_absent(text_in(snapshot, &snapshot.desired, key)),
        kernel: or_absent(broken.or_else(|| text_in(snapshot, &actual.state, key))),
        cause,
        action,
    }
}

/// The content of an entry; `None` if the maps do not have it.
fn text_in(snapshot: &Snapshot, state: &MapState, key: EntryKey) -> Option<String> {
    match key {
        EntryKey::Frontend(address) => state
            .frontends
            .get(&address)
            .map(|entry| format!("leads to {}{}", name_of(snapshot, entry.service), view_text(entry.inside_local))),
        EntryKey::Service(id) => state.services.get(&id).map(|entry| service_text(entry)),
        EntryKey::NodeAddress(addr) => state.node_addrs.contains(&addr).then(|| "answers NodePorts".into()),
        EntryKey::Outside(address) => state.outside.get(&address).map(|entry| {
            let ranges = if entry.has_ranges { ", for clients in its source ranges" } else { "" };
            format!("leads to {}{}{ranges}", name_of(snapshot, entry.service), view_text(entry.local))
        }),
        EntryKey::SourceRange(id, range) => {
            state.source_ranges.contains(&(id, range)).then(|| format!("may connect to {}", name_of(snapshot, id)))
        }
        EntryKey::Uplink(index) => state.uplinks.get(&index).map(uplink_text),
    }
}

/// The likely cause of a difference, and nodelb's action.
fn likely_cause(snapshot: &Snapshot, actual: &Content, key: EntryKey, next: NextCheck) -> (String, String) {
    if let Some((_, fault)) = detect(actual, &snapshot.realised, key) {
        let what = match fault {
            Fault::Missing => "another process deleted the entry",
            Fault::Changed => "another process overwrote the entry",
            Fault::Foreign => "another process added the entry",
        };
        let what = format!("{what}: bpftool, or another program with access to the maps");
        return (what, next.to_string());
    }
    if let Some(error) = error_at(snapshot, key) {
        return (error, "retried at least every 5 s until it succeeds".into());
    }
    let absent: Vec<String> = snapshot.absent.iter().map(Source::to_string).collect();
    if !absent.is_empty() && unfinished(snapshot).next().is_none() {
        let cause = format!("{} was a source before and is not configured", absent.join(", "));
        return (cause, "stays until that source is configured or disabled".into());
    }
    let waiting: Vec<String> = unfinished(snapshot).map(|source| source.to_string()).collect();
    if waiting.is_empty() {
        return ("the change is in progress".into(), "done with the next round".into());
    }
    let waiting = waiting.join(", ");
    (format!("nodelb has not read everything from {waiting} yet"), "waits for that: nothing is removed before".into())
}

/// The sources that prevent removals because they have not reported everything.
fn unfinished(snapshot: &Snapshot) -> impl Iterator<Item = Source> {
    let is_whole = |source: &Source| snapshot.facts.is_synced(*source) && snapshot.facts.incomplete(*source).is_none();
    snapshot.config.sources.iter().copied().filter(move |source| !is_whole(source))
}

/// The error of the last operation on the entry.
fn error_at(snapshot: &Snapshot, key: EntryKey) -> Option<String> {
    let error = |address: &L4Addr| {
        let status = &snapshot.rows.get(address)?.status;
        status.error.clone().filter(|_| status.status == Status::Refused)
    };
    match key {
        EntryKey::Frontend(address) | EntryKey::Outside(address) => error(&address).map(|error| error.to_string()),
        EntryKey::Service(id) | EntryKey::SourceRange(id, _) => {
            let owner = snapshot.owners.get(&id)?;
            let addresses = snapshot.addresses_of(&owner.key.service);
            let own = |a: &&L4Addr| snapshot.desired.frontends.get(*a).is_some_and(|entry| entry.service == id);
            addresses.iter().filter(own).find_map(error).map(|error| error.to_string())
        }
        EntryKey::NodeAddress(_) | EntryKey::Uplink(_) => snapshot.failures.get(&key).map(ToString::to_string),
    }
}

fn name_of(snapshot: &Snapshot, id: ServiceId) -> String {
    snapshot.service_of(id).unwrap_or_else(|| format!("service id {id}"))
}

fn view_text(is_local: bool) -> &'static str {
    if is_local { " (local view)" } else { "" }
}

fn uplink_name(snapshot: &Snapshot, index: u32) -> String {
    let found = snapshot.facts.uplinks.iter().find(|uplink| uplink.ifindex == index);
    found.map_or_else(|| format!("device {index}"), |uplink| uplink.name.to_string())
}

fn uplink_text(entry: &UplinkEntry) -> String {
    let addrs = [entry.v4, entry.v6].into_iter().flatten();
    let strict = if entry.is_strict { ", rp_filter 1" } else { "" };
    format!("uplink with {}, MTU {}{strict}", listed(addrs, 2), entry.mtu)
}

fn service_text(entry: &ServiceEntry) -> String {
    let view = |name, list: &[Slot]| format!("{name} {}", addresses(backends_of(list).map(|(addr, _)| addr)));
    let parts = [
        Some(view("cluster", &entry.cluster)),
        (!entry.local.is_empty()).then(|| view("local", &entry.local)),
        (entry.affinity_seconds > 0).then(|| format!("affinity {} s", entry.affinity_seconds)),
        entry.may_be_bound.then(|| "NodePorts may be bound".into()),
        (entry.cluster.is_empty() && entry.has_backends).then(|| "backends elsewhere".into()),
        entry.has_rings.then(|| "with rings".into()),
        (entry.forward != Forward::Translate).then(|| format!("forward {}", entry.forward)),
    ];
    parts.into_iter().flatten().collect::<Vec<String>>().join(", ")
}

/// Formats as `[192.0.2.1:80/TCP, 192.0.2.2:80/TCP]`, with at most five addresses.
pub(super) fn addresses(backends: impl Iterator<Item = L4Addr>) -> String {
    const SHOWN: usize = 5;
    format!("[{}]", listed(backends, SHOWN))
}
