//! The kernel datapath as a whole: what it is told, the handle that its owner works with, what it reports.

use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use libbpf_rs::OpenObject;
use nodelb_core::compare::{Content, EntryKey};
use nodelb_core::datapath::{Datapath, Limits, MapError, Moment};
use nodelb_core::state::{MapOp, Realised};

use crate::attach::{Attachment, LinkFault, LinkState, Links};
use crate::counters::Counters;
use crate::crash::CrashPoint;
use crate::elsewhere;
use crate::error::OpenError;
use crate::features::{Feature, Findings};
use crate::flows::FlowReader;
use crate::load;
use crate::own::{self, OwnSockets};
use crate::pins::Pins;
use crate::probe;
use crate::read::{self, KernelReader};
use crate::start::{Opened, Start};
use crate::versions::{self, Ground, Lock};
use crate::write::Writer;

/// What the kernel side needs to be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where maps and links are pinned; on a bpffs.
    pub pin_directory: PathBuf,
    /// Whose processes' sockets are served: this cgroup's and those below. `None`: the root of cgroup v2.
    pub cgroup: Option<PathBuf>,
    /// Sizes of the maps.
    pub limits: Limits,
    /// Ports that may be NodePorts; an empty range for none.
    pub nodeport_range: RangeInclusive<u16>,
    /// Refuse to bind a NodePort that is served, in the network namespace of this process; where the kernel can
    /// ([`Feature::RefuseBind`]).
    pub protect_nodeports: bool,
    /// Count the connections of each service: 16 bytes a service for each of at most eight CPUs.
    pub count_connections: bool,
    /// Which layout version this one says it has: [`LAYOUT`](crate::LAYOUT), except where a test needs a next one.
    pub layout: u32,
    /// Die by SIGKILL after this many physical operations; see [`CrashPoint`].
    pub crash_after: Option<u64>,
}

/// The default of [`Options::pin_directory`].
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/nodelb";

/// Where the maps' content came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// There were no maps; these are new and empty.
    Created,
    /// The pinned maps are used as they are.
    Reused,
    /// The pinned maps had other sizes, or corrupt entries; these are new, and the content was copied.
    Rebuilt {
        /// The sizes before.
        from: Limits,
    },
    /// The pinned maps were of an older layout; these are new, and the content was copied.
    Upgraded {
        /// The layout before.
        from: u32,
    },
}

/// What start found and did.
#[derive(Clone, Debug)]
pub struct StartReport {
    /// Which generation of the maps is in use.
    pub generation: u32,
    /// Where the content came from.
    pub origin: Origin,
    /// What became of each hook's link.
    pub links: Vec<(&'static str, LinkState)>,
    /// Entries that nodelb cannot have written, and that are not there any more.
    pub corrupt: Vec<String>,
    /// What the kernel has of what start looks for.
    pub findings: Findings,
    /// The cgroup the programs are attached to.
    pub cgroup: PathBuf,
    /// Other pin directories whose programs are attached to it as well.
    pub elsewhere: Vec<PathBuf>,
    /// Why [`KernelDatapath::flows`] has nothing to offer, if so.
    pub flows: Result<(), String>,
}

/// The maps in the kernel, with the programs attached. One owner writes; [`Self::reader`] is for everyone else.
/// Dropping it leaves maps and links in place: traffic goes on.
#[derive(Debug)]
pub struct KernelDatapath {
    writer: Writer,
    attachment: Arc<Attachment>,
    own: OwnSockets,
    flows: Option<FlowReader>,
    pins: Pins,
    _lock: Lock,
}

impl KernelDatapath {
    /// Finds or makes the maps, loads the programs and attaches them. Whatever happens on the way, connections are
    /// translated as before, and the next call continues from there.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing that worked before is undone.
    pub fn open(options: &Options) -> Result<(Self, StartReport), OpenError> {
        let (features, cgroup) = probe::check(&options.pin_directory, options.cgroup.as_deref())?;
        let crash = CrashPoint::new(options.crash_after);
        let Ground { pins, predecessor, lock } = versions::enter(&options.pin_directory, options.layout, &crash)?;
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let prepared = load::prepare(&mut object, options, features)?;
        let opened = Start::new(&pins, predecessor, &prepared, cgroup.clone())?.run(prepared)?;
        versions::remove_others(&options.pin_directory, options.layout, &crash)?;
        let flows = FlowReader::load(&opened.own).map_err(|error| error.to_string());
        let mut findings = features.findings();
        findings.note(Feature::Flows, flows.is_ok());
        let report = StartReport {
            generation: opened.generation,
            origin: opened.origin,
            links: opened.links,
            corrupt: opened.corrupt,
            findings,
            elsewhere: elsewhere::attached(&options.pin_directory, &cgroup, &probe::mountinfo()?),
            cgroup,
            flows: flows.as_ref().map(|_| ()).map_err(Clone::clone),
        };
        let Opened { writer, attachment, own, .. } = opened;
        let attachment = Arc::new(attachment);
        Ok((Self { writer, attachment, own, flows: flows.ok(), pins, _lock: lock }, report))
    }

    /// For reading the maps from other threads.
    pub fn reader(&self) -> KernelReader {
        KernelReader { maps: Arc::clone(&self.writer.maps) }
    }

    /// For registering nodelb's own sockets.
    pub fn own_sockets(&self) -> OwnSockets {
        self.own.clone()
    }

    /// For reading which sockets are connected through a service; `None` where the kernel cannot tell.
    pub fn flows(&self) -> Option<FlowReader> {
        self.flows.clone()
    }

    /// How many connections each service had; `None` where nothing is counted.
    pub fn counters(&self) -> Option<Arc<Counters>> {
        self.writer.counters.clone()
    }

    /// For asking after the hooks from other threads.
    pub fn links(&self) -> Links {
        Links { attachment: Arc::clone(&self.attachment), directory: self.pins.links() }
    }

    /// What is wrong with the links; nothing, usually. Costs a few system calls per hook.
    pub fn verify_links(&self) -> Vec<LinkFault> {
        self.attachment.faults(&self.pins.links())
    }

    /// Attaches what is not attached as it should be, and tells what that was.
    ///
    /// # Errors
    /// When a hook cannot be attached; the others are left as they are.
    pub fn ensure_attached(&mut self) -> Result<Vec<LinkFault>, OpenError> {
        let faults = self.verify_links();
        if !faults.is_empty() {
            self.attachment.attach(&self.pins)?;
        }
        Ok(faults)
    }

    /// Tries each kind of work that comes after start.
    pub(crate) fn try_everything(&self) -> io::Result<()> {
        self.writer.maps.try_system_calls()?;
        own::try_registering(&self.own)?;
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

    fn dump(&self) -> Result<Realised, MapError> {
        self.reader().dump()
    }

    fn read(&self, keys: &[EntryKey]) -> Result<Content, MapError> {
        read::read(&self.writer.maps, keys)
    }
}
