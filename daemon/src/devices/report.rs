//! What is known about the devices, for readers such as the admin API.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodelb_core::model::ipsec::Policies;
use nodelb_core::text::listed;
use nodelb_datapath::{HookMethod, XdpState};
use nodelb_report::problems::Ways;

use super::mode::{Activity, Decision};
use super::uplinks::{Device, Role};
use crate::config::DeviceName;
use crate::status::Check;

const SHOWN: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicesReport {
    /// Whether packets are translated, and why; `None` before the first look.
    pub decision: Option<Decision>,
    /// Whether any client can begin a connection that the programs translate.
    pub is_needed: bool,
    /// Whether an address is served for clients outside the node.
    pub is_outside_served: bool,
    /// How programs are attached; `None` before the first look.
    pub method: Option<HookMethod>,
    /// Number of programs that were attached again, because another process had removed them.
    pub repairs: u64,
    pub devices: Vec<DeviceReport>,
    /// See [`super::uplinks::is_cut_off`].
    pub is_cut_off: bool,
    /// The names in `packets.devices` that no device has.
    pub missing: Vec<String>,
    pub has_other_proxy: bool,
    pub ways: Arc<Ways>,
    /// The policies of IPsec that the programs follow.
    pub policies: Arc<Policies>,
    /// Why the packet path could not be started, if so.
    pub failure: Option<Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What has failed, what follows, and what to do.
    pub text: String,
    /// Whether the node is not ready because of it.
    pub is_fatal: bool,
}

impl DevicesReport {
    /// The programs of other software that run before nodelb's, with their devices.
    pub fn programs_ahead(&self) -> Vec<String> {
        let ahead = |report: &DeviceReport| Some(format!("{}: {}", report.device.name, report.ahead.as_ref()?));
        self.devices.iter().filter_map(ahead).collect()
    }

    /// The devices at which XDP is configured and other software has it, each with what follows.
    pub fn xdp_taken(&self) -> Vec<String> {
        let taken = |report: &DeviceReport| match report.xdp {
            Some(XdpState::Foreign { program }) => Some(format!(
                "XDP is not used on {}, because the program with id {program} of other software is there: packets take the \
                 slower path",
                report.device.name
            )),
            _ => None,
        };
        self.devices.iter().filter_map(taken).collect()
    }

    /// The names of the devices that lead to other machines.
    pub(crate) fn uplinks(&self) -> Vec<&str> {
        let uplinks = self.devices.iter().filter(|it| it.device.role == Role::Uplink);
        uplinks.map(|it| &*it.device.name).collect()
    }

    /// The names of devices without programs that other machines may be behind, by their numbers; none if no device has
    /// programs.
    pub(super) fn without_programs(&self) -> BTreeMap<u32, Arc<str>> {
        let is_on = self.decision.as_ref().is_some_and(|decision| decision.activity != Activity::Off);
        let may_lead_out = |role: &Role| matches!(role, Role::Unused(reason) if reason.may_lead_out());
        let unused = self.devices.iter().filter(|it| is_on && may_lead_out(&it.device.role));
        unused.map(|it| (it.device.ifindex, Arc::clone(&it.device.name))).collect()
    }

    /// What the decision amounts to: without a device to attach the programs to, nothing is translated.
    pub(super) fn in_effect(&self, decision: Decision) -> Decision {
        let is_used = |it: &DeviceReport| it.device.role == Role::Uplink && it.state() != HookState::NotNeeded;
        if decision.activity == Activity::Off || self.devices.iter().any(is_used) || !self.is_outside_served {
            return decision;
        }
        let why = match &self.missing[..] {
            [] => "nodelb devices says why, and packets.devices can name one".into(),
            names => missing(names),
        };
        Decision { activity: Activity::Off, reason: format!("no device leads to other machines; {why}") }
    }

    /// What follows if names in `packets.devices` are not those of devices, although other devices have the programs.
    pub(crate) fn missing_devices(&self) -> Option<String> {
        let is_on = self.decision.as_ref().is_some_and(|decision| decision.activity != Activity::Off);
        (is_on && self.is_outside_served && !self.missing.is_empty()).then(|| missing(&self.missing))
    }

    /// The row of `/readyz`: whether packets of clients outside the node are translated where they should be.
    pub fn check(&self) -> Check {
        if let Some(Failure { text, is_fatal }) = &self.failure {
            return Check { name: "devices".into(), passed: !is_fatal, detail: text.clone() };
        }
        let Some(Decision { activity, reason, .. }) = &self.decision else {
            return Check::failed("devices", "starting: the network devices of the node are not read yet");
        };
        let in_state = |state| {
            let devices = self.devices.iter().filter(move |it| it.state() == state);
            devices.map(|it| it.device.name.as_ref()).collect::<Vec<&str>>()
        };
        if *activity == Activity::Off && !self.is_needed {
            return Check::passed("devices", "no address is served for clients outside the node");
        }
        if *activity == Activity::Off {
            return Check::passed("devices", format!("connections from outside the node are not translated: {reason}"));
        }
        let (attached, failed) = (in_state(HookState::Attached), in_state(HookState::Failed));
        if !failed.is_empty() {
            let detail = format!(
                "the kernel refuses nodelb's programs at {}: connections that arrive or leave there are not translated; \
                 see nodelb devices",
                listed(&failed, SHOWN)
            );
            return Check::failed("devices", detail);
        }
        if attached.is_empty() {
            let detail = "no device leads to other machines: nothing to translate; see nodelb devices";
            return Check::passed("devices", detail);
        }
        let attached = format!("programs attached at {}", listed(&attached, SHOWN));
        Check::passed(
            "devices",
            match activity {
                Activity::Files => {
                    format!("new connections to services of Kubernetes are not translated: {reason}; {attached}")
                }
                Activity::Draining => format!("draining: new connections are not translated: {reason}; {attached}"),
                _ => attached,
            },
        )
    }
}

/// The names that no device has.
pub(super) fn missing_of(names: &[DeviceName], devices: &[Device]) -> Vec<String> {
    let is_missing = |name: &&DeviceName| name.is_exact() && !devices.iter().any(|it| name.matches(&it.name));
    names.iter().filter(is_missing).map(ToString::to_string).collect()
}

fn missing(names: &[String]) -> String {
    format!(
        "the node has no device {}, which packets.devices names: correct the name and reload nodelb, unless the device \
         is made later",
        listed(names, SHOWN)
    )
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    pub device: Device,
    /// Whether it has the programs that its role requires.
    pub is_attached: bool,
    pub error: Option<String>,
    pub ahead: Option<String>,
    /// Where the XDP program runs; `None` if it is off, or not for this device.
    pub xdp: Option<XdpState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumIter, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum HookState {
    Attached,
    /// The device needs no programs, or none are attached to any device.
    #[strum(serialize = "unused")]
    NotNeeded,
    /// The programs cannot be attached or detached.
    Failed,
}

impl HookState {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl DeviceReport {
    pub fn state(&self) -> HookState {
        match &self.error {
            Some(_) => HookState::Failed,
            None if self.is_attached => HookState::Attached,
            None => HookState::NotNeeded,
        }
    }
}

#[cfg(test)]
#[path = "tests/report.rs"]
mod tests;
