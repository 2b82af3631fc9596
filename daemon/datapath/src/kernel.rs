//! The kernel datapath as a whole: start, which makes or finds the maps and attaches the programs, and the handle that
//! the owner works with afterwards.

use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use libbpf_rs::{MapHandle, OpenObject};
use nodelb_core::datapath::{Datapath, Limits, MapError, Moment};
use nodelb_core::state::{MapOp, Realised};

use crate::attach::{Attachment, LinkFault, LinkState};
use crate::crash::CrashPoint;
use crate::error::{OpenError, failed};
use crate::load::{self, Loaded, Prepared, SOCKET_MAPS};
use crate::maps::{Handles, Maps, Spec};
use crate::own::{self, OwnSockets};
use crate::pins::Pins;
use crate::probe::{self, Features};
use crate::read::{self, Content, KernelReader};
use crate::sys;
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
    /// What the kernel has.
    pub features: Features,
    /// The cgroup the programs are attached to.
    pub cgroup: PathBuf,
}

/// The maps in the kernel, with the programs attached. One owner writes; [`Self::reader`] is for everyone else.
/// Dropping it leaves maps and links in place: traffic goes on.
#[derive(Debug)]
pub struct KernelDatapath {
    writer: Writer,
    attachment: Attachment,
    own: OwnSockets,
    pins: Pins,
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
        let pins = Pins::create(&options.pin_directory, &crash)?;
        let current = pins.current_generation()?;
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let prepared = load::prepare(&mut object, options, features)?;

        let socket_maps = pinned_socket_maps(&pins, &prepared)?;
        let old = current.map(|number| Old::open(&pins, number, &prepared.specs)).transpose()?;
        let start = Start { pins: &pins, socket_maps, cgroup: cgroup.clone() };
        let opened = match &old {
            Some(old) if old.fits => start.reuse(prepared, old)?,
            old => start.rebuild(prepared, old.as_ref())?,
        };
        let report = StartReport {
            generation: opened.generation,
            origin: opened.origin,
            links: opened.links,
            corrupt: opened.corrupt,
            features,
            cgroup,
        };
        let Opened { writer, attachment, own, .. } = opened;
        Ok((Self { writer, attachment, own, pins }, report))
    }

    /// For reading the maps from other threads.
    pub fn reader(&self) -> KernelReader {
        KernelReader { maps: Arc::clone(&self.writer.maps) }
    }

    /// For registering nodelb's own sockets.
    pub fn own_sockets(&self) -> OwnSockets {
        self.own.clone()
    }

    /// What is wrong with the links; nothing, usually. Costs a few system calls per hook.
    pub fn verify_links(&self) -> Vec<LinkFault> {
        self.attachment.faults(&self.pins)
    }

    /// Attaches what is not attached as it should be, and tells what that was.
    ///
    /// # Errors
    /// When a hook cannot be attached; the others are left as they are.
    pub fn ensure_attached(&mut self) -> Result<Vec<LinkFault>, OpenError> {
        let faults = self.attachment.faults(&self.pins);
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
}

/// The generation that is the truth when nodelb starts.
struct Old {
    number: u32,
    handles: Handles,
    /// Whether its maps can be used as they are, content aside.
    fits: bool,
}

impl Old {
    fn open(pins: &Pins, number: u32, wanted: &[Spec; 5]) -> Result<Self, OpenError> {
        let directory = pins.generation(number);
        let handles = Handles::open(&directory)
            .map_err(|(name, error)| failed("opening (nodelb cleanup starts afresh)", &directory.join(name))(error))?;
        let mut fits = true;
        for (map, wanted) in handles.0.iter().zip(wanted) {
            let found = Spec::of(map).map_err(failed("reading", &directory))?;
            if !found.same_kind(*wanted) {
                let reason =
                    "a map there is of another kind: it was made by something else; nodelb cleanup starts afresh";
                return Err(failed("using", &directory)(reason));
            }
            fits &= found == *wanted;
        }
        Ok(Self { number, handles, fits })
    }
}

fn pinned_socket_maps(pins: &Pins, prepared: &Prepared<'_>) -> Result<[Option<MapHandle>; 2], OpenError> {
    let [tcp, udp] = [0, 1].map(|i| {
        let path = pins.socket_map(SOCKET_MAPS[i]);
        if !path.exists() {
            return Ok(None);
        }
        let map = MapHandle::from_pinned_path(&path).map_err(failed("opening", &path))?;
        let found = Spec::of(&map).map_err(failed("reading", &path))?;
        if !found.same_kind(prepared.socket_specs[i]) {
            return Err(failed("using", &path)("it is a map of another kind; nodelb cleanup starts afresh"));
        }
        Ok(Some(map))
    });
    Ok([tcp?, udp?])
}

struct Start<'p> {
    pins: &'p Pins,
    socket_maps: [Option<MapHandle>; 2],
    cgroup: PathBuf,
}

