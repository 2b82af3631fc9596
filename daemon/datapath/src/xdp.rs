//! The XDP program at network devices: a link for each, pinned and replaced like those at cgroups. Whatever the program
//! does not translate, and all packets while it is at no device, reach the programs of `crate::device_hooks`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::Program;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::attach::{self, remove_link};
use crate::hook_point::{HookedDevice, XdpFit};
use crate::packets::{XdpDevice, XdpMode, XdpProgram};
use crate::pins::{self, Pins, UNFINISHED, numbered};
use crate::sys::xdp::AtDevice;
use crate::sys::{self, tc};

const PREFIX: &str = "packets-xdp-";
/// The pause after a failure. An attempt may interrupt the traffic.
const RETRY: Duration = Duration::from_secs(10);

/// Where the XDP program runs at a device, or why it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpState {
    Native,
    /// Native, but no packets are sent to the device by XDP: its driver does not send for every processor.
    ReceivesOnly,
    Generic,
    /// The driver has no XDP, or the kernel does not say whether it has.
    NoDriver,
    /// See [`XdpFit::Vlans`].
    Vlans,
    /// See [`XdpFit::Ports`].
    Ports,
    /// An XDP program of other software is attached, which stays there.
    Foreign {
        program: u32,
    },
    Failed(String),
}

impl fmt::Display for XdpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("native"),
            Self::ReceivesOnly => {
                f.write_str("native, receives only: its driver is not known to send for every processor")
            }
            Self::Generic => f.write_str("generic"),
            Self::NoDriver => f.write_str("none: the driver does not support it"),
            Self::Vlans => f.write_str("none: VLAN devices are on top of the device"),
            Self::Ports => f.write_str("none: it would run at the ports of the bond"),
            Self::Foreign { program } => {
                write!(f, "none: the XDP program with id {program} of other software is attached")
            }
            Self::Failed(reason) => write!(f, "none: {reason}"),
        }
    }
}

/// The links of the XDP program, with one owner. Dropping them leaves them attached.
#[derive(Debug)]
pub(crate) struct XdpHooks {
    program: XdpProgram,
    mode: XdpMode,
    /// What the program knows.
    devices: BTreeMap<u32, XdpDevice>,
    /// A program stays attached as long as its link is open or pinned.
    open_links: BTreeMap<u32, OwnedFd>,
    /// The devices where it could not be attached, and when.
    failed: BTreeMap<u32, (Instant, XdpState)>,
    /// The devices whose drivers do not send for every processor.
    short: BTreeSet<u32>,
}

impl XdpHooks {
    pub(crate) fn new(program: XdpProgram, mode: XdpMode) -> Self {
        let (devices, open_links, failed, short) = Default::default();
        Self { program, mode, devices, open_links, failed, short }
    }

    /// Attaches the program to these devices, with Ethernet headers, where that is possible and has not been done.
    pub(crate) fn keep(&mut self, devices: &[HookedDevice], pins: &Pins) -> BTreeMap<u32, XdpState> {
        let found = pinned(pins);
        // To attach and detach it at each start would interrupt the traffic of most network cards.
        let is_unclear = |device: &HookedDevice| device.xdp == XdpFit::Unknown && !found.contains(&device.ifindex);
        let devices: Vec<HookedDevice> = devices.iter().copied().filter(|device| !is_unclear(device)).collect();
        // What a driver can do may change with the program, and with that at the other end of a pair of devices.
        self.describe(&devices);
        self.failed.retain(|_, (at, _)| at.elapsed() < RETRY);
        let states = devices.iter().map(|HookedDevice { ifindex, xdp, .. }| {
            let state = match (xdp, self.mode) {
                (XdpFit::Vlans, _) => Err(XdpState::Vlans),
                (XdpFit::Ports, XdpMode::Auto) => Err(XdpState::Ports),
                _ => self.attach(*ifindex, pins),
            };
            let state = state.unwrap_or_else(|state| state);
            let is_attached = matches!(state, XdpState::Native | XdpState::Generic);
            if !is_attached && (self.open_links.contains_key(ifindex) || pinned(pins).contains(ifindex)) {
                // A link that could not be changed would run an earlier program.
                let _ = self.detach(*ifindex, pins);
            }
            if matches!(state, XdpState::Failed(_)) {
                self.failed.entry(*ifindex).or_insert_with(|| (Instant::now(), state.clone()));
            }
            (*ifindex, state)
        });
        let mut states: BTreeMap<u32, XdpState> = states.collect();
        self.describe(&devices);
        for (_, state) in
            states.iter_mut().filter(|(index, state)| **state == XdpState::Native && self.short.contains(index))
        {
            *state = XdpState::ReceivesOnly;
        }
        states
    }

