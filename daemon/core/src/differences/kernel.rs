//! The half of the rows that compares what is wanted with what the maps hold.

use super::{ABSENT, Between, Difference, NextCheck, addresses};
use crate::addr::L4Addr;
use crate::compare::{Content, EntryKey, Fault, judge};
use crate::report::{Filter, Status};
use crate::service::{ServiceName, Source};
use crate::snapshot::Snapshot;
use crate::state::{FrontendEntry, MapState, ServiceEntry, ServiceId, Slot, backends_of};

impl Snapshot {
    /// Whether the filter lets the entry through.
    pub(super) fn shows(&self, held: &Content, key: EntryKey, filter: &Filter) -> bool {
        let is_named = |id: ServiceId| {
            filter.service.as_ref().is_none_or(|name| self.owners.get(&id).is_some_and(|o| o.key.service == *name))
        };
        let both = [&self.desired, &held.state];
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
                    let owner = self.owners.get(&id);
                    owner.is_some_and(|o| self.addresses_of(&o.key.service).iter().any(|a| a.addr == addr))
                };
                is_named(id) && filter.address.is_none_or(|addr| holds(addr) || is_reached(addr))
            }
            EntryKey::NodeAddress(own) => filter.service.is_none() && filter.address.is_none_or(|addr| addr == own),
        }
    }

    /// The row of an entry that is not in the maps as it is wanted.
    pub(super) fn entry(&self, held: &Content, key: EntryKey, next: NextCheck) -> Difference {
        let broken = held.broken.entries.get(&key).cloned();
        let (what, memory, kernel) = match key {
            EntryKey::Frontend(address) => {
                let text = |state: &MapState| state.frontends.get(&address).map(|entry| self.frontend_text(*entry));
                (address.to_string(), text(&self.desired), text(&held.state))
            }
            EntryKey::Service(id) => {
                let text = |state: &MapState| state.services.get(&id).map(|entry| service_text(entry));
                (self.name_of(id), text(&self.desired), text(&held.state))
            }
            EntryKey::NodeAddress(addr) => {
                let text = |state: &MapState| state.node_addrs.contains(&addr).then(|| "answers NodePorts".to_owned());
                (addr.to_string(), text(&self.desired), text(&held.state))
            }
        };
        let (cause, action) = self.likely_cause(held, key, next);
        let or_absent = |text: Option<String>| Some(text.unwrap_or_else(|| ABSENT.into()));
        Difference {
            between: Between::MemoryKernel,
            what,
            service: self.service_at(held, key),
            source: None,
            memory: or_absent(memory),
            kernel: or_absent(broken.or(kernel)),
            cause,
            action,
        }
    }

    /// Why an entry differs, and what is done about it.
    fn likely_cause(&self, held: &Content, key: EntryKey, next: NextCheck) -> (String, String) {
        if let Some((_, fault)) = judge(held, &self.realised, key) {
            let what = match fault {
                Fault::Missing => "the entry was deleted by somebody else than nodelb",
                Fault::Changed => "the entry was overwritten by somebody else than nodelb",
                Fault::Foreign => "the entry was added by somebody else than nodelb",
            };
            let action = if self.is_ready { next.to_string() } else { "put right once every source is synced".into() };
            return (format!("{what}: bpftool, or another program with access to the maps"), action);
        }
        if let Some(error) = self.error_at(key) {
            return (error, "tried again at least every 5 s until it succeeds".into());
        }
        let absent: Vec<String> = self.absent.iter().map(Source::to_string).collect();
        if !absent.is_empty() && self.unfinished().next().is_none() {
            let cause = format!("{} is not configured and was a source before", absent.join(", "));
            return (cause, "stays until that source is configured or switched off".into());
        }
        let waiting: Vec<String> = self.unfinished().map(|source| source.to_string()).collect();
        if waiting.is_empty() {
            return ("the change is under way".into(), "done with the next round".into());
        }
        let waiting = waiting.join(", ");
        (format!("{waiting} has not told all it has yet"), "waits for that: nothing is taken away before".into())
    }

    /// The sources that keep things from being removed.
    fn unfinished(&self) -> impl Iterator<Item = Source> {
        let is_whole = |source: &Source| self.facts.is_synced(*source) && self.facts.incomplete(*source).is_none();
        self.config.sources.iter().copied().filter(move |source| !is_whole(source))
    }

    /// What the last operation on the entry failed with.
    fn error_at(&self, key: EntryKey) -> Option<String> {
        let error = |address: &L4Addr| {
            let status = &self.rows.get(address)?.status;
            status.error.clone().filter(|_| status.status == Status::Error)
        };
        match key {
            EntryKey::Frontend(address) => error(&address).map(|error| error.to_string()),
            EntryKey::Service(id) => {
                let owner = self.owners.get(&id)?;
                let addresses = self.addresses_of(&owner.key.service);
                let own = |a: &&L4Addr| self.desired.frontends.get(*a).is_some_and(|entry| entry.service == id);
                addresses.iter().filter(own).find_map(error).map(|error| error.to_string())
            }
            EntryKey::NodeAddress(addr) => self.failed_node_addrs.get(&addr).map(ToString::to_string),
        }
    }

    fn service_at(&self, held: &Content, key: EntryKey) -> Option<ServiceName> {
        let at = |address| [&self.desired, &held.state].into_iter().find_map(|state| state.frontends.get(&address));
        let id = match key {
            EntryKey::Service(id) => id,
            EntryKey::Frontend(address) => at(address)?.service,
            EntryKey::NodeAddress(_) => return None,
        };
        self.owners.get(&id).map(|owner| owner.key.service.clone())
    }

    fn name_of(&self, id: ServiceId) -> String {
        self.service_of(id).unwrap_or_else(|| format!("service id {id}"))
    }

    fn frontend_text(&self, entry: FrontendEntry) -> String {
        let view = if entry.inside_local { " (local view)" } else { "" };
        format!("leads to {}{view}", self.name_of(entry.service))
    }
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
    text
}
