use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard};

use nodelb_core::model::uplink::UplinkEntry;
use nodelb_datapath::HookError;

use super::super::uplinks::Reason;
use super::*;

/// A kernel in memory: the devices with programs, and what it refuses.
#[derive(Default)]
pub(crate) struct Kernel {
    pub(crate) devices: BTreeMap<u32, HookedDevice>,
    pub(crate) refused: BTreeSet<u32>,
    /// Devices that lost their programs to another process.
    pub(crate) removed: BTreeSet<u32>,
    pub(crate) calls: Vec<String>,
    /// Programs of other software in front.
    pub(crate) ahead: Vec<Ahead>,
    /// Devices with programs that run, and of which another process has removed the pins.
    pub(crate) unpinned: BTreeSet<u32>,
    /// Whether that software moves to the front again.
    pub(crate) is_ahead_again: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<Kernel>>);

impl Fake {
    pub(crate) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.0.lock().unwrap()
    }
}

impl Attach for Fake {
    fn attach(&mut self, device: HookedDevice) -> Result<Vec<(Direction, LinkState)>, HookError> {
        let (ifindex, mut kernel) = (device.ifindex, self.kernel());
        kernel.calls.push(format!("attach {ifindex}"));
        if kernel.refused.contains(&ifindex) {
            let source = io::ErrorKind::PermissionDenied.into();
            return Err(HookError { ifindex, direction: Direction::Out, source });
        }
        kernel.removed.remove(&ifindex);
        kernel.devices.insert(ifindex, device);
        Ok(vec![(Direction::Out, LinkState::Created), (Direction::In, LinkState::Created)])
    }

    fn detach(&mut self, ifindex: u32) -> Result<(), HookError> {
        let mut kernel = self.kernel();
        kernel.calls.push(format!("detach {ifindex}"));
        kernel.devices.remove(&ifindex);
        Ok(())
    }

    fn devices(&self) -> Vec<HookedDevice> {
        self.kernel().devices.values().copied().collect()
    }

    fn faults(&self) -> Vec<HookFault> {
        let kernel = self.kernel();
        let fault = |ifindex: &u32, reason: &str, is_running| HookFault {
            ifindex: *ifindex,
            direction: Direction::In,
            reason: reason.into(),
            is_running,
        };
        let removed = kernel.removed.iter().map(|ifindex| fault(ifindex, "gone", false));
        removed.chain(kernel.unpinned.iter().map(|ifindex| fault(ifindex, "its pin is gone", true))).collect()
    }

    fn ahead(&self) -> Vec<Ahead> {
        self.kernel().ahead.clone()
    }

    fn move_to_front(&mut self, ifindex: u32, direction: Direction) -> io::Result<()> {
        let mut kernel = self.kernel();
        kernel.calls.push(format!("move {ifindex} {direction}"));
        if !kernel.is_ahead_again {
            kernel.ahead.clear();
        }
        Ok(())
    }

    fn method(&self) -> HookMethod {
        HookMethod::Tcx
    }

    fn keep_xdp(&mut self) -> BTreeMap<u32, XdpState> {
        BTreeMap::new()
    }
}

fn device(ifindex: u32, name: &str, role: Role) -> Device {
    Device {
        ifindex,
        name: name.into(),
        kind: "physical".into(),
        xdp: nodelb_datapath::XdpFit::Fits,
        entry: UplinkEntry { mtu: 1500, l2_length: 14, ..UplinkEntry::default() },
        sources: [].into(),
        role,
        kept: None,
    }
}

fn calls(fake: &Fake) -> Vec<String> {
    std::mem::take(&mut fake.kernel().calls)
}

#[test]
fn devices_get_and_lose_programs() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    let down = || Role::Unused(Reason::Down);
    let devices = [device(1, "eth0", Role::Uplink), device(2, "tap0", Role::Pod), device(3, "eth1", down())];
    assert!(hooks.sync(&devices, true).is_empty());
    assert_eq!(calls(&fake), ["attach 1", "attach 2"]);
    assert_eq!(fake.kernel().devices[&2].side, DeviceSide::Pod);
    hooks.sync(&devices, true);
    assert_eq!(calls(&fake), [""; 0], "nothing has changed");
    let devices = [device(1, "eth0", down()), device(3, "eth1", Role::Uplink)];
    hooks.sync(&devices, true);
    assert_eq!(calls(&fake), ["detach 1", "detach 2", "attach 3"]);
    hooks.sync(&devices, false);
    assert_eq!(calls(&fake), ["detach 3"]);
    assert!(!hooks.is_any_attached());
}

/// An index may be used again by a device with another name.
#[test]
fn another_device_with_the_same_index_is_new() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    hooks.sync(&[device(1, "eth0", Role::Uplink)], true);
    hooks.sync(&[device(1, "eth1", Role::Uplink)], true);
    assert_eq!(calls(&fake), ["attach 1", "attach 1"]);
    hooks.sync(&[device(1, "eth1", Role::Pod)], true);
    assert_eq!(calls(&fake), ["attach 1"], "another program");
}

#[test]
fn removed_programs_are_attached_again_and_counted() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    let devices = [device(1, "eth0", Role::Uplink), device(2, "eth1", Role::Uplink)];
    hooks.sync(&devices, true);
    fake.kernel().removed.insert(2);
    hooks.sync(&devices, true);
    assert_eq!(calls(&fake), ["attach 1", "attach 2", "attach 2"]);
    assert_eq!(hooks.repairs(), 1);
    let text =
        "attached nodelb's programs to device eth1 again, because another process had removed them: ingress: gone";
    assert_eq!(events(&mut hooks), [format!("Repaired hooks: {text}")]);
}