    /// Tells the program what these devices are.
    fn describe(&mut self, devices: &[HookedDevice]) {
        for HookedDevice { ifindex, .. } in devices {
            let device = self.read(*ifindex).ok();
            if self.devices.get(ifindex) != device.as_ref() && self.program.set_device(*ifindex, device).is_ok() {
                self.devices.remove(ifindex);
                self.devices.extend(device.map(|device| (*ifindex, device)));
            }
        }
    }

    fn read(&mut self, ifindex: u32) -> io::Result<XdpDevice> {
        let any = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let (_, mac) = tc::link_layer(any.as_fd(), ifindex)?;
        self.short.remove(&ifindex);
        if self.mode == XdpMode::Generic {
            return Ok(XdpDevice { mac, sends: true });
        }
        let can_send = sys::xdp::query(ifindex)?.sends();
        let is_short = can_send && !sends_from_each_cpu(any.as_fd(), ifindex);
        if is_short {
            self.short.insert(ifindex);
        }
        Ok(XdpDevice { mac, sends: can_send && !is_short })
    }

    fn attach(&mut self, ifindex: u32, pins: &Pins) -> Result<XdpState, XdpState> {
        if let Some((_, state)) = self.failed.get(&ifindex) {
            return Err(state.clone());
        }
        let (state, flags) = match self.mode {
            XdpMode::Auto => (XdpState::Native, libbpf_sys::XDP_FLAGS_DRV_MODE),
            XdpMode::Generic => (XdpState::Generic, libbpf_sys::XDP_FLAGS_SKB_MODE),
        };
        let ours = Program::id_from_fd(self.program.program()).map_err(failed)?;
        let [pinned, unfinished] = paths(ifindex, pins).map(|path| pinned_program(ifindex, &path));
        let found = match sys::xdp::query(ifindex) {
            Ok(found) => found,
            // For lack of descriptors or memory. To attach it again would interrupt the traffic.
            Err(_) if self.has_link(ifindex, ours) => return Ok(state),
            Err(error) => return Err(failed(error)),
        };
        let runs = self.running(found);
        if runs == ours && pinned == Some(ours) {
            return Ok(state);
        }
        if self.mode == XdpMode::Auto && !found.has_native() {
            return Err(XdpState::NoDriver);
        }
        let is_ours = |program: u32| program == ours || [pinned, unfinished].contains(&Some(program));
        if let Some(program) = found.all().into_iter().find(|program| *program != 0 && !is_ours(*program)) {
            return Err(XdpState::Foreign { program });
        }
        if runs == 0 || unfinished == Some(runs) {
            // It runs in the other mode, not at all, or by a link that a crash has left.
            self.detach(ifindex, pins).map_err(failed)?;
        }
        let is_right = |link: BorrowedFd<'_>| {
            LinkInfo::from_fd(link).is_ok_and(|info| runs == info.prog_id && is_at(&info, ifindex))
        };
        let create = || sys::xdp::create(self.program.program(), ifindex, flags);
        let mut link = self.open_links.remove(&ifindex);
        let attached =
            attach::pinned_link(&pin_name(ifindex), self.program.program(), pins, &mut link, (&is_right, &create));
        self.open_links.extend(link.map(|link| (ifindex, link)));
        attached.map(|_| state).map_err(failed)
    }

    /// Whether the open link runs this program at the device.
    fn has_link(&self, ifindex: u32, program: u32) -> bool {
        let info = self.open_links.get(&ifindex).and_then(|link| LinkInfo::from_fd(link.as_fd()).ok());
        info.is_some_and(|info| info.prog_id == program && is_at(&info, ifindex))
    }

    /// The program that runs in the mode of this start.
    fn running(&self, found: AtDevice) -> u32 {
        match self.mode {
            XdpMode::Auto => found.native,
            XdpMode::Generic => found.generic,
        }
    }

    /// Detaches the program from a device, which may no longer exist.
    pub(crate) fn detach(&mut self, ifindex: u32, pins: &Pins) -> io::Result<()> {
        self.devices.remove(&ifindex);
        let described = self.program.set_device(ifindex, None);
        self.open_links.remove(&ifindex);
        remove(ifindex, pins)?;
        described
    }
}

