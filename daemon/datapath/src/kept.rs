//! Programs that the kernel has verified for an earlier start, and that this start takes over instead of loading them.
//!
//! ```text
//! v1/programs/                       only its owner may enter it
//!   packet-HASH/                     what one object was loaded as: everything that the result depends on is in the hash
//!     packet_in-SEAL packet_out-SEAL the programs
//!     packet_settings-ID …           the maps that the object has created
//!   packet-HASH-new/                 while it is being filled; a rename completes it
//! ```
//!
//! The hash alone is no evidence: it says what was to be loaded, not what is pinned. The seal is a hash of the hash and of
//! what the kernel says about the program: its id and the time when it was loaded, which no other program of this boot has,
//! its type, its instructions, its maps. Both names were written by the start that loaded the program, into directories
//! that only nodelb's user and root can change. So what matches is the very program that was loaded under that hash.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapHandle, Object, OpenObject};
use nix::unistd::geteuid;

use crate::crash::CrashPoint;
use crate::error::into_io;
use crate::pins::{self, Pins, UNFINISHED};
use crate::sys;
use crate::sys::program::{self, ProgramInfo};

/// The directory in that of a layout version.
pub(crate) const DIRECTORY: &str = "programs";

/// An object file.
pub(crate) struct Source {
    /// A name without dots.
    pub(crate) name: &'static str,
    pub(crate) bytes: &'static [u8],
    /// The maps that have pins of their own: the next start gives them to the object, even if this one has created them.
    pub(crate) lasting: &'static [&'static str],
}

/// How many programs a start has loaded and taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCount {
    pub loaded: usize,
    /// Instructions that the kernel has verified for them.
    pub verified: u64,
    pub taken_over: usize,
}

impl fmt::Display for ProgramCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loaded, verified, taken_over } = self;
        match (loaded, taken_over) {
            (0, _) => write!(f, "all {taken_over} programs were loaded by an earlier start"),
            (_, 0) => write!(f, "loaded {loaded} programs, {verified} instructions verified"),
            _ => write!(
                f,
                "loaded {loaded} programs, {verified} instructions verified; {taken_over} were loaded by an earlier start"
            ),
        }
    }
}

/// The programs that are pinned in a version's directory.
#[derive(Debug)]
pub(crate) struct KeptPrograms {
    directory: PathBuf,
    crash: CrashPoint,
    /// The names that belong to this start.
    in_use: RefCell<BTreeSet<String>>,
    count: Cell<ProgramCount>,
    faults: RefCell<Vec<String>>,
}

/// The programs and the maps of an object that was loaded, now or by an earlier start. They disappear with their
/// descriptors unless they are pinned or attached.
#[derive(Debug, Default)]
pub(crate) struct LoadedObject {
    programs: BTreeMap<String, OwnedFd>,
    maps: BTreeMap<String, MapHandle>,
    pub(crate) is_taken_over: bool,
}

impl LoadedObject {
    fn of(object: &Object) -> io::Result<Self> {
        let mut loaded = Self::default();
        for program in object.progs().filter(libbpf_rs::Program::autoload) {
            loaded.programs.insert(text(program.name()), program.as_fd().try_clone_to_owned()?);
        }
        for map in object.maps().filter(libbpf_rs::Map::autocreate) {
            loaded.maps.insert(text(map.name()), MapHandle::try_from(&map).map_err(into_io)?);
        }
        Ok(loaded)
    }

    pub(crate) fn program(&self, name: &str) -> io::Result<OwnedFd> {
        self.programs.get(name).ok_or(io::ErrorKind::NotFound)?.try_clone()
    }

    /// The map with this name, or, for one of libbpf, with this end of a name.
    pub(crate) fn map(&self, name: &str) -> io::Result<MapHandle> {
        let mut maps = self.maps.iter();
        let found = maps.find(|(known, _)| *known == name || name.starts_with('.') && known.ends_with(name));
        MapHandle::try_from(found.ok_or(io::ErrorKind::NotFound)?.1).map_err(into_io)
    }

    /// The maps without those of libbpf.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (&str, &MapHandle)> {
        self.maps.iter().map(|(name, map)| (name.as_str(), map)).filter(|(name, _)| !name.contains('.'))
    }
}

/// The maps that an object uses instead of own ones, by their names.
type Given<'a, 'm> = dyn Fn(&str) -> Option<&'m MapHandle> + 'a;

