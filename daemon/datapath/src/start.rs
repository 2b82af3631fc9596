//! Start: finds or creates the maps, and makes every hook run the new programs on them. After each step the pinned maps
//! and attached programs translate completely and correctly, so the start may stop after any step.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libbpf_rs::MapHandle;
use nodelb_core::datapath::{Limits, MapError};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{MapOp, MapState, OutsideEntry};
use nodelb_core::state::kernel_check::Content;
use nodelb_core::state::runs::Runs;

use crate::attach::{Attachment, HOOKS, LinkState, OpenLinks, remove_link};
use crate::counters::Counters;
use crate::device_hooks::{self, HookMethod};
use crate::error::{OpenError, failed};
use crate::kept::KeptPrograms;
use crate::layout::Client;
use crate::load::{Loaded, PERSISTENT, Prepared};
use crate::maps::{Epoch, Handles, Maps, NAMES};
use crate::outside::OutsideMaps;
use crate::packet_path::{self, OpenedPackets, PacketFailure};
use crate::packets::{self, PacketOptions};
use crate::pins::{Pins, UNFINISHED, WITHOUT_DIRECT_RETURN};
use crate::read;
use crate::spec::Spec;
use crate::sys;
use crate::versions::{self, PinnedContent, Predecessor};
use crate::write::{Placements, Writer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// There were no maps. These are new and empty.
    Created,
    /// The pinned maps are used without changes.
    Reused,
    /// The pinned maps had other sizes. These are new, and the content was copied.
    Rebuilt { from: Limits },
    /// The pinned maps had the right sizes but corrupt entries. These are new, and the other entries were copied.
    Cleaned,
    /// The pinned maps had an older layout. These are new, and the content was copied.
    Upgraded { from: u32 },
}

/// The current generation when nodelb starts.
struct CurrentGeneration {
    number: u32,
    handles: Handles,
    /// Whether its maps can be used without changes, apart from their content.
    fits: bool,
}

impl CurrentGeneration {
    fn open(pins: &Pins, number: u32, prepared: &Prepared<'_>) -> Result<Self, OpenError> {
        let directory = pins.generation(number);
        let handles = Handles::open(&directory)?;
        let fits = handles.1.fit(prepared.limits).map_err(failed("reading", &directory))?;
        let mut fits = fits.ok_or_else(|| failed("using", &directory)(versions::FOREIGN))?;
        for (map, wanted) in handles.0.iter().zip(&prepared.specs) {
            let found = Spec::read(map).map_err(failed("reading", &directory))?;
            if !found.same_kind(*wanted) {
                return Err(failed("using", &directory)(versions::FOREIGN));
            }
            fits &= found == *wanted;
        }
        Ok(Self { number, handles, fits })
    }

    /// The map of clients, unless another one is wanted.
    fn fitting_affinity(&self, prepared: &Prepared<'_>) -> Option<&MapHandle> {
        let ([.., map], [.., wanted]) = (&self.handles.0, prepared.specs);
        Spec::read(map).is_ok_and(|found| found == wanted).then_some(map)
    }
}

/// The pinned persistent maps. For missing ones, the maps of the predecessor are used if possible.
fn pinned_lasting(
    pins: &Pins,
    predecessor: Option<&Predecessor>,
    prepared: &Prepared<'_>,
) -> Result<[Option<MapHandle>; PERSISTENT.len()], OpenError> {
    let theirs = predecessor.filter(|predecessor| predecessor.reader.has_todays_sockets);
    let open = |i: usize| {
        let (ours, wanted) = (pins.persistent(PERSISTENT[i]), prepared.lasting_specs[i]);
        if let Some((map, found)) = Spec::open(&ours)? {
            let kind = failed("using", &ours)("it is a map of a different type; nodelb cleanup removes it");
            return if found.same_kind(wanted) { Ok(Some(map)) } else { Err(kind) };
        }
        let Some(theirs) = theirs else { return Ok(None) };
        let found = Spec::open(&theirs.pins.persistent(PERSISTENT[i]))?;
        Ok(found.and_then(|(map, found)| found.same_kind(wanted).then_some(map)))
    };
    Ok([open(0)?, open(1)?, open(2)?, open(3)?, open(4)?, open(5)?])
}