fn failed(error: impl fmt::Display) -> XdpState {
    XdpState::Failed(error.to_string())
}

/// Drivers whose queues serve all processors. Others send nothing for a processor whose number is above that of their
/// queues, and the packet is lost.
const SHARED_QUEUES: [&str; 5] = ["bnxt_en", "ena", "tun", "veth", "virtio_net"];

fn sends_from_each_cpu(socket: BorrowedFd<'_>, ifindex: u32) -> bool {
    let is_shared = sys::xdp::driver(socket, ifindex).is_ok_and(|driver| SHARED_QUEUES.contains(&driver.as_str()));
    let is_enough = |queues: u32| highest_cpu().is_some_and(|cpu| cpu < queues);
    is_shared || sys::xdp::queues(socket, ifindex).is_ok_and(is_enough)
}

/// The file has ranges in ascending order, such as `0-3,8`.
fn highest_cpu() -> Option<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/present").ok()?;
    text.trim().rsplit(['-', ',']).next()?.parse().ok()
}

impl AtDevice {
    fn all(self) -> [u32; 3] {
        [self.native, self.generic, self.hardware]
    }
}

fn pin_name(ifindex: u32) -> String {
    format!("{PREFIX}{ifindex}")
}

pub(crate) fn of_pin_name(name: &str) -> Option<u32> {
    numbered(name, PREFIX)
}

fn is_at(info: &LinkInfo, ifindex: u32) -> bool {
    matches!(&info.info, LinkTypeInfo::Xdp(xdp) if xdp.ifindex == ifindex)
}

/// The pin of a device's link, and that of one which a crash has left.
fn paths(ifindex: u32, pins: &Pins) -> [PathBuf; 2] {
    let name = pin_name(ifindex);
    [pins.link(&name), pins.link(&format!("{name}{UNFINISHED}"))]
}

/// The id of the program of the link that is pinned there, if it is at this device.
fn pinned_program(ifindex: u32, path: &Path) -> Option<u32> {
    let link = sys::open_link(path).ok().flatten()?;
    LinkInfo::from_fd(link.as_fd()).ok().filter(|info| is_at(info, ifindex)).map(|info| info.prog_id)
}

/// The devices with pinned links, also with those that a crash has left.
pub(crate) fn pinned(pins: &Pins) -> BTreeSet<u32> {
    let names = pins::list(&pins.links()).unwrap_or_default();
    names.iter().filter_map(|name| of_pin_name(name.strip_suffix(UNFINISHED).unwrap_or(name))).collect()
}

pub(crate) fn pin_names(pins: &Pins) -> impl Iterator<Item = String> {
    let names = pins::list(&pins.links()).unwrap_or_default();
    names.into_iter().filter(|name| of_pin_name(name).is_some())
}

/// Detaches the link of a device and removes its pin; returns the number of links.
pub(crate) fn remove(ifindex: u32, pins: &Pins) -> io::Result<usize> {
    let removed = paths(ifindex, pins).map(|path| remove_link(&path, pins.crash()).map(usize::from));
    removed.into_iter().sum()
}