/// What an object that is not loaded will consist of.
struct Plan {
    name: &'static str,
    /// Hash of the object file and of the kernel that it is loaded into.
    source: u64,
    /// The programs with their types and flags.
    programs: BTreeMap<String, (u32, u32)>,
    /// The maps that it creates, with a hash of their sizes and initial values, which the constants are.
    own_maps: BTreeMap<String, u64>,
    /// The maps that it uses instead of own ones, with their ids.
    given_maps: BTreeMap<String, u32>,
}

impl Plan {
    fn of(source: &Source, object: &OpenObject) -> io::Result<Self> {
        let kernel = nix::sys::utsname::uname()?;
        // What the kernel compiles depends on these; only its first network namespace shows them.
        let jit = ["enable", "harden"].map(|name| fs::read(format!("/proc/sys/net/core/bpf_jit_{name}")).ok());
        let release = (kernel.release(), kernel.version(), jit);
        let (mut own_maps, mut given_maps) = (BTreeMap::new(), BTreeMap::new());
        for map in object.maps().filter(libbpf_rs::OpenMap::autocreate) {
            let sizes = (map.key_size(), map.value_size(), map.max_entries(), map.map_flags());
            let kind = (u32::from(map.map_type()), sizes, map.initial_value());
            match program::reused_map(&map) {
                Some(given) => drop(given_maps.insert(text(map.name()), sys::map_id(given)?)),
                None => drop(own_maps.insert(text(map.name()), hash(&kind))),
            }
        }
        let loaded = object.progs().filter(libbpf_rs::OpenProgram::autoload);
        let described = |program: libbpf_rs::OpenProgram<'_>| {
            (text(program.name()), (program.prog_type() as u32, program::flags(&program)))
        };
        Ok(Self {
            name: source.name,
            source: hash(&(env!("CARGO_PKG_VERSION"), release, source.bytes)),
            programs: loaded.map(described).collect(),
            own_maps,
            given_maps,
        })
    }

    /// The same for a start that finds these maps pinned.
    fn with_lasting(mut self, lasting: &[&str], loaded: &LoadedObject) -> io::Result<Self> {
        for name in lasting.iter().filter(|name| self.own_maps.contains_key(**name)).collect::<Vec<_>>() {
            self.own_maps.remove(*name);
            self.given_maps.insert((*name).to_string(), sys::map_id(loaded.map(name)?.as_fd())?);
        }
        Ok(self)
    }

    fn hash(&self) -> u64 {
        hash(&(self.source, &self.programs, &self.own_maps, &self.given_maps))
    }

    /// The name of the directory for the programs.
    fn place(&self) -> String {
        format!("{}-{:016x}", self.name, self.hash())
    }
}

/// Loads an object, or takes over the programs of an earlier start that would become the same. `kept`: where such
/// programs are. `given`: the maps that the object uses, by their names.
pub(crate) fn load<'m, 'o, S: OpenSkel<'o>>(
    kept: Option<&KeptPrograms>,
    source: &Source,
    given: impl Fn(&str) -> Option<&'m MapHandle>,
    skeleton: S,
) -> libbpf_rs::Result<LoadedObject> {
    let Some(kept) = kept else { return Ok(LoadedObject::of(skeleton.load()?.object())?) };
    let plan = Plan::of(source, skeleton.open_object())?;
    if let Some(found) = kept.find(&plan, &given) {
        return Ok(found);
    }
    let loaded = LoadedObject::of(skeleton.load()?.object())?;
    let plan = plan.with_lasting(source.lasting, &loaded)?;
    if let Err(error) = kept.pin(&plan, &loaded) {
        kept.note(format!("{}: {error}", kept.directory.join(plan.place()).display()));
    }
    Ok(loaded)
}

impl KeptPrograms {
    /// Removes what a crash has left unfinished.
    pub(crate) fn open(pins: &Pins) -> Self {
        let directory = pins.root().join(DIRECTORY);
        let (in_use, count, faults) = Default::default();
        let kept = Self { directory, crash: pins.crash().clone(), in_use, count, faults };
        if let Err(error) = kept.prepare() {
            kept.note(format!("{}: {error}", kept.directory.display()));
        }
        kept
    }

    fn prepare(&self) -> io::Result<()> {
        if fs::symlink_metadata(&self.directory).is_ok() && !is_private(&self.directory)? {
            self.note(format!("{}: others can change it; the programs in it are not used", self.directory.display()));
            pins::clear(&self.directory, &self.crash)?;
        }
        pins::make_directory(&self.directory, &self.crash)?;
        let unfinished = |name: &String| name.ends_with(UNFINISHED);
        pins::list(&self.directory)?.iter().filter(|name| unfinished(name)).try_for_each(|name| self.clear(name))
    }

