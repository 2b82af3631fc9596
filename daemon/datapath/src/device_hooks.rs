//! The packet programs at network devices: which program runs at which hook, and how they are kept attached. Where the
//! kernel has tcx links these are pinned (`crate::tcx`); elsewhere there are filters (`crate::clsact`).
//!
//! A device gets the program for packets that leave before the one for packets that arrive, and loses them in reverse
//! order: a connection that is translated has its answers translated, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::attach::{LinkState, remove_link};
use crate::chain::ChainReader;
use crate::filter_changes::{ChangeFilters, InThisProcess};
use crate::hook_point::{DeviceSide, Direction, HookPoint, HookedDevice, XdpFit};
use crate::kept::KeptPrograms;
use crate::packets::{LinkLayer, PacketHook, PacketPrograms};
use crate::pins::{self, Pins, UNFINISHED, WITHOUT_DIRECT_RETURN, numbered};
use crate::sys::tc;
use crate::xdp::{self, XdpHooks, XdpState};
use crate::{clsact, tcx};

/// The type of a link layer with an Ethernet header: `ARPHRD_ETHER` of `linux/if_arp.h`.
const ETHERNET: u16 = 1;

/// Length of an Ethernet header in bytes.
const ETHERNET_HEADER: u8 = 14;

impl HookedDevice {
    /// A device with programs that an earlier process has attached.
    fn read(ifindex: u32, pins: &Pins) -> io::Result<Self> {
        let any = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let is_ethernet = tc::link_layer(any.as_fd(), ifindex)?.0 == ETHERNET;
        let side = if pins.is_marked(&pod_marker(ifindex)) { DeviceSide::Pod } else { DeviceSide::Uplink };
        let l2_length = if is_ethernet { ETHERNET_HEADER } else { 0 };
        Ok(Self { ifindex, side, l2_length, xdp: XdpFit::Unknown })
    }
}

/// The prefix of the names of directories that mark devices of pods.
const POD_MARKER: &str = "pod-";

fn pod_marker(ifindex: u32) -> String {
    format!("{POD_MARKER}{ifindex}")
}

/// Records what a device leads to.
fn mark_side(device: HookedDevice, pins: &Pins) -> io::Result<()> {
    pins.mark(&pod_marker(device.ifindex), device.side == DeviceSide::Pod)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookMethod {
    /// By links, which need no capability.
    Tcx,
    /// By filters, which take CAP_NET_ADMIN: see [`DeviceHooks::change_filters_by`].
    Clsact,
}

impl HookMethod {
    /// The method that this kernel supports. Takes CAP_NET_ADMIN.
    pub fn find() -> Self {
        if tcx::is_supported() { Self::Tcx } else { Self::Clsact }
    }
}

impl fmt::Display for HookMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        })
    }
}

/// The reason why a program cannot be attached or detached.
#[derive(Debug, thiserror::Error)]
#[error("{direction} of the device with index {ifindex}: {source}")]
pub struct HookError {
    pub ifindex: u32,
    pub direction: Direction,
    pub source: io::Error,
}

impl HookError {
    fn at(point: HookPoint) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { ifindex: point.ifindex, direction: point.direction, source }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFault {
    pub ifindex: u32,
    pub direction: Direction,
    pub reason: String,
    /// Whether the hook runs nodelb's program all the same: only the pin is missing.
    pub is_running: bool,
}

/// A program of other software that runs before nodelb's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub ifindex: u32,
    pub direction: Direction,
    /// Id of the program; 0 for a filter.
    pub program: u32,
    /// Name of the program or the filter; may be empty.
    pub name: String,
}

