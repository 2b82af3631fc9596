//! What is known about the devices, for readers such as the admin API.

use nodelb_core::text::listed;
use nodelb_datapath::HookMethod;

use super::mode::{Activity, Decision};
use super::uplinks::{Device, Role};
use crate::status::Check;

/// The maximum number of devices in one line.
const SHOWN: usize = 4;

/// All devices, and whether packets are translated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicesReport {
    /// Whether packets are translated, and why; `None` before the first look.
    pub decision: Option<Decision>,
    /// How programs are attached; `None` before the first look.
    pub method: Option<HookMethod>,
    /// Number of programs that were attached again, because another process had removed them.
    pub repairs: u64,
    /// The devices in the order of their indexes.
    pub devices: Vec<DeviceReport>,
    pub has_other_proxy: bool,
    /// Why the packet path could not be started, if so.
    pub failure: Option<Failure>,
}

/// A failed start of the packet path.
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
        let line = |report: &DeviceReport| Some(format!("{}: {}", report.device.name, report.ahead.as_ref()?));
        self.devices.iter().filter_map(line).collect()
    }

    /// The names of the devices that lead to other machines.
    pub(crate) fn uplinks(&self) -> Vec<&str> {
        let uplinks = self.devices.iter().filter(|it| it.device.role == Role::Uplink);
        uplinks.map(|it| &*it.device.name).collect()
    }

    /// The row of `/readyz`: whether packets of clients outside the node are translated where they should be.
    pub fn check(&self) -> Check {
        if let Some(Failure { text, is_fatal }) = &self.failure {
            return Check { name: "devices".into(), passed: !is_fatal, detail: text.clone() };
        }
        let Some(Decision { activity, reason }) = &self.decision else {
            return Check::failed("devices", "starting: the network devices of the node are not read yet");
        };
        let in_state = |state| {
            let devices = self.devices.iter().filter(move |it| it.state() == state);
            devices.map(|it| it.device.name.as_ref()).collect::<Vec<&str>>()
        };
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
                Activity::Draining => format!("draining: new connections are not translated: {reason}; {attached}"),
                _ => attached,
            },
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    pub device: Device,
    /// Whether it has the programs that its role requires.
    pub is_attached: bool,
    /// Why its programs cannot be changed.
    pub error: Option<String>,
    /// The programs of other software that run before nodelb's.
    pub ahead: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    Attached,
    /// The device needs no programs, or none are attached to any device.
    NotNeeded,
    /// The programs cannot be attached or detached.
    Failed,
}

impl HookState {
    /// All states, with the names in tables and metrics.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Attached, "attached"), (Self::NotNeeded, "unused"), (Self::Failed, "failed")];

    /// The names, in the order of [`Self::ALL`].
    pub const NAMES: [&'static str; 3] = [Self::ALL[0].1, Self::ALL[1].1, Self::ALL[2].1];

    pub fn name(self) -> &'static str {
        let [attached, unused, failed] = Self::NAMES;
        match self {
            Self::Attached => attached,
            Self::NotNeeded => unused,
            Self::Failed => failed,
        }
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
