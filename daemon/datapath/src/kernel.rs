//! The kernel datapath as a whole: what it is told, the handle that its owner works with, what it reports.

use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use libbpf_rs::OpenObject;
use nodelb_core::datapath::{Datapath, Limits, MapError};
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{MapOp, Realised};
use nodelb_core::state::kernel_check::{Content, EntryKey};

use crate::attach::{Attachment, Held, LinkFault, LinkState, Links};
use crate::counters::Counters;
use crate::crash::CrashPoint;
use crate::elsewhere;
use crate::error::{OpenError, failed};
use crate::features::{Feature, Findings};
use crate::flows::FlowReader;
use crate::keep::Kept;
use crate::load;
use crate::own::{self, OwnSockets};
use crate::pins::{self, Pins};
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
    /// The pinned maps had other sizes; these are new, and the content was copied.
    Rebuilt {
        /// The sizes before.
        from: Limits,
    },
    /// The pinned maps had the right sizes and corrupt entries; these are new, and the rest of the content was copied.
    Cleaned,
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

/// Something about links or pins that was not as it should be, and is again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// What was wrong, such as `hook connect4: its pin … cannot be opened`.
    pub what: String,
    /// Whether only a pin was missing: no connection was affected.
    pub lasted: bool,
}

/// The maps in the kernel, with the programs attached. One owner writes; [`Self::reader`] is for everyone else.
/// Dropping it leaves maps and links in place: traffic goes on.
#[derive(Debug)]
pub struct KernelDatapath {
    writer: Writer,
    attachment: Arc<Attachment>,
    /// The links, so that they are there whatever happens to their pins.
    held: Held,
    /// The maps, for the same reason.
    kept: Kept,
    own: OwnSockets,
    flows: Option<FlowReader>,
    pins: Pins,
    lock: Lock,
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
        let kept = Kept::open(&pins, opened.generation)?;
        let Opened { writer, attachment, held, own, .. } = opened;
        let attachment = Arc::new(attachment);
        Ok((Self { writer, attachment, held, kept, own, flows: flows.ok(), pins, lock }, report))
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

    /// Attaches and pins what is not attached or pinned as it should be, and says what that was.
    ///
    /// # Errors
    /// When a hook cannot be attached, or something cannot be pinned; the rest is left as it is.
    pub fn ensure_attached(&mut self) -> Result<Vec<Repair>, OpenError> {
        let (faults, maps) = (self.verify_links(), self.kept.missing(&self.pins));
        if faults.is_empty() && maps.is_empty() {
            return Ok(Vec::new());
        }
        let restored = self.restore_pins();
        // Another process works there; the links of this one stay attached, for they are held.
        if let Err(busy @ OpenError::Busy { .. }) = restored {
            return Err(busy);
        }
        // Also where nothing can be pinned: links are made and held.
        let links = self.attachment.attach(&self.pins, &mut self.held);
        restored?;
        let links = links?;
        let lasted = |hook| links.iter().any(|(name, state)| *name == hook && *state == LinkState::Pinned);
        let of_link = |fault: LinkFault| Repair { lasted: lasted(fault.hook), what: fault.to_string() };
        let of_map = |name| Repair { lasted: true, what: format!("map {name}: its pin is gone") };
        Ok(faults.into_iter().map(of_link).chain(maps.into_iter().map(of_map)).collect())
    }

    /// Makes the directories and the pins of maps that are missing.
    fn restore_pins(&mut self) -> Result<(), OpenError> {
        let pin_directory = self.pins.root().parent().unwrap_or(self.pins.root()).to_path_buf();
        pins::make_directory(&pin_directory, self.pins.crash()).map_err(failed("making", &pin_directory))?;
        // Before anything is written: a second daemon may have what lies there now.
        self.lock.extend(&pin_directory)?;
        self.kept.restore(&self.pins)?;
        self.lock.extend(&pin_directory)
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
