//! A changed list before the end of the round, and the event that follows from comparing the lists before and after.

use std::borrow::Cow;
use std::sync::Arc;

use crate::history::{Addresses, Event, MAX_SHOWN, What};
use crate::model::addr::L4Addr;
use crate::model::cause::Trigger;
use crate::model::drain::DrainCause;
use crate::model::forward::Forward;
use crate::model::service::{PortKey, Source};
use crate::state::entries::{ServiceEntry, ServiceId, Slot, backends_of};

/// What the end of [`Status::Kept`](crate::state::status::Status::Kept) changes.
const CONFIRMED: &str = "no longer Kept: its source describes it again, and connections get what they got before";

/// A list that the round changes.
#[derive(Debug)]
pub(in crate::engine) struct Draft {
    pub(in crate::engine) id: ServiceId,
    pub(in crate::engine) key: Arc<PortKey>,
    pub(in crate::engine) source: Source,
    /// The entry before the round; `None` for a new port.
    pub(in crate::engine) before: Option<Arc<ServiceEntry>>,
    /// The entry after the round; `None` for a removed port.
    pub(in crate::engine) after: Option<Arc<ServiceEntry>>,
    /// Whether the guard may refuse a backend of the port.
    pub(in crate::engine) may_have_refused: bool,
    pub(in crate::engine) trigger: Trigger,
    /// [`What::LastResort`] or [`What::Recovered`], if the round began or ended the use of unhealthy backends.
    pub(in crate::engine) turned: Option<What>,
    /// What changes for clients that get the backends on this node alone, if these begin or end to have none.
    pub(in crate::engine) here: Option<&'static str>,
    /// How its addresses change; `None` if they do not.
    pub(in crate::engine) addresses: Option<Box<AddressChange>>,
    /// What changes for clients at the addresses that it keeps.
    pub(in crate::engine) access: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct AddressChange {
    /// The addresses that it has since the round.
    pub(in crate::engine) added: Addresses,
    /// The addresses that it owned and that the service no longer has.
    pub(in crate::engine) withdrawn: Addresses,
}

/// What an event has reported and the maps do not contain yet.
#[derive(Debug)]
pub(in crate::engine) struct Pending {
    pub(super) key: Arc<PortKey>,
    /// Whether it is about who may connect.
    pub(super) is_access: bool,
    /// The first addresses that the port no longer has.
    pub(super) withdrawn: Vec<L4Addr>,
}

impl Pending {
    /// What the draft changes, and what an earlier one has changed.
    pub(super) fn new(draft: &Draft, earlier: Option<Self>) -> Self {
        let (mut withdrawn, is_access) = earlier.map(|it| (it.withdrawn, it.is_access)).unwrap_or_default();
        withdrawn.extend(draft.withdrawn());
        withdrawn.sort_unstable();
        withdrawn.dedup();
        withdrawn.truncate(MAX_SHOWN);
        Self { key: Arc::clone(&draft.key), is_access: is_access || draft.access.is_some(), withdrawn }
    }
}

impl Draft {
    /// A change from one entry to the other, and nothing else.
    pub(in crate::engine) fn new(
        (id, key, source): (ServiceId, &Arc<PortKey>, Source),
        (before, after): (Option<Arc<ServiceEntry>>, Option<Arc<ServiceEntry>>),
        trigger: Trigger,
    ) -> Self {
        let (key, may_have_refused) = (Arc::clone(key), after.is_some());
        let (turned, here, addresses, access) = (None, None, None, None);
        Self { id, key, source, before, after, may_have_refused, trigger, turned, here, addresses, access }
    }

    /// The first addresses that the port no longer has.
    pub(super) fn withdrawn(&self) -> &[L4Addr] {
        self.addresses.as_deref().map_or(&[], |change| &change.withdrawn.shown)
    }

    pub(super) fn what(&self) -> What {
        let has_backends = |entry: &Arc<ServiceEntry>| entry.has_backends;
        match (&self.before, &self.after) {
            (_, None) => What::Removed,
            (None, Some(_)) => What::Added,
            (Some(before), Some(after)) if has_backends(before) && !has_backends(after) => What::Emptied,
            (Some(_), Some(_)) if self.is_confirmation() => What::Released,
            (Some(_), Some(_)) => self.turned.unwrap_or_else(|| match &self.trigger {
                Trigger::Drain(cause, _) => what_of(cause),
                _ => What::Changed,
            }),
        }
    }