/// What attaches programs to devices: the kernel ([`DeviceHooks`]), or a test.
pub trait Attach: Send + 'static {
    /// Attaches programs to a device, or replaces them by those of this process.
    ///
    /// # Errors
    /// The hook that cannot be changed; its previous program, if any, stays attached.
    fn attach(&mut self, device: HookedDevice) -> Result<Vec<(Direction, LinkState)>, HookError>;

    /// Detaches the programs from a device, which may no longer exist.
    fn detach(&mut self, ifindex: u32) -> Result<(), HookError>;

    fn devices(&self) -> Vec<HookedDevice>;

    /// The faults of the hooks, usually none. Makes a few system calls per device.
    fn faults(&self) -> Vec<HookFault>;

    /// The programs that run before nodelb's, usually none. Makes a few system calls per device.
    fn ahead(&self) -> Vec<Ahead>;

    /// Makes nodelb's program the first one of a hook again.
    ///
    /// # Errors
    /// If the method has no order that lasts, or the kernel refuses the request; [`Self::faults`] then reports a hook that
    /// has lost its program.
    fn move_to_front(&mut self, ifindex: u32, direction: Direction) -> io::Result<()>;

    fn method(&self) -> HookMethod;

    /// Attaches the XDP program to the devices where it is missing. Returns where it runs, or why it does not, for each
    /// device that leads to other machines; nothing if it is off.
    fn keep_xdp(&mut self) -> BTreeMap<u32, XdpState>;
}

/// The programs at devices, with one owner. Dropping it leaves them attached.
#[derive(Debug)]
pub struct DeviceHooks {
    programs: PacketPrograms,
    method: HookMethod,
    pins: Pins,
    devices: BTreeMap<u32, HookedDevice>,
    /// Those where programs of an earlier process are left: they and the XDP program would use different maps.
    behind: BTreeSet<u32>,
    /// The open links: a program stays attached as long as its link is open or pinned.
    open_links: BTreeMap<HookPoint, OwnedFd>,
    changes: Box<dyn ChangeFilters>,
    /// Reads the order of programs at tcx hooks; `None` if the kernel refuses that.
    chains: Option<ChainReader>,
    /// The XDP program; `None` if it is off.
    xdp: Option<XdpHooks>,
}

impl DeviceHooks {
    pub(crate) fn new(
        programs: PacketPrograms,
        method: HookMethod,
        (pins, kept): (Pins, &KeptPrograms),
        xdp: Option<XdpHooks>,
    ) -> Self {
        let changes = Box::new(InThisProcess);
        let chains = (method == HookMethod::Tcx).then(|| ChainReader::load(kept)).and_then(Result::ok);
        let (devices, behind, open_links) = Default::default();
        Self { programs, method, pins, devices, behind, open_links, changes, chains, xdp }
    }

    /// Lets another process change filters, for a process that has dropped CAP_NET_ADMIN.
    pub fn change_filters_by(&mut self, changes: Box<dyn ChangeFilters>) {
        self.changes = changes;
    }