const AFFINITY: &str = NAMES[NAMES.len() - 1];

const EPOCH: &str = PERSISTENT[PERSISTENT.len() - 1];

const fn epoch_of([.., epoch]: &[MapHandle; PERSISTENT.len()]) -> &MapHandle {
    epoch
}

/// Adds a second pin for each link of the predecessor: the links stay attached, and only their programs change.
fn share_links(predecessor: &Predecessor, pins: &Pins) -> Result<(), OpenError> {
    let at_devices = device_hooks::pin_names(&predecessor.pins);
    for name in HOOKS.iter().map(|hook| hook.name).chain(at_devices.iter().map(String::as_str)) {
        let (theirs, ours) = (predecessor.pins.link(name), pins.link(name));
        if ours.exists() || !theirs.exists() {
            continue;
        }
        // What is not a link is replaced when the hook is attached.
        let Some(link) = sys::open_link(&theirs).map_err(failed("opening", &theirs))? else { continue };
        pins.pin(link.as_fd(), &ours)?;
    }
    Ok(())
}

pub(crate) struct Start<'p> {
    pins: &'p Pins,
    kept: &'p KeptPrograms,
    persistent: [Option<MapHandle>; PERSISTENT.len()],
    old: Option<CurrentGeneration>,
    predecessor: Option<Predecessor>,
    cgroup: PathBuf,
    /// The options of the packet path, and how its programs are attached.
    packets: Option<(&'p PacketOptions, Option<HookMethod>)>,
}

struct NewGeneration {
    generation: u32,
    origin: Origin,
    /// The content to copy into them.
    carried: Option<PinnedContent>,
    /// The map of clients that stays in use.
    affinity: Option<MapHandle>,
    /// Where the rest comes from.
    previous: Option<Previous>,
}

/// The maps that others replace, and what reads them.
struct Previous {
    directory: PathBuf,
    clients: fn(&Path) -> Result<Vec<Client>, OpenError>,
}

