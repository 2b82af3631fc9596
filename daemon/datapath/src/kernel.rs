//! The kernel datapath as a whole: its options, the handle that its owner works with, and its reports.

use std::io;
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::OpenObject;
use nodelb_core::datapath::{Datapath, Limits, MapError};
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{MapOp, Realised};
use nodelb_core::state::kernel_check::{Content, EntryKey};

use crate::attach::{self, LinkFault, LinkState, Links};
use crate::counters::Counters;
use crate::crash::CrashPoint;
use crate::device_hooks::{self, HookMethod};
use crate::error::{OpenError, failed};
use crate::features::{Feature, Findings};
use crate::flows::FlowReader;
use crate::foreign_links;
use crate::kept::{KeptPrograms, ProgramCount};
use crate::load::{self, PERSISTENT};
use crate::maps::NAMES;
use crate::mounts;
use crate::order::ProgramOrder;
use crate::outside;
use crate::own_sockets::OwnSockets;
use crate::packet_path::{OpenedPackets, PacketFailure};
use crate::packets::{self, PacketOptions};
use crate::pins::{self, Pins};
use crate::probe::{self, Features};
use crate::read::{self, KernelReader};
use crate::start::{Opened, Origin, Start};
use crate::sys;
use crate::tcx;
use crate::versions::{self, Lock, PinSetup};
use crate::write::Writer;

#[derive(Clone, Debug)]
pub struct Options {
    /// Directory for the pins of maps and links, on a bpffs.
    pub pin_directory: PathBuf,
    /// The cgroup: sockets of the processes in it and below are translated. `None`: the root of cgroup v2.
    pub cgroup: Option<PathBuf>,
    pub limits: Limits,
    /// Ports that may be NodePorts; an empty range for none.
    pub nodeport_range: RangeInclusive<u16>,
    /// Whether to refuse binding a NodePort that is served, in the network namespace of this process, if the kernel
    /// supports it ([`Feature::RefuseBind`]).
    pub protect_nodeports: bool,
    /// Whether to count the connections of each service, which takes 16 bytes per service and CPU, for at most eight
    /// CPUs.
    pub count_connections: bool,
    /// The packet path; `None` if packets of clients outside the node are not translated.
    pub packets: Option<PacketOptions>,
    /// How packet programs are attached to devices; `None` for the best way that the kernel supports.
    pub hook_method: Option<HookMethod>,
    /// Layout version of this nodelb: [`LAYOUT`](crate::LAYOUT), except in tests that need a next one.
    pub layout: u32,
    /// Number of physical operations before the process kills itself with SIGKILL; see [`CrashPoint`].
    pub crash_after: Option<u64>,
}

pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/nodelb";

#[derive(Clone, Debug)]
pub struct StartReport {
    pub generation: u32,
    pub origin: Origin,
    /// Names of the hooks, each with the result for its link.
    pub links: Vec<(&'static str, LinkState)>,
    /// Entries that nodelb cannot have written, and that were removed.
    pub corrupt: Vec<String>,
    pub findings: Findings,
    pub cgroup: PathBuf,
    pub foreign_pin_directories: Vec<PathBuf>,
    /// The reason why [`KernelDatapath::flows`] returns nothing, if so.
    pub flows: Result<(), String>,
    /// The reason why the packet path is not as configured, if so.
    pub packets: Result<(), PacketFailure>,
    /// Whether the packet path is off only since this start.
    pub has_ended_packets: bool,
    pub programs: ProgramCount,
    /// Why programs of an earlier start were not taken over although they were there, or why the next start cannot do so.
    pub program_faults: Vec<String>,
}

/// A repaired fault of a link or pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Description of the fault, such as `hook connect4: its pin … cannot be opened`.
    pub what: String,
    /// Whether only a pin was missing, which affects no connection.
    pub lasted: bool,
}

/// The maps in the kernel, with the programs attached. One owner writes; all other tasks use [`Self::reader`]. Dropping
/// it leaves maps and links in place: traffic continues.
#[derive(Debug)]
pub struct KernelDatapath {
    writer: Writer,
    links: Links,
    /// The open maps, which are pinned again when their pins disappear.
    open_maps: OpenMaps,
    own: OwnSockets,
    flows: Option<FlowReader>,
    order: Option<ProgramOrder>,
    /// The packet path, until its owner takes it.
    packets: Option<OpenedPackets>,
    pins: Pins,
    lock: Lock,
}