    fn program(&self, device: HookedDevice, direction: Direction) -> BorrowedFd<'_> {
        let hook = match (device.side, direction) {
            (DeviceSide::Uplink, Direction::In) => PacketHook::UplinkIn,
            (DeviceSide::Uplink, Direction::Out) => PacketHook::UplinkOut,
            (DeviceSide::Pod, Direction::In) => PacketHook::PodIn,
            (DeviceSide::Pod, Direction::Out) => PacketHook::PodOut,
        };
        self.programs.program(hook)
    }

    /// Makes the programs that an earlier process attached run the programs of this one, and removes what is left of
    /// devices that no longer exist. Does nothing if there are none. Returns the hooks that cannot be changed: their
    /// previous programs stay attached, and [`Self::faults`] reports them.
    pub(crate) fn take_over(&mut self) -> Vec<HookError> {
        let left = match self.method {
            HookMethod::Tcx => pinned_points(&self.pins),
            HookMethod::Clsact => filtered_points(),
        };
        let is_gone = |point: &HookPoint| self.method == HookMethod::Tcx && tcx::is_gone(*point, &self.pins);
        let alive: BTreeSet<u32> = left.iter().filter(|point| !is_gone(point)).map(|point| point.ifindex).collect();
        let gone: BTreeSet<u32> = left.iter().map(|point| point.ifindex).filter(|it| !alive.contains(it)).collect();
        let detached = gone.into_iter().map(|ifindex| self.detach(ifindex)).collect::<Vec<_>>();
        let attached = alive.into_iter().map(|ifindex| self.take_over_at(ifindex)).collect::<Vec<_>>();
        let states = self.keep_xdp();
        let unread: BTreeSet<u32> = attached.iter().filter_map(|it| it.as_ref().err()).map(|it| it.ifindex).collect();
        let (at, pinned) = (|ifindex| HookPoint { ifindex, direction: Direction::In }, xdp::pinned(&self.pins));
        let is_left =
            |ifindex: &u32, state: &XdpState| matches!(state, XdpState::Failed(_)) && pinned.contains(ifindex);
        let stuck = states.into_iter().filter(|(ifindex, state)| is_left(ifindex, state));
        let stuck = stuck.map(|(ifindex, state)| Err(HookError::at(at(ifindex))(io::Error::other(state.to_string()))));
        let off = pinned.iter().filter(|ifindex| !self.has_xdp(**ifindex) && !unread.contains(ifindex));
        let off = off.map(|ifindex| xdp::remove(*ifindex, &self.pins).map(drop).map_err(HookError::at(at(*ifindex))));
        detached.into_iter().chain(attached).chain(off).chain(stuck).filter_map(Result::err).collect()
    }

    /// Whether the XDP program may be at the device.
    fn has_xdp(&self, ifindex: u32) -> bool {
        self.xdp.is_some() && self.devices.get(&ifindex).is_some_and(is_for_xdp)
    }

    fn take_over_at(&mut self, ifindex: u32) -> Result<(), HookError> {
        let read = HookedDevice::read(ifindex, &self.pins);
        if is_removed(&read) || read.as_ref().is_ok_and(|device| !self.is_served(*device)) {
            return self.detach(ifindex);
        }
        let device = read.map_err(HookError::at(HookPoint { ifindex, direction: Direction::In }))?;
        let Err(error) = self.attach(device) else { return Ok(()) };
        // Devices of pods come and go at any time.
        if is_removed(&HookedDevice::read(ifindex, &self.pins)) {
            return self.detach(ifindex);
        }
        self.devices.insert(ifindex, device);
        self.behind.insert(ifindex);
        Err(error)
    }

    /// Whether there are programs for such a device.
    fn is_served(&self, device: HookedDevice) -> bool {
        device.side == DeviceSide::Uplink || self.programs.has_pods()
    }
}

impl Attach for DeviceHooks {
    fn attach(&mut self, device: HookedDevice) -> Result<Vec<(Direction, LinkState)>, HookError> {
        let mut states = Vec::new();
        let first = HookPoint { ifindex: device.ifindex, direction: Direction::Out };
        if !self.is_served(device) {
            return Err(HookError::at(first)(io::Error::other("the programs for devices of pods are not loaded")));
        }
        mark_side(device, &self.pins).map_err(HookError::at(first))?;
        let link_layer = if device.l2_length == 0 { LinkLayer::None } else { LinkLayer::Ethernet };
        self.programs.set_link_layer(device.ifindex, link_layer).map_err(HookError::at(first))?;
        for point in HookPoint::at(device.ifindex) {
            let direction = point.direction;
            let mut link = self.open_links.remove(&point);
            let program = self.program(device, direction);
            let state = match self.method {
                HookMethod::Tcx => tcx::attach(point, program, &self.pins, &mut link),
                HookMethod::Clsact => clsact::attach(point, program, &self.pins, &*self.changes),
            };
            self.open_links.extend(link.map(|link| (point, link)));
            if state.is_err() && states.is_empty() && !self.devices.contains_key(&device.ifindex) {
                // The device may have been removed, and would then never be detached.
                let _ = self.programs.set_link_layer(device.ifindex, LinkLayer::Ethernet);
            }
            states.push((direction, state.map_err(HookError::at(point))?));
        }
        if let Some(xdp) = self.xdp.as_mut().filter(|_| !is_for_xdp(&device)) {
            xdp.detach(device.ifindex, &self.pins).map_err(HookError::at(first))?;
        }
        self.devices.insert(device.ifindex, device);
        self.behind.remove(&device.ifindex);
        Ok(states)
    }

