//! Keeps the packet programs attached to the devices that need them, and to no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::history::{Event, Kernel, What};
use nodelb_datapath::{Ahead, Attach, DeviceSide, Direction, HookFault, HookMethod, HookedDevice, LinkState, XdpState};
use nodelb_host::messages;
use nodelb_report::problems::HOOKS;
use tracing::{debug, info, warn};

use super::uplinks::{Device, Role};

/// Programs at one device that nodelb moves its own in front of, at most. Another agent may do the same without end.
const MOVES: usize = 4;

pub(crate) struct Hooks {
    attach: Box<dyn Attach>,
    /// The devices with programs, by index, with the name for the journal.
    names: BTreeMap<u32, Arc<str>>,
    /// The last error of each device, which the journal has.
    errors: BTreeMap<u32, String>,
    /// Number of programs that were attached again since the start.
    repairs: u64,
    /// The programs that nodelb has moved its own in front of, for each device that has had one.
    moves: BTreeMap<u32, BTreeSet<(Direction, u32)>>,
    /// The programs that run before nodelb's, for each device with one, which the journal has.
    ahead: BTreeMap<u32, String>,
    events: Vec<Event>,
    /// Where the XDP program runs at each device; empty if it is off.
    xdp: BTreeMap<u32, XdpState>,
}

impl Hooks {
    pub(crate) fn new(attach: Box<dyn Attach>) -> Self {
        Self {
            attach,
            names: BTreeMap::new(),
            errors: BTreeMap::new(),
            repairs: 0,
            moves: BTreeMap::new(),
            ahead: BTreeMap::new(),
            events: Vec::new(),
            xdp: BTreeMap::new(),
        }
    }