#[test]
fn a_refusal_is_reported_and_tried_again() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    let devices = [device(1, "eth0", Role::Uplink), device(2, "eth1", Role::Uplink)];
    fake.kernel().refused.insert(1);
    let errors = hooks.sync(&devices, true);
    assert_eq!(errors.keys().collect::<Vec<_>>(), [&1], "the other device has its programs");
    assert!(errors[&1].contains("egress"), "{errors:?}");
    fake.kernel().refused.clear();
    assert!(hooks.sync(&devices, true).is_empty());
    assert_eq!(calls(&fake), ["attach 1", "attach 2", "attach 1"]);
    let [failed, healed] = &events(&mut hooks)[..] else { panic!("each once") };
    assert!(failed.starts_with("Failed hooks: cannot change nodelb's programs at device eth0: "), "{failed}");
    assert_eq!(healed, "Healed hooks: nodelb's programs at device eth0 are in place");
}

/// The events since the last call.
fn events(hooks: &mut Hooks) -> Vec<String> {
    let text = |event: Event| format!("{} {}", event.what, event.detail.unwrap_or_default());
    hooks.take_events().into_iter().map(text).collect()
}

/// Found as: an uplink got another name and lost its programs, and the history had nothing.
#[test]
fn a_device_that_gets_or_loses_the_programs_is_in_the_history() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    let eth0 = || device(1, "eth0", Role::Uplink);
    hooks.sync(&[eth0(), device(2, "tap0", Role::Pod)], true);
    assert_eq!(events(&mut hooks), [""; 0], "the decision to translate is one");
    hooks.sync(&[eth0(), device(3, "eth1", Role::Uplink)], true);
    let gained = "Changed hooks: attached nodelb's programs to device eth1, which leads to other machines (tcx)";
    assert_eq!(events(&mut hooks), [gained], "pods come and go");
    hooks.sync(&[eth0(), device(3, "wan0", Role::Unused(Reason::NotListed))], true);
    let lost = "Changed hooks: detached nodelb's programs from device eth1: its packets are no longer translated";
    assert_eq!(events(&mut hooks), [lost]);
    hooks.sync(&[], true);
    assert_eq!(events(&mut hooks), ["Changed hooks: device eth0 is gone, and with it nodelb's programs there"]);
    hooks.sync(&[eth0()], true);
    hooks.sync(&[eth0()], false);
    assert_eq!(events(&mut hooks), [""; 0], "the decision not to translate is one");
}

/// Clients outside were not served until nodelb's program was in front again, and only the journal knew it.
#[test]
fn a_program_in_front_is_an_event() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    let devices = [device(1, "eth0", Role::Uplink)];
    hooks.sync(&devices, true);
    assert_eq!(events(&mut hooks), [""; 0]);
    for ahead in [true, true, true, false] {
        let other = Ahead { ifindex: 1, direction: Direction::In, program: 7, name: "other".into() };
        fake.kernel().ahead = ahead.then_some(other).into_iter().collect();
        hooks.sync(&devices, true);
    }
    assert_eq!(
        events(&mut hooks),
        [
            "Repaired hooks: the program other ran before nodelb's program at ingress of device eth0: nodelb has moved its \
             program to the front",
            "Failed hooks: device eth0: the program other runs before nodelb's at ingress",
            "Healed hooks: device eth0: no longer: the program other runs before nodelb's at ingress",
        ]
    );
}

#[test]
fn programs_move_to_the_front_once_for_each_other_program() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    let devices = [device(1, "eth0", Role::Uplink)];
    hooks.sync(&devices, true);
    let other = |program| Ahead { ifindex: 1, direction: Direction::In, program, name: "other".into() };
    calls(&fake);
    fake.kernel().ahead = vec![other(7)];
    hooks.sync(&devices, true);
    assert_eq!((calls(&fake), hooks.ahead(1)), (vec!["move 1 ingress".into()], None));

    fake.kernel().ahead = vec![other(7)];
    hooks.sync(&devices, true);
    assert_eq!(calls(&fake), [""; 0], "the same program is in front again");
    assert_eq!(hooks.ahead(1), Some("the program other runs before nodelb's at ingress"));

    fake.kernel().is_ahead_again = true;
    for program in 8..20 {
        fake.kernel().ahead = vec![other(program)];
        hooks.sync(&devices, true);
    }
    assert_eq!(calls(&fake).len() + 1, MOVES, "not without end");
    assert_eq!(hooks.repairs(), MOVES as u64);

    fake.kernel().ahead.clear();
    hooks.sync(&devices, true);
    assert_eq!(hooks.ahead(1), None);
}

/// Found as: after `rm -r /sys/fs/bpf/nodelb` the node was not ready for ten seconds, although every program ran.
#[test]
fn programs_that_run_without_pins_are_no_failure() {
    let fake = Fake::default();
    let mut hooks = Hooks::new(Box::new(fake.clone()));
    let devices = [device(1, "eth0", Role::Uplink)];
    assert!(hooks.sync(&devices, true).is_empty());
    fake.kernel().unpinned.insert(1);
    fake.kernel().refused.insert(1);
    assert!(hooks.sync(&devices, true).is_empty(), "the directory of the pins is restored by another task");
    fake.kernel().removed.insert(1);
    assert_eq!(hooks.sync(&devices, true).len(), 1, "one of its programs is gone");
}