    fn detach(&mut self, ifindex: u32) -> Result<(), HookError> {
        self.open_links.retain(|point, _| point.ifindex != ifindex);
        if let Some(xdp) = &mut self.xdp {
            let point = HookPoint { ifindex, direction: Direction::In };
            xdp.detach(ifindex, &self.pins).map_err(HookError::at(point))?;
        }
        remove_device(ifindex, &self.pins, &*self.changes)?;
        self.devices.remove(&ifindex);
        self.behind.remove(&ifindex);
        // Hardly a program still reads the entry, and the next device with this index gets its own.
        let _ = self.programs.set_link_layer(ifindex, LinkLayer::Ethernet);
        Ok(())
    }

    fn devices(&self) -> Vec<HookedDevice> {
        self.devices.values().copied().collect()
    }

    fn faults(&self) -> Vec<HookFault> {
        let points = self.devices.values().flat_map(|device| Direction::ALL.map(|direction| (*device, direction)));
        let fault = |(device, direction): (HookedDevice, Direction)| {
            let (ifindex, program) = (device.ifindex, self.program(device, direction));
            let point = HookPoint { ifindex, direction };
            let open = self.open_links.get(&point);
            let reason = match self.method {
                HookMethod::Tcx => tcx::fault(point, program, (&self.pins, open))?,
                HookMethod::Clsact => clsact::fault(point, program)?,
            };
            let is_running = open.is_some_and(|link| tcx::runs(point, program, link.as_fd()));
            Some(HookFault { ifindex, direction, reason, is_running })
        };
        points.filter_map(fault).collect()
    }

    fn ahead(&self) -> Vec<Ahead> {
        let chains = self.chains.as_ref().and_then(|chains| chains.read().ok()).unwrap_or_default();
        let points = self.devices.keys().flat_map(|ifindex| HookPoint::at(*ifindex));
        let ahead = |point: HookPoint| {
            let (program, name) = match self.method {
                HookMethod::Tcx => tcx::ahead(point, self.open_links.get(&point)?.as_fd(), &chains)?,
                HookMethod::Clsact => (0, clsact::ahead(point)?),
            };
            Some(Ahead { ifindex: point.ifindex, direction: point.direction, program, name })
        };
        points.filter_map(ahead).collect()
    }

    fn move_to_front(&mut self, ifindex: u32, direction: Direction) -> io::Result<()> {
        let Some(&device) = self.devices.get(&ifindex).filter(|_| self.method == HookMethod::Tcx) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let point = HookPoint { ifindex, direction };
        let mut link = self.open_links.remove(&point);
        let moved = tcx::move_to_front(point, self.program(device, direction), &self.pins, &mut link);
        self.open_links.extend(link.map(|link| (point, link)));
        moved
    }

    fn method(&self) -> HookMethod {
        self.method
    }

    fn keep_xdp(&mut self) -> BTreeMap<u32, XdpState> {
        let devices = self.devices.values().copied().filter(is_for_xdp);
        let devices: Vec<HookedDevice> = devices.filter(|device| !self.behind.contains(&device.ifindex)).collect();
        self.xdp.as_mut().map(|xdp| xdp.keep(&devices, &self.pins)).unwrap_or_default()
    }
}

/// Whether the device no longer exists. Any other error says nothing about it, and its programs may be at work.
fn is_removed(read: &io::Result<HookedDevice>) -> bool {
    read.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::ENODEV as i32))
}