impl KernelDatapath {
    /// Finds or creates the maps, loads the programs and attaches them. After a failure at any step, connections are
    /// translated as before, and the next call continues from there.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing that worked before is undone; a hook that had no program of nodelb has none, and a pin
    /// directory that was absent is absent.
    pub fn open(options: &Options) -> Result<(Self, StartReport), OpenError> {
        let (features, cgroup) = probe::check(&options.pin_directory, options.cgroup.as_deref())?;
        // An unreadable directory is an error below.
        let versions = versions::all(&options.pin_directory).unwrap_or_default();
        let links: Vec<PathBuf> = versions.into_iter().map(|(_, version)| version.join("links")).collect();
        if let Some(full) = attach::full(&cgroup, &links) {
            return Err(full);
        }
        let crash = CrashPoint::new(options.crash_after);
        let mut setup = versions::enter(&options.pin_directory, options.layout, &crash)?;
        let opened = Self::open_in(&mut setup, options, features, cgroup);
        if opened.is_err() {
            setup.undo();
        }
        opened.map(|(datapath, report)| (Self { lock: setup.lock, ..datapath }, report))
    }

    /// Opens it in this pin directory, whose lock the caller keeps.
    fn open_in(
        setup: &mut PinSetup,
        options: &Options,
        features: Features,
        cgroup: PathBuf,
    ) -> Result<(Self, StartReport), OpenError> {
        let (pins, predecessor) = (setup.pins.clone(), setup.predecessor.take());
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let packets = options.packets.as_ref().map(|packets| (packets, options.hook_method));
        let prepared = load::prepare(&mut object, options, features)?;
        let has_ended_packets = packets.is_none() && device_hooks::is_any_attached(&pins);
        let kept = KeptPrograms::open(&pins);
        let start = Start::new((&pins, &kept), predecessor, &prepared, (cgroup.clone(), packets))?;
        let opened = start.run(prepared)?;
        versions::remove_others(&options.pin_directory, options.layout, pins.crash())?;
        let flows = FlowReader::load(&opened.persistent, &kept).map_err(|error| error.to_string());
        let mut findings = features.findings();
        findings.note(Feature::Flows, flows.is_ok());
        findings.note(Feature::TcxLinks, tcx::is_supported());
        let Opened { writer, attachment, open_links, persistent, packets, generation, .. } = opened;
        let open = Arc::new(Mutex::new(open_links));
        let links = Links { attachment: Arc::new(attachment), directory: pins.links(), open };
        let order = ProgramOrder::load(links.clone(), &kept).ok();
        kept.remove_others();
        let (programs, program_faults) = kept.into_report();
        let report = StartReport {
            generation,
            origin: opened.origin,
            links: opened.links,
            corrupt: opened.corrupt,
            findings,
            foreign_pin_directories: foreign_links::attached(&options.pin_directory, &cgroup, &mounts::mountinfo()?),
            cgroup,
            flows: flows.as_ref().map(|_| ()).map_err(Clone::clone),
            packets: packets.as_ref().map(|_| ()).map_err(Clone::clone),
            has_ended_packets,
            programs,
            program_faults,
        };
        let own = OwnSockets::new(persistent);
        let packets = packets.ok().flatten();
        let open_maps = OpenMaps::open(&pins, generation, packets.is_some())?;
        let flows = flows.ok();
        let lock = Lock::default();
        let datapath = Self { writer, links, open_maps, own, flows, order, packets, pins, lock };
        Ok((datapath, report))
    }

    pub fn reader(&self) -> KernelReader {
        KernelReader { maps: Arc::clone(&self.writer.maps) }
    }

    pub fn own_sockets(&self) -> OwnSockets {
        self.own.clone()
    }

    /// A reader of the sockets that are connected through a service; `None` if the kernel cannot list them.
    pub fn flows(&self) -> Option<FlowReader> {
        self.flows.clone()
    }

    /// The programs of other software at the hooks; `None` if the kernel cannot list them.
    pub fn program_order(&self) -> Option<ProgramOrder> {
        self.order.clone()
    }

    /// The packet path, for its owner; `None` if packets are off, the start has failed to open it, or it was taken
    /// before.
    pub fn take_packets(&mut self) -> Option<OpenedPackets> {
        self.packets.take()
    }

    /// The number of connections of each service; `None` if they are not counted.
    pub fn counters(&self) -> Option<Arc<Counters>> {
        self.writer.counters.clone()
    }

    pub fn links(&self) -> Links {
        self.links.clone()
    }

    pub fn verify_links(&self) -> Vec<LinkFault> {
        self.links.faults()
    }

    /// Attaches and pins what is missing or wrong, and returns the faults that it repaired.
    ///
    /// # Errors
    /// If a hook cannot be attached, or something cannot be pinned; the rest is left unchanged.
    pub fn ensure_attached(&mut self) -> Result<Vec<Repair>, OpenError> {
        let (faults, maps) = (self.verify_links(), self.open_maps.missing(&self.pins));
        if faults.is_empty() && maps.is_empty() {
            return Ok(Vec::new());
        }
        let restored = self.restore_pins();
        // Another process uses the pin directory; the links of this process stay attached because it holds them open.
        if let Err(busy @ OpenError::Busy { .. }) = restored {
            return Err(busy);
        }
        // Also if nothing can be pinned: links are created and held open.
        let mut open = self.links.open.lock().unwrap_or_else(PoisonError::into_inner);
        let links = self.links.attachment.attach(&self.pins, &mut open);
        drop(open);
        restored?;
        let links = links?;
        let lasted = |hook| links.iter().any(|(name, state)| *name == hook && *state == LinkState::Pinned);
        let of_link = |fault: LinkFault| Repair { lasted: lasted(fault.hook), what: fault.to_string() };
        let of_map = |name| Repair { lasted: true, what: format!("map {name}: its pin is gone") };
        Ok(faults.into_iter().map(of_link).chain(maps.into_iter().map(of_map)).collect())
    }