    /// What has happened to the programs since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn note(&mut self, what: What, text: &str) {
        let kernel = if what == What::Repaired { Kernel::Done } else { Kernel::Untouched };
        self.events.push(Event { kernel, ..Event::for_daemon(what, format!("{HOOKS}{text}")) });
    }

    fn name(&self, ifindex: u32) -> Arc<str> {
        self.names.get(&ifindex).cloned().unwrap_or_else(|| format!("index {ifindex}").into())
    }

    pub(crate) fn method(&self) -> HookMethod {
        self.attach.method()
    }

    pub(crate) fn is_any_attached(&self) -> bool {
        !self.attach.devices().is_empty()
    }

    pub(crate) fn has(&self, ifindex: u32) -> bool {
        self.attach.devices().iter().any(|device| device.ifindex == ifindex)
    }

    /// Number of programs that were attached again since the start.
    pub(crate) fn repairs(&self) -> u64 {
        self.repairs
    }

    pub(crate) fn ahead(&self, ifindex: u32) -> Option<&str> {
        self.ahead.get(&ifindex).map(String::as_str)
    }

    pub(crate) fn xdp(&self, ifindex: u32) -> Option<&XdpState> {
        self.xdp.get(&ifindex)
    }

    /// Attaches what is missing or has changed, and detaches what is not wanted. Returns the devices without a working
    /// program, each with the error. `is_on` is false if no device is to have programs.
    pub(crate) fn sync(&mut self, devices: &[Device], is_on: bool) -> BTreeMap<u32, String> {
        let wanted = devices.iter().filter_map(|device| Some((device.ifindex, (hooked(device)?, &device.name))));
        let wanted: BTreeMap<u32, _> = wanted.filter(|_| is_on).collect();
        let faults = self.attach.faults();
        let current: BTreeMap<u32, HookedDevice> =
            self.attach.devices().into_iter().map(|device| (device.ifindex, device)).collect();
        let mut errors = BTreeMap::new();
        for (ifindex, device) in current.iter().filter(|(index, _)| !wanted.contains_key(index)) {
            let is_gone = devices.iter().all(|device| device.ifindex != *ifindex);
            match self.detach(*ifindex, is_gone) {
                // Otherwise no device keeps them, and the history says why.
                Ok(text) if is_on && device.side == DeviceSide::Uplink => self.note(What::Changed, &text),
                Ok(_) => {}
                Err(error) => drop(errors.insert(*ifindex, error)),
            }
        }
        for (ifindex, (device, name)) in wanted {
            let faults: Vec<&HookFault> = faults.iter().filter(|fault| fault.ifindex == ifindex).collect();
            let is_new = current.get(&ifindex) != Some(&device) || self.names.get(&ifindex) != Some(name);
            if !is_new && faults.is_empty() && !self.errors.contains_key(&ifindex) {
                continue;
            }
            match self.attach.attach(device) {
                Ok(states) => {
                    let attached = self.attached(device, name, &faults, &states);
                    // Otherwise the history says more: that packets are translated, or that an error has ended.
                    let is_news = !current.is_empty() && !self.errors.contains_key(&ifindex);
                    let is_news = is_news && states.iter().all(|(_, state)| *state == LinkState::Created);
                    if let Some(text) = attached.filter(|_| is_news && device.side == DeviceSide::Uplink) {
                        self.note(What::Changed, &text);
                    }
                }
                // The pins are restored with their directory, by another task.
                Err(error) if !is_new && !faults.is_empty() && faults.iter().all(|fault| fault.is_running) => {
                    debug!("the pins of nodelb's programs at device {name} are missing: {error}");
                }
                Err(error) => drop(errors.insert(ifindex, error.to_string())),
            }
        }
        self.report(&errors, devices);
        self.keep_first();
        self.keep_xdp();
        errors
    }

    /// Attaches the XDP program where that is possible. Without it, packets are translated by the other programs.
    fn keep_xdp(&mut self) {
        let states = self.attach.keep_xdp();
        for (ifindex, state) in states.iter().filter(|(index, state)| self.xdp.get(index) != Some(state)) {
            let device = self.names.get(ifindex).cloned().unwrap_or_else(|| "?".into());
            match state {
                XdpState::Foreign { .. } => {
                    info!(
                        message_id = %messages::PROGRAM_IN_FRONT,
                        "XDP at device {device}: {state}; packets are translated all the same, at a higher cost"
                    );
                }
                XdpState::Failed(_) => {
                    warn!(
                        message_id = %messages::DEVICE_NOT_ATTACHED,
                        "XDP at device {device}: {state}; packets are translated all the same, at a higher cost. nodelb \
                         retries every 10 seconds"
                    );
                }
                _ => info!(message_id = %messages::DEVICE_ATTACHED, "XDP at device {device}: {state}"),
            }
        }
        self.xdp = states;
    }

    /// Moves nodelb's programs in front of others, once for each of these. A program that remains in front is reported: it
    /// may decide about packets that nodelb then does not see.
    fn keep_first(&mut self) {
        let mut remaining: BTreeMap<u32, String> = BTreeMap::new();
        self.moves.retain(|ifindex, _| self.names.contains_key(ifindex));
        for Ahead { ifindex, direction, program, name } in self.attach.ahead() {
            let device = self.name(ifindex);
            let name = if name.is_empty() { format!("with id {program}") } else { name };
            let moves = self.moves.entry(ifindex).or_default();
            let is_new = moves.len() < MOVES && moves.insert((direction, program));
            if is_new && self.attach.move_to_front(ifindex, direction).is_ok() {
                self.repairs += 1;
                let text = format!(
                    "the program {name} ran before nodelb's program at {direction} of device {device}: nodelb has moved its \
                     program to the front"
                );
                warn!(message_id = %messages::PROGRAM_IN_FRONT, "{text}");
                self.note(What::Repaired, &text);
                continue;
            }
            let text = format!("the program {name} runs before nodelb's at {direction}");
            let all = remaining.entry(ifindex).or_default();
            let separator = if all.is_empty() { "" } else { "; " };
            all.push_str(&format!("{separator}{text}"));
        }
        let before = std::mem::replace(&mut self.ahead, remaining.clone());
        for (ifindex, text) in remaining.iter().filter(|(index, text)| before.get(index) != Some(text)) {
            let device = self.name(*ifindex);
            warn!(
                message_id = %messages::PROGRAM_IN_FRONT,
                "device {device}: {text}; nodelb does not see packets that it passes to the network stack, drops or \
                 redirects. nodelb moves its programs to the front only once for each program"
            );
            self.note(What::Failed, &format!("device {device}: {text}"));
        }
        for (ifindex, text) in before.iter().filter(|(index, _)| !remaining.contains_key(index)) {
            let device = self.name(*ifindex);
            self.note(What::Healed, &format!("device {device}: no longer: {text}"));
        }
    }

    /// Returns what has happened.
    fn detach(&mut self, ifindex: u32, is_gone: bool) -> Result<String, String> {
        self.attach.detach(ifindex).map_err(|error| error.to_string())?;
        let name = self.names.remove(&ifindex).unwrap_or_else(|| format!("index {ifindex}").into());
        let text = if is_gone {
            format!("device {name} is gone, and with it nodelb's programs there")
        } else {
            format!("detached nodelb's programs from device {name}: its packets are no longer translated")
        };
        info!(message_id = %messages::DEVICE_DETACHED, "{text}");
        Ok(text)
    }

    /// Returns what has happened, if the device was not known to have programs.
    fn attached(
        &mut self,
        device: HookedDevice,
        name: &Arc<str>,
        faults: &[&HookFault],
        states: &[(Direction, LinkState)],
    ) -> Option<String> {
        let is_known = self.names.insert(device.ifindex, Arc::clone(name)).is_some_and(|known| known == *name);
        let lasted = |fault: &HookFault| {
            states.iter().any(|(direction, state)| {
                *direction == fault.direction && matches!(state, LinkState::Pinned | LinkState::Updated)
            })
        };
        let lost =
            faults.iter().filter(|fault| !lasted(fault)).map(|fault| format!("{}: {}", fault.direction, fault.reason));
        let lost: Vec<String> = lost.collect();
        if is_known && !lost.is_empty() {
            self.repairs += lost.len() as u64;
            let text = format!(
                "attached nodelb's programs to device {name} again, because another process had removed them: {}",
                lost.join("; ")
            );
            warn!(message_id = %messages::LINKS_REPAIRED, "{text}");
            self.note(What::Repaired, &text);
        }
        if is_known {
            return None;
        }
        let what = match device.side {
            DeviceSide::Uplink => "leads to other machines",
            DeviceSide::Pod => "leads to a pod",
        };
        let text = format!("attached nodelb's programs to device {name}, which {what} ({})", self.attach.method());
        info!(message_id = %messages::DEVICE_ATTACHED, "{text}");
        Some(text)
    }

    /// Reports each error, and its end, once.
    fn report(&mut self, errors: &BTreeMap<u32, String>, devices: &[Device]) {
        let before = std::mem::replace(&mut self.errors, errors.clone());
        let name = |ifindex: &u32| {
            let device = devices.iter().find(|device| device.ifindex == *ifindex);
            device.map_or_else(|| format!("index {ifindex}"), |device| device.name.to_string())
        };
        for (ifindex, error) in errors.iter().filter(|(index, error)| before.get(index) != Some(error)) {
            let text = format!("cannot change nodelb's programs at device {}: {error}", name(ifindex));
            warn!(
                message_id = %messages::DEVICE_NOT_ATTACHED,
                "{text}; connections from outside the node that pass the device may fail. nodelb retries every 10 seconds"
            );
            self.note(What::Failed, &text);
        }
        for ifindex in before.keys().filter(|index| !errors.contains_key(index)) {
            self.note(What::Healed, &format!("nodelb's programs at device {} are in place", name(ifindex)));
        }
    }
}

/// What the device needs; `None` for nothing.
fn hooked(device: &Device) -> Option<HookedDevice> {
    let side = match device.role {
        Role::Uplink => DeviceSide::Uplink,
        Role::Pod | Role::PodBridge(_) => DeviceSide::Pod,
        Role::Unused(_) => return None,
    };
    Some(HookedDevice { ifindex: device.ifindex, side, l2_length: device.entry.l2_length, xdp: device.xdp })
}

#[cfg(test)]
#[path = "tests/hooks.rs"]
pub(crate) mod tests;