/// Whether the XDP program can read the packets of the device.
fn is_for_xdp(device: &HookedDevice) -> bool {
    device.side == DeviceSide::Uplink && device.l2_length == ETHERNET_HEADER
}

fn pinned_points(pins: &Pins) -> Vec<HookPoint> {
    let names = pins::list(&pins.links()).unwrap_or_default();
    names.iter().filter_map(|name| HookPoint::from_pin_name(name)).collect()
}

/// The hooks of all devices with a filter of nodelb.
fn filtered_points() -> Vec<HookPoint> {
    let indexes = nix::net::if_::if_nameindex();
    let indexes = indexes.iter().flat_map(|list| list.iter().map(nix::net::if_::Interface::index));
    let points = indexes.flat_map(HookPoint::at);
    points.filter(|point| clsact::program_at(*point).is_ok_and(|program| program.is_some())).collect()
}

/// Removes everything of nodelb from a device, whatever the method was.
fn remove_device(ifindex: u32, pins: &Pins, changes: &dyn ChangeFilters) -> Result<usize, HookError> {
    let point = HookPoint { ifindex, direction: Direction::In };
    let mut removed = xdp::remove(ifindex, pins).map_err(HookError::at(point))?;
    for point in HookPoint::at(ifindex).into_iter().rev() {
        for name in [point.pin_name(), format!("{}{UNFINISHED}", point.pin_name())] {
            removed += usize::from(remove_link(&pins.link(&name), pins.crash()).map_err(HookError::at(point))?);
        }
    }
    removed += clsact::remove(ifindex, pins, changes).map_err(HookError::at(point))?;
    pins.mark(&pod_marker(ifindex), false).map_err(HookError::at(point))?;
    Ok(removed)
}

/// The mark that the programs at devices use maps of an earlier generation, because those of a later start could not be
/// loaded.
pub(crate) const OUTDATED: &str = "outdated-packets";

/// The marks of the whole node.
pub(crate) const MARKS: [&str; 2] = [OUTDATED, WITHOUT_DIRECT_RETURN];

/// Whether programs of an earlier start are attached to devices and use the maps of the current generation.
pub(crate) fn is_any_current(pins: &Pins) -> bool {
    !pins.is_marked(OUTDATED) && is_any_attached(pins)
}

/// Whether programs of any start are attached to devices.
pub(crate) fn is_any_attached(pins: &Pins) -> bool {
    !pinned_points(pins).is_empty() || !filtered_points().is_empty()
}

/// Removes all programs of nodelb from all devices. Returns the number of hooks.
pub(crate) fn remove_all(pins: &Pins) -> Result<usize, HookError> {
    let any = HookPoint { ifindex: 0, direction: Direction::In };
    for mark in MARKS {
        pins.mark(mark, false).map_err(HookError::at(any))?;
    }
    let names = pins::list(&pins.links()).unwrap_or_default();
    let named = names.iter().filter_map(|name| {
        let name = name.strip_suffix(UNFINISHED).unwrap_or(name);
        let of_link = HookPoint::from_pin_name(name).map(|point| point.ifindex);
        of_link
            .or_else(|| xdp::of_pin_name(name))
            .or_else(|| numbered(name, clsact::MARKER))
            .or_else(|| numbered(name, POD_MARKER))
    });
    let filtered = filtered_points().into_iter().map(|point| point.ifindex);
    let indexes: BTreeSet<u32> = named.chain(filtered).collect();
    indexes.into_iter().map(|ifindex| remove_device(ifindex, pins, &InThisProcess)).sum()
}

/// The names of the pins of all links at devices.
pub(crate) fn pin_names(pins: &Pins) -> Vec<String> {
    pinned_points(pins).into_iter().map(HookPoint::pin_name).chain(xdp::pin_names(pins)).collect()
}