    fn restore_pins(&mut self) -> Result<(), OpenError> {
        let pin_directory = self.pins.root().parent().unwrap_or(self.pins.root()).to_path_buf();
        pins::make_directory(&pin_directory, self.pins.crash()).map_err(failed("making", &pin_directory))?;
        // Before anything is written: the directory may belong to a second daemon now.
        self.lock.extend(&pin_directory)?;
        self.open_maps.restore(&self.pins)?;
        self.lock.extend(&pin_directory)
    }

    /// Tries each kind of operation that is needed after the start.
    pub(crate) fn try_everything(&self) -> io::Result<()> {
        self.writer.maps.try_system_calls()?;
        self.own.register(UdpSocket::bind("0.0.0.0:0")?.as_fd())?;
        match self.verify_links().first() {
            None => Ok(()),
            Some(fault) => Err(io::Error::other(fault.to_string())),
        }
    }
}

impl Datapath for KernelDatapath {
    fn limits(&self) -> Limits {
        self.writer.maps.limits
    }

    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        self.writer.apply(ops, now)
    }

    fn end_round(&mut self, ended: Moment) {
        self.writer.end_round(ended);
    }

    fn dump(&self) -> Result<Realised, MapError> {
        self.reader().dump()
    }

    fn read(&self, keys: &[EntryKey]) -> Result<Content, MapError> {
        read::read(&self.writer.maps, keys)
    }
}

/// The pinned maps, held open, so that pins which disappear while the daemon runs are restored without any loss. Pins
/// disappear when another program removes them or mounts another bpffs over them. [`crate::attach`] does the same for
/// links.
#[derive(Debug)]
struct OpenMaps {
    generation: u32,
    persistent: Vec<(&'static str, OwnedFd)>,
    maps: Vec<(&'static str, OwnedFd)>,
}

impl OpenMaps {
    fn open(pins: &Pins, generation: u32, has_packets: bool) -> Result<Self, OpenError> {
        let directory = pins.generation(generation);
        // Pins that a start could not rename are missing.
        let is_pinned = |name: &&&'static str| has_packets && pins.persistent(name).exists();
        let of_packets = packets::maps::PERSISTENT.iter().filter(is_pinned);
        let names = PERSISTENT.iter().chain(of_packets);
        let persistent = names.map(|&name| open_pinned(name, &pins.persistent(name))).collect::<Result<_, _>>()?;
        let exists = |name: &&&'static str| directory.join(name).exists();
        let names = NAMES.iter().chain(outside::NAMES.iter().filter(exists));
        let maps = names.map(|&name| open_pinned(name, &directory.join(name))).collect::<Result<_, _>>()?;
        Ok(Self { generation, persistent, maps })
    }

    /// The maps without a pin. A pin that this process may not look at, because others have changed who may, is there.
    fn missing(&self, pins: &Pins) -> Vec<&'static str> {
        let directory = pins.generation(self.generation);
        let persistent = self.persistent.iter().map(|(name, _)| (*name, pins.persistent(name)));
        let maps = self.maps.iter().map(|(name, _)| (*name, directory.join(name)));
        persistent
            .chain(maps)
            .filter(|(_, path)| matches!(path.try_exists(), Ok(false)))
            .map(|(name, _)| name)
            .collect()
    }

    /// Restores missing pins and their directories. The generation appears in one step, as at a start.
    fn restore(&self, pins: &Pins) -> Result<(), OpenError> {
        pins.make()?;
        for (name, map) in &self.persistent {
            pin(map, &pins.persistent(name), pins)?;
        }
        let directory = pins.generation(self.generation);
        if directory.exists() {
            return self.pin_maps(&directory, pins);
        }
        let directory = pins.begin(self.generation)?;
        self.pin_maps(&directory, pins)?;
        pins.commit(self.generation)
    }

    fn pin_maps(&self, directory: &Path, pins: &Pins) -> Result<(), OpenError> {
        self.maps.iter().try_for_each(|(name, map)| pin(map, &directory.join(name), pins))
    }
}

fn open_pinned(name: &'static str, path: &Path) -> Result<(&'static str, OwnedFd), OpenError> {
    Ok((name, sys::open_pinned(path).map_err(failed("opening", path))?))
}

/// Pins the map unless a pin exists there.
fn pin(map: &OwnedFd, path: &Path, pins: &Pins) -> Result<(), OpenError> {
    if path.exists() { Ok(()) } else { pins.pin(map.as_fd(), path) }
}