    /// Whether only its source is known again, because the list was found in the maps at the start.
    fn is_confirmation(&self) -> bool {
        let entries = self.before.as_ref().zip(self.after.as_ref());
        let is_noticed = self.turned.is_some() || self.here.is_some();
        let is_noticed = is_noticed || self.addresses.is_some() || self.access.is_some();
        !is_noticed && entries.is_some_and(|(before, after)| before.is_same_to_clients(after))
    }

    pub(super) fn event(&self) -> Event {
        let slots = |entry: &Option<Arc<ServiceEntry>>| entry.as_ref().map(|entry| Arc::clone(&entry.cluster));
        let (before, after) = (slots(&self.before).unwrap_or_default(), slots(&self.after).unwrap_or_default());
        let (added, removed) = differences(&before, &after);
        let mut event = Event::for_port(&self.key, Some(self.source), self.what(), self.trigger.cause());
        if let (Some(before), Some(after)) = (&self.before, &self.after) {
            let has_same_backends = added.is_empty() && removed.is_empty();
            let mut said: Vec<Cow<'static, str>> = settings(before, after);
            match self.here {
                Some(here) => said.insert(0, here.into()),
                None if self.is_confirmation() => said.push(CONFIRMED.into()),
                None if self.turned.is_some() || !said.is_empty() => {}
                None => said.extend(other_list(before, after, has_same_backends).map(Cow::from)),
            }
            said.extend(self.access.iter().map(|access| access.to_string().into()));
            event.detail = (!said.is_empty()).then(|| said.join("; ").into());
        }
        let AddressChange { added: frontends, withdrawn } = self.addresses.as_deref().cloned().unwrap_or_default();
        Event { added, removed, frontends, withdrawn, ..event }
    }
}

/// The event of a drain.
pub(super) fn what_of(cause: &DrainCause) -> What {
    match cause {
        DrainCause::Begun(_) => What::Drained,
        DrainCause::Ended(_) => What::Undrained,
    }
}

/// What has changed for clients in the settings of the service.
fn settings(before: &ServiceEntry, after: &ServiceEntry) -> Vec<Cow<'static, str>> {
    let affinity = (before.affinity_seconds != after.affinity_seconds).then(|| match after.affinity_seconds {
        0 => "clients no longer keep their backend".into(),
        seconds => format!("clients keep their backend for {seconds} s").into(),
    });
    let forward = (before.forward != after.forward).then(|| match after.forward {
        Forward::Translate => "packets from outside to backends on other nodes are translated".into(),
        Forward::Direct => "packets from outside go to backends on other nodes as they are".into(),
        Forward::Tunnel => "packets from outside go to backends on other nodes in a tunnel".into(),
    });
    affinity.into_iter().chain(forward).collect()
}

/// What the difference of the lists is, if it is not the set of backends.
fn other_list(before: &ServiceEntry, after: &ServiceEntry, has_same_backends: bool) -> Option<&'static str> {
    match (before.cluster == after.cluster, before.local == after.local) {
        (false, _) if has_same_backends => Some("other weights"),
        (true, false) => Some("different backends selected on this node"),
        _ => None,
    }
}

/// The backends that only the new list has, and those that only the old one had. Both lists are in address order.
fn differences(before: &[Slot], after: &[Slot]) -> (Addresses, Addresses) {
    let (mut added, mut removed) = (Addresses::default(), Addresses::default());
    let (before, after) = without_equal_ends(before, after);
    let mut before = backends_of(before).map(|(addr, _)| addr).peekable();
    for (addr, _) in backends_of(after) {
        while let Some(gone) = before.next_if(|old| *old < addr) {
            removed.push(gone);
        }
        if before.next_if_eq(&addr).is_none() {
            added.push(addr);
        }
    }
    before.for_each(|gone| removed.push(gone));
    (added, removed)
}

/// The lists without the slots that both have at their beginning or end, because most changes affect one backend. The
/// slots of one backend are not separated.
fn without_equal_ends<'a>(before: &'a [Slot], after: &'a [Slot]) -> (&'a [Slot], &'a [Slot]) {
    let first = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let is_inside = |list: &[Slot], at: usize| list.get(at).is_some_and(|slot| slot.addr == list[at - 1].addr);
    let mut first = first;
    while first > 0 && (is_inside(before, first) || is_inside(after, first)) {
        first -= 1;
    }
    let (before, after) = (&before[first..], &after[first..]);
    let mut last = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
    let is_inside = |list: &[Slot], last: usize| {
        let at = list.len() - last;
        at > 0 && last > 0 && list[at].addr == list[at - 1].addr
    };
    while last > 0 && (is_inside(before, last) || is_inside(after, last)) {
        last -= 1;
    }
    (&before[..before.len() - last], &after[..after.len() - last])
}

#[cfg(test)]
#[path = "tests/draft.rs"]
mod tests;