    fn note(&self, fault: String) {
        self.faults.borrow_mut().push(fault);
    }

    /// The programs that were loaded and taken over through this, and why some cannot be taken over: now, or at the next
    /// start.
    pub(crate) fn into_report(self) -> (ProgramCount, Vec<String>) {
        (self.count.get(), self.faults.into_inner())
    }

    /// Removes the programs that do not belong to this start. Those that are attached stay so.
    pub(crate) fn remove_others(&self) {
        if let Err(error) = self.clear_others(|_| true) {
            self.note(format!("removing outdated programs from {}: {error}", self.directory.display()));
        }
    }

    /// Removes the programs with these names that do not belong to this start.
    fn clear_others(&self, is_meant: impl Fn(&str) -> bool) -> io::Result<()> {
        let in_use = self.in_use.borrow();
        let mut names = pins::list(&self.directory)?;
        names.retain(|name| is_meant(name) && !in_use.contains(name));
        names.iter().try_for_each(|name| self.clear(name))
    }

    fn clear(&self, name: &str) -> io::Result<()> {
        clear(&self.directory, name, &self.crash)
    }

    /// The programs of an earlier start that this object would become, if there are any.
    fn find(&self, plan: &Plan, given: &Given<'_, '_>) -> Option<LoadedObject> {
        let (place, hash) = (plan.place(), plan.hash());
        let directory = self.directory.join(&place);
        // Usually there is none because the configuration or nodelb has changed.
        fs::symlink_metadata(&directory).ok()?;
        match open(&directory, (plan, hash), given) {
            Ok(found) => {
                let mut count = self.count.get();
                count.taken_over += found.programs.len();
                self.count.set(count);
                self.in_use.borrow_mut().insert(place);
                Some(found)
            }
            Err(error) => {
                self.note(format!("the programs in {} are not used: {error}", directory.display()));
                None
            }
        }
    }

    /// Pins what was loaded, for the next start, instead of what an earlier start has loaded of the object: a start that
    /// fails after this leaves one set of programs and maps, however often it is tried.
    fn pin(&self, plan: &Plan, loaded: &LoadedObject) -> io::Result<()> {
        let (place, hash) = (plan.place(), plan.hash());
        let mut count = self.count.get();
        let mut pins = Vec::new();
        for (name, fd) in &loaded.programs {
            let info = program::info(fd.as_fd())?;
            count.loaded += 1;
            count.verified += u64::from(info.verified_instructions);
            pins.push((format!("{name}-{:016x}", seal(hash, &info)), fd.as_fd()));
        }
        self.count.set(count);
        self.clear_others(|name| name.rsplit_once('-').is_some_and(|(object, _)| object == plan.name))?;
        for (name, map) in loaded.maps.iter().filter(|(name, _)| plan.own_maps.contains_key(*name)) {
            pins.push((format!("{}-{}", without_dots(name), sys::map_id(map.as_fd())?), map.as_fd()));
        }
        let (complete, unfinished) = (self.directory.join(&place), self.directory.join(format!("{place}{UNFINISHED}")));
        pins::clear(&unfinished, &CrashPoint::default())?;
        pins::make_directory(&unfinished, &self.crash)?;
        pins.iter().try_for_each(|(name, object)| sys::pin(*object, &unfinished.join(name)))?;
        self.crash.pass();
        fs::rename(&unfinished, &complete)?;
        self.crash.pass();
        self.in_use.borrow_mut().insert(place);
        Ok(())
    }
}

/// Removes programs by name. What is left of them after a crash is unfinished. That is never read, so to remove it is one
/// step.
fn clear(directory: &Path, name: &str, crash: &CrashPoint) -> io::Result<()> {
    let mut path = directory.join(name);
    if !name.ends_with(UNFINISHED) {
        let unfinished = directory.join(format!("{name}{UNFINISHED}"));
        pins::clear(&unfinished, &CrashPoint::default())?;
        fs::rename(&path, &unfinished)?;
        crash.pass();
        path = unfinished;
    }
    pins::clear(&path, &CrashPoint::default())?;
    crash.pass();
    Ok(())
}