pub(crate) struct Opened {
    pub(crate) writer: Writer,
    pub(crate) attachment: Attachment,
    pub(crate) open_links: OpenLinks,
    pub(crate) persistent: [MapHandle; PERSISTENT.len()],
    pub(crate) generation: u32,
    pub(crate) origin: Origin,
    pub(crate) links: Vec<(&'static str, LinkState)>,
    pub(crate) corrupt: Vec<String>,
    pub(crate) packets: Result<Option<OpenedPackets>, PacketFailure>,
}

impl<'p> Start<'p> {
    /// Reads the pins and removes those that a crash has left.
    pub(crate) fn new(
        (pins, kept): (&'p Pins, &'p KeptPrograms),
        predecessor: Option<Predecessor>,
        prepared: &Prepared<'_>,
        (cgroup, packets): (PathBuf, Option<(&'p PacketOptions, Option<HookMethod>)>),
    ) -> Result<Self, OpenError> {
        let current = pins.current_generation()?;
        let persistent = pinned_lasting(pins, predecessor.as_ref(), prepared)?;
        let old = current.map(|number| CurrentGeneration::open(pins, number, prepared)).transpose()?;
        Ok(Self { pins, kept, persistent, old, predecessor, cgroup, packets })
    }

    /// Makes every hook run the new programs on the current maps.
    pub(crate) fn run(mut self, prepared: Prepared<'_>) -> Result<Opened, OpenError> {
        let opened = match self.old.take() {
            Some(old) if old.fits => self.reuse(prepared, &old)?,
            Some(old) => self.resize(prepared, &old)?,
            None => {
                let next = self.first()?;
                self.rebuild(prepared, next)?
            }
        };
        // Sockets may remember frontends from before a crash or for another NodePort range.
        opened.writer.epoch.change(|| ());
        Ok(opened)
    }

    /// Uses the pinned maps, unless their content turns out to be corrupt.
    fn reuse(self, prepared: Prepared<'_>, old: &CurrentGeneration) -> Result<Opened, OpenError> {
        let directory = self.pins.generation(old.number);
        let maps = Maps::new(reopened(&old.handles, &directory)?).map_err(failed("mapping", &directory))?;
        let mut content = read::content(&maps).map_err(failed("reading", &directory))?;
        let mut runs = read::runs(&maps, &mut content);
        if !content.broken.is_empty() {
            return self.resize(prepared, old);
        }
        let used = NAMES.into_iter().zip(&old.handles.0);
        let loaded = prepared.load(used, &old.handles.1, &self.persistent, self.kept)?;
        self.pin_lasting(&loaded)?;
        let Loaded { programs, persistent, counters, are_taken_over, .. } = loaded;
        if let Some(counters) = counters.as_ref().filter(|_| are_taken_over) {
            Counters::clear(counters).map_err(failed("clearing the counters of", self.pins.root()))?;
        }
        let placed = Placements::read(&maps, &content.state, &mut runs);
        let mut writer = self.writer(Arc::new(maps), (runs, placed), (&persistent, counters))?;
        let packets = self.start_packets(&old.handles, &directory, epoch_of(&persistent));
        let packets = packets.map_err(|error| packet_path::keep_earlier(self.pins, &error));
        writer.serve_packets(packets.as_ref().ok().and_then(Option::as_ref));
        let attachment = Attachment::new(programs, self.cgroup);
        let mut open_links = OpenLinks::default();
        let links = attach_all(&attachment, self.pins, &mut open_links)?;
        Ok(Opened {
            writer,
            attachment,
            open_links,
            persistent,
            generation: old.number,
            origin: Origin::Reused,
            links,
            corrupt: Vec::new(),
            packets,
        })
    }

    /// Creates maps of the configured sizes and copies the content of the old maps into them, except corrupt entries.
    fn resize(self, prepared: Prepared<'_>, old: &CurrentGeneration) -> Result<Opened, OpenError> {
        let directory = self.pins.generation(old.number);
        let mut carried = versions::read_maps(&directory, prepared.service_words)?;
        // Maps with the right size are replaced only because of their content.
        let origin = if old.fits { Origin::Cleaned } else { Origin::Rebuilt { from: carried.limits } };
        // What the programs store in it until the switch, and after a start that a crash ends, is not lost.
        let affinity = old.fitting_affinity(&prepared).map(MapHandle::try_from).transpose();
        let affinity = affinity.map_err(failed("duplicating the maps of", &directory))?;
        if affinity.is_some() {
            carried.clients.clear();
        }
        // The current generation never has the highest number.
        let generation = old.number + 1;
        let previous = Some(Previous { directory, clients: versions::read_clients });
        self.rebuild(prepared, NewGeneration { generation, origin, carried: Some(carried), affinity, previous })
    }

    /// The first maps of this layout version.
    fn first(&self) -> Result<NewGeneration, OpenError> {
        let Some(predecessor) = &self.predecessor else {
            return Ok(NewGeneration {
                generation: 1,
                origin: Origin::Created,
                carried: None,
                affinity: None,
                previous: None,
            });
        };
        let reader = predecessor.reader;
        let carried = (reader.read)(&predecessor.generation)?;
        share_links(predecessor, self.pins)?;
        Ok(NewGeneration {
            generation: 1,
            origin: Origin::Upgraded { from: reader.layout },
            carried: Some(carried),
            affinity: None,
            previous: Some(Previous { directory: predecessor.generation.clone(), clients: reader.clients }),
        })
    }

    /// Creates new maps and fills them before any program uses them.
    fn rebuild(self, prepared: Prepared<'_>, next: NewGeneration) -> Result<Opened, OpenError> {
        let NewGeneration { generation, origin, carried, affinity, previous } = next;
        let limits = prepared.limits;
        let (outside, no_maps) = match OutsideMaps::create(limits) {
            Ok(outside) => (outside, Ok(())),
            Err(error) => (OutsideMaps::default(), Err(error)),
        };
        let used = affinity.iter().map(|map| (AFFINITY, map));
        let mut loaded = prepared.load(used, &outside, &self.persistent, self.kept)?;
        self.pin_lasting(&loaded)?;
        loaded.handles.1 = outside;
        let directory = self.pins.begin(generation)?;
        loaded.handles.pin(&directory, self.pins.crash()).map_err(failed("pinning maps in", &directory))?;
        let Loaded { handles, programs, persistent, counters, .. } = loaded;
        let duplicates = reopened(&handles, &directory)?;
        let maps = Arc::new(Maps::new(handles).map_err(failed("mapping", &directory))?);
        let runs = Runs::new(maps.limits.slots);
        let mut writer = self.writer(maps, (runs, Placements::default()), (&persistent, counters))?;
        let filled = carried.map(|carried| fill(carried, &mut writer)).transpose();
        if filled.is_err() {
            self.pins.abandon(generation)?;
        }
        let corrupt = filled?.unwrap_or_default();
        let packets = no_maps.and_then(|()| self.start_packets(&duplicates, &directory, epoch_of(&persistent)));
        let packets = packets.map_err(|error| {
            packet_path::end_earlier(self.pins, previous.as_ref().map(|from| &*from.directory), &error)
        });
        writer.serve_packets(packets.as_ref().ok().and_then(Option::as_ref));
        let attachment = Attachment::new(programs, self.cgroup);
        let mut open_links = OpenLinks::default();
        let links = attach_all(&attachment, self.pins, &mut open_links)?;
        if let Some(Previous { directory, clients }) = previous.filter(|_| affinity.is_none()) {
            // What the programs have stored meanwhile.
            writer.copy_affinity(clients(&directory)?).map_err(failed("copying affinity from", &directory))?;
        }
        self.pins.commit(generation)?;
        self.pins.current_generation()?;
        Ok(Opened { writer, attachment, open_links, persistent, generation, origin, links, corrupt, packets })
    }

    /// Makes the programs at devices use these maps, or removes them.
    fn start_packets(
        &self,
        handles: &Handles,
        directory: &Path,
        epoch: &MapHandle,
    ) -> Result<Option<OpenedPackets>, OpenError> {
        if let Some(predecessor) = &self.predecessor {
            let is_without = predecessor.pins.is_marked(WITHOUT_DIRECT_RETURN);
            self.pins.mark(WITHOUT_DIRECT_RETURN, is_without).map_err(failed("marking", self.pins.root()))?;
            packets::maps::share(&predecessor.pins, self.pins)?;
        }
        let Some(options) = self.packets else {
            packet_path::remove(self.pins)?;
            return Ok(None);
        };
        let Handles(handles, outside) = reopened(handles, directory)?;
        let epoch = MapHandle::try_from(epoch).map_err(failed("duplicating the epoch of", self.pins.root()))?;
        let maps = NAMES.into_iter().zip(handles).chain(outside.into_named()).chain([(EPOCH, epoch)]);
        packet_path::start(options, (self.pins, self.kept), maps).map(Some)
    }

    fn writer(
        &self,
        maps: Arc<Maps>,
        (runs, placed): (Runs, Placements),
        (persistent, counters): (&[MapHandle; PERSISTENT.len()], Option<MapHandle>),
    ) -> Result<Writer, OpenError> {
        let counters = counters.map(|map| Counters::new(&map, maps.limits.services).map(Arc::new)).transpose();
        let counters = counters.map_err(failed("mapping the counters of", self.pins.root()))?;
        let epoch = Epoch::new(epoch_of(persistent)).map_err(failed("mapping", self.pins.root()))?;
        maps.slot_usage.set(&runs, Moment(0));
        Ok(Writer {
            maps,
            runs,
            placed,
            grace: None,
            counters,
            packet_counter: None,
            bloom: None,
            outside_addrs: None,
            epoch,
            crash: self.pins.crash().clone(),
        })
    }

    fn pin_lasting(&self, loaded: &Loaded) -> Result<(), OpenError> {
        for (name, map) in PERSISTENT.iter().zip(&loaded.persistent) {
            let path = self.pins.persistent(name);
            if !path.exists() {
                self.pins.pin(map.as_fd(), &path)?;
            }
        }
        Ok(())
    }
}

/// Makes every hook run the programs of this start. If one cannot, the hooks that had no program of nodelb have none
/// afterwards; the others run the program of this start or of the previous one.
fn attach_all(
    attachment: &Attachment,
    pins: &Pins,
    open_links: &mut OpenLinks,
) -> Result<Vec<(&'static str, LinkState)>, OpenError> {
    let names = HOOKS.map(|hook| [hook.name.to_owned(), format!("{}{UNFINISHED}", hook.name)]);
    let paths = names.map(|names| names.map(|name| pins.link(&name)));
    let is_link = |path: &&PathBuf| sys::open_link(path).is_ok_and(|link| link.is_some());
    let absent: Vec<_> = paths.iter().filter(|paths| !paths.iter().any(|path| is_link(&path))).flatten().collect();
    let attached = attachment.attach(pins, open_links);
    if attached.is_err() {
        // The error of the start says more than one about this, and `nodelb cleanup` can repeat it.
        let added = absent.into_iter().rev().filter(is_link);
        added.for_each(|path| drop(remove_link(path, pins.crash())));
    }
    attached
}

/// Fills new maps, which have no reader yet. Returns the corrupt entries that were left out.
fn fill(carried: PinnedContent, to: &mut Writer) -> Result<Vec<String>, OpenError> {
    let PinnedContent { content: Content { state, broken }, clients, .. } = carried;
    let mut corrupt: Vec<String> = broken.into_texts().collect();
    let mut ops: Vec<MapOp> = Vec::new();
    ops.extend(state.services.iter().map(|(id, entry)| MapOp::PutService(*id, Arc::clone(entry))));
    ops.extend(state.node_addrs.iter().map(|addr| MapOp::PutNodeAddr(*addr)));
    ops.extend(outside_of(&state, to.maps.limits));
    for (addr, entry) in &state.frontends {
        if state.services.contains_key(&entry.service) {
            ops.push(MapOp::PutFrontend(*addr, *entry));
        } else {
            corrupt.push(format!("frontend {addr}: service {} does not exist", entry.service));
        }
    }
    let new = Path::new("the new maps");
    for (op, result) in ops.iter().zip(to.apply(&ops, Moment(0))) {
        match result {
            // The engine tries these again, and reports them.
            Err(_) if matches!(op, MapOp::PutOutside(..) | MapOp::PutSourceRange(..) | MapOp::PutUplink(..)) => {}
            Err(MapError::Full { map, limit }) => return Err(OpenError::TooSmall { map, limit }),
            result => result.map_err(failed("filling", new))?,
        }
    }
    to.copy_affinity(clients).map_err(failed("copying affinity to", new))?;
    Ok(corrupt)
}

/// The operations that create the entries for clients outside the node, if the maps for them exist.
fn outside_of(state: &MapState, limits: Limits) -> impl Iterator<Item = MapOp> {
    let uplinks = state.uplinks.iter().map(|(index, entry)| MapOp::PutUplink(*index, *entry));
    let ranges = state.source_ranges.iter().map(|(id, range)| MapOp::PutSourceRange(*id, *range));
    let has_service = |(_, entry): &(&L4Addr, &OutsideEntry)| state.services.contains_key(&entry.service);
    let outside = state.outside.iter().filter(has_service);
    let ranges = ranges.filter(move |_| limits.source_ranges > 0);
    let all = uplinks.chain(ranges).chain(outside.map(|(addr, entry)| MapOp::PutOutside(*addr, *entry)));
    all.filter(move |_| limits.outside > 0)
}

fn reopened(handles: &Handles, directory: &Path) -> Result<Handles, OpenError> {
    let clone = |map| MapHandle::try_from(map).map_err(failed("duplicating the maps of", directory));
    let [a, b, c, d, e] = handles.0.each_ref().map(clone);
    let outside = handles.1.duplicate().map_err(failed("duplicating the maps of", directory))?;
    Ok(Handles([a?, b?, c?, d?, e?], outside))
}