struct Opened {
    writer: Writer,
    attachment: Attachment,
    own: OwnSockets,
    generation: u32,
    origin: Origin,
    links: Vec<(&'static str, LinkState)>,
    corrupt: Vec<String>,
}

impl Start<'_> {
    /// With the pinned maps as they are, unless their content turns out to be corrupt.
    fn reuse(self, prepared: Prepared<'_>, old: &Old) -> Result<Opened, OpenError> {
        let directory = self.pins.generation(old.number);
        let maps = Maps::new(reopened(&old.handles, &directory)?).map_err(failed("mapping", &directory))?;
        let mut content = read::content(&maps).map_err(failed("reading", &directory))?;
        let runs = read::runs(&maps, &mut content);
        if !content.corrupt.is_empty() {
            return self.rebuild(prepared, Some(old));
        }
        let loaded = prepared.load(Some(&old.handles), &self.socket_maps)?;
        self.pin_socket_maps(&loaded)?;
        let Loaded { programs, socket_maps, .. } = loaded;
        let attachment = Attachment::new(programs, self.cgroup);
        let links = attachment.attach(self.pins)?;
        Ok(Opened {
            writer: Writer { maps: Arc::new(maps), runs, crash: self.pins.crash().clone() },
            attachment,
            own: OwnSockets::new(socket_maps),
            generation: old.number,
            origin: Origin::Reused,
            links,
            corrupt: Vec::new(),
        })
    }

    /// With new maps that get the content of the old ones before any program uses them.
    fn rebuild(self, prepared: Prepared<'_>, old: Option<&Old>) -> Result<Opened, OpenError> {
        let generation = old.map_or(1, |old| old.number + 1);
        let loaded = prepared.load(None, &self.socket_maps)?;
        self.pin_socket_maps(&loaded)?;
        let directory = self.pins.begin(generation)?;
        loaded.handles.pin(&directory, self.pins.crash()).map_err(failed("pinning maps in", &directory))?;
        let Loaded { handles, programs, socket_maps } = loaded;
        let maps = Arc::new(Maps::new(handles).map_err(failed("mapping", &directory))?);
        let runs = nodelb_core::runs::Runs::new(maps.limits.slots);
        let mut writer = Writer { maps, runs, crash: self.pins.crash().clone() };
        let (origin, corrupt) = match old {
            None => (Origin::Created, Vec::new()),
            Some(old) => {
                let copied = self.copy(old, &mut writer);
                if copied.is_err() {
                    self.pins.abandon(generation)?;
                }
                (Origin::Rebuilt { from: old.handles.limits() }, copied?)
            }
        };
        let attachment = Attachment::new(programs, self.cgroup);
        let links = attachment.attach(self.pins)?;
        self.pins.commit(generation)?;
        self.pins.current_generation()?;
        Ok(Opened { writer, attachment, own: OwnSockets::new(socket_maps), generation, origin, links, corrupt })
    }

    /// Fills the new maps, which nobody reads yet; returns what was corrupt and left out.
    fn copy(&self, old: &Old, to: &mut Writer) -> Result<Vec<String>, OpenError> {
        let directory = self.pins.generation(old.number);
        let maps = Maps::new(reopened(&old.handles, &directory)?).map_err(failed("mapping", &directory))?;
        let mut content = read::content(&maps).map_err(failed("reading", &directory))?;
        read::runs(&maps, &mut content);
        let Content { state, mut corrupt } = content;

        let mut ops: Vec<MapOp> = Vec::new();
        ops.extend(state.services.iter().map(|(id, entry)| MapOp::PutService(*id, Arc::clone(entry))));
        ops.extend(state.node_addrs.iter().map(|addr| MapOp::PutNodeAddr(*addr)));
        for (addr, entry) in &state.frontends {
            if state.services.contains_key(&entry.service) {
                ops.push(MapOp::PutFrontend(*addr, *entry));
            } else {
                corrupt.push(format!("frontend {addr}: there is no service {}", entry.service));
            }
        }
        for result in to.apply(&ops, Moment(0)) {
            result.map_err(|error| match error {
                MapError::Full { map, limit } => OpenError::TooSmall { map, limit },
                other => failed("copying", &directory)(other),
            })?;
        }
        to.copy_affinity(&maps).map_err(failed("copying affinity from", &directory))?;
        Ok(corrupt)
    }

    fn pin_socket_maps(&self, loaded: &Loaded) -> Result<(), OpenError> {
        for ((name, was), map) in SOCKET_MAPS.iter().zip(&self.socket_maps).zip(&loaded.socket_maps) {
            if was.is_none() {
                let path = self.pins.socket_map(name);
                sys::pin(map.as_fd(), &path).map_err(failed("pinning", &path))?;
                self.pins.crash().pass();
            }
        }
        Ok(())
    }
}

fn reopened(handles: &Handles, directory: &std::path::Path) -> Result<Handles, OpenError> {
    let clone = |map| MapHandle::try_from(map).map_err(failed("duplicating the maps of", directory));
    let [a, b, c, d, e] = handles.0.each_ref().map(clone);
    Ok(Handles([a?, b?, c?, d?, e?]))
}
