//! The rows that compare the desired state with the content of the maps.

use std::fmt;

use crate::filter::Filter;
use nodelb_core::difference::{Between, Difference};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{FrontendEntry, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot, backends_of};
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
    let is_named = |id: ServiceId| {
        filter.service.as_ref().is_none_or(|name| snapshot.owners.get(&id).is_some_and(|o| o.key.service == *name))
    };
    let both = [&snapshot.desired, &actual.state];
    match key {
        EntryKey::Frontend(address) => {
            let ids = both.iter().filter_map(|state| state.frontends.get(&address)).map(|entry| entry.service);
            let is_shown = filter.service.is_none() || ids.into_iter().any(is_named);
            is_shown && filter.address.is_none_or(|addr| addr == address.addr)
        }
        EntryKey::Service(id) => {
            let holds = |addr| {
                let entries = both.iter().filter_map(|state| state.services.get(&id));
                entries.flat_map(|e| e.cluster.iter().chain(e.local.iter())).any(|slot| slot.addr.addr == addr)
            };
            let is_reached = |addr| {
                let owner = snapshot.owners.get(&id);
                owner.is_some_and(|o| snapshot.addresses_of(&o.key.service).iter().any(|a| a.addr == addr))
            };
            is_named(id) && filter.address.is_none_or(|addr| holds(addr) || is_reached(addr))
        }
        EntryKey::Outside(address) => {
            let ids = both.iter().filter_map(|state| state.outside.get(&address)).map(|entry| entry.service);
            let is_shown = filter.service.is_none() || ids.into_iter().any(is_named);
            is_shown && filter.address.is_none_or(|addr| addr == address.addr)
        }
        EntryKey::SourceRange(id, range) => is_named(id) && filter.address.is_none_or(|addr| range.contains(addr)),
        EntryKey::Uplink(index) => {
            let entries = || both.iter().filter_map(|state| state.uplinks.get(&index));
            let has = |addr| entries().any(|entry| [entry.v4, entry.v6].contains(&Some(addr)));
            filter.service.is_none() && filter.address.is_none_or(has)
        }
        EntryKey::NodeAddress(own) => filter.service.is_none() && filter.address.is_none_or(|addr| addr == own),
    }
}

/// The row of an entry that differs in the maps from the desired state.
pub(super) fn entry(snapshot: &Snapshot, actual: &Content, key: EntryKey, next: NextCheck) -> Difference {
    let broken = actual.broken.entries.get(&key).cloned();
    let (what, memory, kernel) = match key {
        EntryKey::Frontend(address) => {
            let text = |state: &MapState| state.frontends.get(&address).map(|entry| frontend_text(snapshot, *entry));
            (address.to_string(), text(&snapshot.desired), text(&actual.state))
        }
        EntryKey::Service(id) => {
            let text = |state: &MapState| state.services.get(&id).map(|entry| service_text(entry));
            (name_of(snapshot, id), text(&snapshot.desired), text(&actual.state))
        }
        EntryKey::NodeAddress(addr) => {
            let text = |state: &MapState| state.node_addrs.contains(&addr).then(|| "answers NodePorts".to_owned());
            (addr.to_string(), text(&snapshot.desired), text(&actual.state))
        }
        EntryKey::Outside(address) => {
            let text = |state: &MapState| state.outside.get(&address).map(|entry| outside_text(snapshot, *entry));
            (format!("{address} for outside clients"), text(&snapshot.desired), text(&actual.state))
        }
        EntryKey::SourceRange(id, range) => {
            let text = |state: &MapState| {
                state.source_ranges.contains(&(id, range)).then(|| format!("may connect to {}", name_of(snapshot, id)))
            };
            (range.to_string(), text(&snapshot.desired), text(&actual.state))
        }
        EntryKey::Uplink(index) => {
            let text = |state: &MapState| state.uplinks.get(&index).map(uplink_text);
            (uplink_name(snapshot, index), text(&snapshot.desired), text(&actual.state))
        }
    };
    let (cause, action) = likely_cause(snapshot, actual, key, next);
    let or_absent = |text: Option<String>| Some(text.unwrap_or_else(|| ABSENT.into()));
    Difference {
        between: Between::MemoryKernel,
        what,
        service: service_at(snapshot, actual, key),
        source: None,
        memory: or_absent(memory),
        kernel: or_absent(broken.or(kernel)),
        cause,
        action,
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
        let action = if snapshot.is_ready { next.to_string() } else { "repaired once every source is synced".into() };
        return (format!("{what}: bpftool, or another program with access to the maps"), action);
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

fn service_at(snapshot: &Snapshot, actual: &Content, key: EntryKey) -> Option<ServiceName> {
    let at = |address| [&snapshot.desired, &actual.state].into_iter().find_map(|state| state.frontends.get(&address));
    let id = match key {
        EntryKey::Service(id) | EntryKey::SourceRange(id, _) => id,
        EntryKey::Frontend(address) => at(address)?.service,
        EntryKey::Outside(address) => {
            let states = [&snapshot.desired, &actual.state];
            states.into_iter().find_map(|state| state.outside.get(&address))?.service
        }
        EntryKey::NodeAddress(_) | EntryKey::Uplink(_) => return None,
    };
    snapshot.owners.get(&id).map(|owner| owner.key.service.clone())
}

fn name_of(snapshot: &Snapshot, id: ServiceId) -> String {
    snapshot.service_of(id).unwrap_or_else(|| format!("service id {id}"))
}

fn frontend_text(snapshot: &Snapshot, entry: FrontendEntry) -> String {
    let view = if entry.inside_local { " (local view)" } else { "" };
    format!("leads to {}{view}", name_of(snapshot, entry.service))
}

fn outside_text(snapshot: &Snapshot, entry: OutsideEntry) -> String {
    let view = if entry.local { " (local view)" } else { "" };
    let ranges = if entry.has_ranges { ", for clients in its source ranges" } else { "" };
    format!("leads to {}{view}{ranges}", name_of(snapshot, entry.service))
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
    let mut text = view("cluster", &entry.cluster);
    if !entry.local.is_empty() {
        text = format!("{text}, {}", view("local", &entry.local));
    }
    if entry.affinity_seconds > 0 {
        text.push_str(&format!(", affinity {} s", entry.affinity_seconds));
    }
    if entry.may_be_bound {
        text.push_str(", NodePorts may be bound");
    }
    if entry.cluster.is_empty() && entry.has_backends {
        text.push_str(", backends elsewhere");
    }
    if entry.has_rings {
        text.push_str(", with rings");
    }
    if entry.forward != Forward::Translate {
        text.push_str(&format!(", forward {}", entry.forward));
    }
    text
}

/// Formats as `[192.0.2.1:80/TCP, 192.0.2.2:80/TCP]`, with at most five addresses.
pub(super) fn addresses(backends: impl Iterator<Item = L4Addr>) -> String {
    const SHOWN: usize = 5;
    format!("[{}]", listed(backends, SHOWN))
}