/// Opens the programs and maps in the directory, if they are exactly those that were loaded by this plan.
fn open(directory: &Path, (plan, hash): (&Plan, u64), given: &Given<'_, '_>) -> io::Result<LoadedObject> {
    let above = directory.parent().ok_or(io::ErrorKind::NotFound)?;
    if !is_private(directory)? || !is_private(above)? {
        return refused("the directory", "others can change it");
    }
    let mut found = LoadedObject { is_taken_over: true, ..LoadedObject::default() };
    let mut pins = Pinned::read(directory)?;
    let mut ids: BTreeSet<u32> = plan.given_maps.values().copied().collect();
    for name in plan.given_maps.keys() {
        let map = given(name).ok_or(io::ErrorKind::NotFound)?;
        found.maps.insert(name.clone(), MapHandle::try_from(map).map_err(into_io)?);
    }
    for name in plan.own_maps.keys() {
        let (map, id) = pins.map(name)?;
        ids.insert(id);
        found.maps.insert(name.clone(), map);
    }
    for (name, (program_type, _)) in &plan.programs {
        let (program, info) = pins.program(name, hash)?;
        if info.program_type != *program_type || !is_own(info.created_by) {
            return refused(name, "another type, or loaded by another user");
        }
        if !info.maps.iter().all(|id| ids.contains(id)) {
            return refused(name, "with other maps");
        }
        found.programs.insert(name.clone(), program);
    }
    match pins.marks.pop_first() {
        Some((name, _)) => refused(&name, "not one of its pins"),
        None => Ok(found),
    }
}

fn refused<T>(name: &str, why: &str) -> io::Result<T> {
    Err(io::Error::other(format!("{name}: {why}")))
}

/// The pins in a directory that have not been opened yet.
struct Pinned<'d> {
    directory: &'d Path,
    /// What follows each name: the seal of a program, or the id of a map.
    marks: BTreeMap<String, String>,
}

impl<'d> Pinned<'d> {
    fn read(directory: &'d Path) -> io::Result<Self> {
        let mut marks = BTreeMap::new();
        for pin in pins::list(directory)? {
            let Some((name, mark)) = pin.rsplit_once('-') else { return refused(&pin, "not one of its pins") };
            if marks.insert(name.to_owned(), mark.to_owned()).is_some() {
                return refused(name, "pinned twice");
            }
        }
        Ok(Self { directory, marks })
    }

    /// The path of the pin with this name, and what follows the name.
    fn take(&mut self, name: &str) -> io::Result<(PathBuf, String)> {
        match self.marks.remove(name) {
            Some(mark) => Ok((self.directory.join(format!("{name}-{mark}")), mark)),
            None => refused(name, "its pin is gone"),
        }
    }

    /// The map and its id.
    fn map(&mut self, name: &str) -> io::Result<(MapHandle, u32)> {
        let (path, mark) = self.take(&without_dots(name))?;
        let Some(map) = sys::open_map(&path)? else { return refused(name, "not a map") };
        let id = sys::map_id(map.as_fd())?;
        if id.to_string() == mark { Ok((map, id)) } else { refused(name, "another map") }
    }

    fn program(&mut self, name: &str, plan: u64) -> io::Result<(OwnedFd, ProgramInfo)> {
        let (path, mark) = self.take(name)?;
        let Some(program) = program::open(&path)? else { return refused(name, "not a program") };
        let info = program::info(program.as_fd())?;
        let is_sealed = format!("{:016x}", seal(plan, &info)) == mark;
        if is_sealed { Ok((program, info)) } else { refused(name, "another program") }
    }
}

/// Removes all programs of a version.
pub(crate) fn remove_all(version: &Path, crash: &CrashPoint) -> io::Result<()> {
    let directory = version.join(DIRECTORY);
    let Ok(found) = fs::symlink_metadata(&directory) else { return Ok(()) };
    let names = if found.is_dir() { pins::list(&directory)? } else { Vec::new() };
    names.iter().try_for_each(|name| clear(&directory, name, crash))?;
    pins::clear(&directory, &CrashPoint::default())?;
    crash.pass();
    Ok(())
}

/// Binds a loaded program to what it was loaded from.
fn seal(plan: u64, info: &ProgramInfo) -> u64 {
    hash(&(plan, info))
}

/// Against accidents: only nodelb's user and root can write the names with the results.
fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn is_own(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Whether only nodelb's user and root can change the directory.
fn is_private(directory: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(directory)?;
    Ok(found.is_dir() && is_own(found.uid()) && found.mode() & 0o022 == 0)
}

/// The name of a pin: bpffs reserves dots.
fn without_dots(name: &str) -> String {
    name.replace('.', "_")
}

fn text(name: &std::ffi::OsStr) -> String {
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "tests/kept.rs"]
mod tests;
