//! A world in which programs change a services directory while it is scanned: a file system with a clock, and the steps of
//! programs. Each step of a scan may be preceded by steps of the programs, as the random numbers decide. Knows nothing of
//! the daemon but the trait that it implements.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FileType;

use super::looks::Notes;
use super::system::{FileSystem, Stat};

const MS: Duration = Duration::from_millis(1);

/// The kernel's time stamps of files are as old as this (CONFIG_HZ=250).
const TICK: u64 = 4_000_000;

/// Numbers that a seed decides (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Opens a file for writing, and empties or creates it.
    Open(String),
    Write(String),
    Close,
    Unlink(String),
    Rename(String, String),
    /// The path leads to another directory.
    Exchange(u64),
    /// The queue of events overflows.
    Overflow,
    /// Nothing for so many milliseconds.
    Wait(u64),
    /// Files that are expected no longer from now on.
    GiveUp(String),
}

#[derive(Default)]
struct Program {
    steps: VecDeque<Step>,
    open: Option<u64>,
    /// When the next step is possible, and when it is done at the latest.
    not_before: Duration,
    by: Option<Duration>,
}

#[derive(Default)]
struct Inode {
    text: String,
    stamp: u64,
    writers: usize,
}

#[derive(Default)]
pub(super) struct Directory {
    /// By their place in the order of readdir(3): a renamed file has another one.
    names: BTreeMap<u64, (String, u64)>,
    stamp: u64,
}

pub(super) struct State {
    pub(super) random: Random,
    programs: Vec<Program>,
    start: Instant,
    now: Duration,
    inodes: BTreeMap<u64, Inode>,
    directories: BTreeMap<u64, Directory>,
    pub(super) current: u64,
    pub(super) notes: Notes,
    /// The files that are links to others elsewhere, about which there is no event.
    pub(super) links: Vec<String>,
    /// Whether the kernel tells who writes.
    pub(super) has_leases: bool,
    pub(super) has_events: bool,
    /// Whether some events are missing.
    pub(super) loses_events: bool,
    pub(super) given_up: Vec<String>,
}

pub(super) struct World {
    pub(super) state: RefCell<State>,
}

impl State {
    fn stamp(&self) -> u64 {
        let nanoseconds = u64::try_from(self.now.as_nanos()).unwrap();
        nanoseconds - nanoseconds % TICK
    }

    fn event(&mut self, name: &str, directory: u64) {
        let is_lost = self.loses_events && self.random.one_in(4);
        if self.has_events && directory == self.current && !is_lost {
            self.notes.take(Some(name.into()), self.instant());
        }
    }

    pub(super) fn instant(&self) -> Instant {
        self.start + self.now
    }

    fn find(&self, directory: u64, name: &str) -> Option<(u64, u64)> {
        let names = &self.directories[&directory].names;
        names.iter().find(|(_, (it, _))| it == name).map(|(place, (_, inode))| (*place, *inode))
    }

    fn insert(&mut self, directory: u64, name: &str, inode: u64) {
        let (place, stamp) = (self.random.below(u64::MAX), self.stamp());
        let found = self.directories.get_mut(&directory).unwrap();
        found.names.insert(place, (name.to_owned(), inode));
        found.stamp = stamp;
    }

    fn remove(&mut self, directory: u64, name: &str) -> Option<u64> {
        let (place, inode) = self.find(directory, name)?;
        let stamp = self.stamp();
        let found = self.directories.get_mut(&directory).unwrap();
        found.names.remove(&place);
        found.stamp = stamp;
        Some(inode)
    }

    /// Adds a file that no program writes.
    pub(super) fn add(&mut self, directory: u64, name: &str, text: &str) {
        self.directories.entry(directory).or_default();
        let inode = 1000 + self.inodes.len() as u64;
        self.inodes.insert(inode, Inode { text: text.into(), ..Inode::default() });
        self.insert(directory, name, inode);
    }

    pub(super) fn run(&mut self, steps: &[Step]) {
        self.programs.push(Program {
            steps: steps.iter().cloned().collect(),
            not_before: self.now,
            ..Program::default()
        });
    }

    /// The files of the current directory.
    pub(super) fn texts(&self) -> Vec<(String, String)> {
        let names = self.directories[&self.current].names.values();
        names.map(|(name, inode)| (name.clone(), self.inodes[inode].text.clone())).collect()
    }

    fn step(&mut self, at: usize) {
        let Some(step) = self.programs[at].steps.pop_front() else { return };
        let (directory, stamp) = (self.current, self.stamp());
        self.programs[at].not_before = self.now;
        match step {
            Step::Open(name) => {
                let inode = self.find(directory, &name).map_or(1000 + self.inodes.len() as u64, |(_, inode)| inode);
                if !self.inodes.contains_key(&inode) {
                    self.insert(directory, &name, inode);
                    self.event(&name, directory);
                }
                let file = self.inodes.entry(inode).or_default();
                (file.text, file.stamp, file.writers) = (String::new(), stamp, file.writers + 1);
                self.programs[at].open = Some(inode);
            }
            Step::Write(text) => {
                let inode = self.programs[at].open.unwrap();
                let file = self.inodes.get_mut(&inode).unwrap();
                file.text.push_str(&text);
                file.stamp = stamp;
            }
            Step::Close => {
                let Some(inode) = self.programs[at].open.take() else { return };
                self.inodes.get_mut(&inode).unwrap().writers -= 1;
                let names = self.directories[&directory].names.values();
                let name = names.filter(|(_, it)| *it == inode).map(|(name, _)| name.clone()).next();
                if let Some(name) = name.filter(|name| !self.links.contains(name)) {
                    self.event(&name, directory);
                }
            }
            Step::Unlink(name) => {
                if self.remove(directory, &name).is_some() {
                    self.event(&name, directory);
                }
            }
            Step::Rename(from, to) => {
                let Some(inode) = self.remove(directory, &from) else { return };
                self.remove(directory, &to);
                self.insert(directory, &to, inode);
                self.event(&from, directory);
                self.event(&to, directory);
            }
            Step::Exchange(other) => {
                self.directories.entry(other).or_default();
                self.current = other;
                if self.has_events {
                    self.notes.take(None, self.instant());
                }
            }
            Step::Overflow => self.notes.lose(self.instant()),
            Step::Wait(milliseconds) => {
                let until = self.now + MS * u32::try_from(milliseconds).unwrap();
                self.programs[at].not_before = until;
            }
            Step::GiveUp(name) => self.given_up.push(name),
        }
        // A program that removes a file to write it again does so soon.
        let is_gap =
            matches!(self.programs[at].steps.front(), Some(Step::Open(name)) if self.find(directory, name).is_none());
        self.programs[at].by = is_gap.then(|| self.now + 100 * MS);
    }

    /// Lets time pass, and the programs make what steps they want.
    pub(super) fn pass(&mut self, at_most: Duration) {
        let until = self.now + at_most;
        while !self.is_quiet() {
            let pending = self.programs.iter().enumerate().filter(|(_, it)| !it.steps.is_empty());
            let times = pending.map(|(at, it)| (it.not_before.max(self.now), it.by, at));
            let due: Vec<_> = times.filter(|(begin, _, _)| *begin <= until).collect();
            let Some((begin, by, at)) = due.iter().min_by_key(|(begin, by, _)| (by.is_none(), *begin)).copied() else {
                break;
            };
            let (begin, at) = if by.is_some() || due.len() == 1 {
                (begin, at)
            } else {
                let (begin, _, at) = due[usize::try_from(self.random.below(due.len() as u64)).unwrap()];
                (begin, at)
            };
            // A gap ends within 100 ms; other steps wait as long as they like.
            let at_most = [1, 3, 40][usize::try_from(self.random.below(3)).unwrap()];
            let slack = self.random.below(at_most);
            let moment = begin + MS * u32::try_from(slack).unwrap();
            let moment = by.map_or(moment, |by| moment.min(by));
            if moment > until {
                break;
            }
            self.now = self.now.max(moment);
            self.step(at);
        }
        self.now = self.now.max(until);
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.programs.iter().all(|program| program.steps.is_empty())
    }
}

impl World {
    pub(super) fn new(random: Random) -> Self {
        let (notes, links, given_up) = (Notes::default(), Vec::new(), Vec::new());
        let state = State {
            random,
            programs: Vec::new(),
            start: Instant::now(),
            now: Duration::from_secs(100),
            inodes: BTreeMap::new(),
            directories: BTreeMap::new(),
            current: 1,
            notes,
            links,
            has_leases: true,
            has_events: true,
            loses_events: false,
            given_up,
        };
        Self { state: RefCell::new(state) }
    }

    pub(super) fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.state.borrow().now
    }

    /// What happens before a step of the scan: mostly nothing.
    fn meanwhile(&self) {
        let mut state = self.state.borrow_mut();
        let much = [0, 0, 0, 0, 0, 100, 2_000, 30_000][usize::try_from(state.random.below(8)).unwrap()];
        let microseconds = state.random.below(1 + much);
        state.pass(Duration::from_micros(1 + microseconds));
    }

    fn stat_of(state: &State, inode: u64) -> Stat {
        let Inode { text, stamp, .. } = &state.inodes[&inode];
        Stat { identity: (1, inode), kind: FileType::RegularFile, size: text.len() as u64, times: [time(*stamp); 2] }
    }
}

fn time(stamp: u64) -> (i64, u64) {
    (i64::try_from(stamp / 1_000_000_000).unwrap(), stamp % 1_000_000_000)
}

impl FileSystem for World {
    /// With the place of the last name.
    type Directory = (u64, Option<u64>);
    type File = u64;

    fn now(&self) -> Instant {
        self.state.borrow().instant()
    }

    fn open_directory(&self, _: &Path) -> io::Result<Self::Directory> {
        self.meanwhile();
        Ok((self.state.borrow().current, None))
    }

    fn stat_directory(&self, directory: &Self::Directory) -> io::Result<Stat> {
        self.meanwhile();
        let stamp = self.state.borrow().directories[&directory.0].stamp;
        Ok(Stat { identity: (1, directory.0), kind: FileType::Directory, size: 0, times: [time(stamp); 2] })
    }

    fn next_name(&self, (directory, place): &mut Self::Directory) -> io::Result<Option<OsString>> {
        self.meanwhile();
        let state = self.state.borrow();
        let from = place.map_or(0, |place| place + 1);
        let next = state.directories[directory].names.range(from..).next();
        *place = next.map(|(place, _)| *place).or(*place);
        Ok(next.map(|(_, (name, _))| name.into()))
    }

    fn stat(&self, directory: &Self::Directory, name: &OsStr) -> io::Result<Stat> {
        self.meanwhile();
        let state = self.state.borrow();
        let found = state.find(directory.0, name.to_str().unwrap()).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self::stat_of(&state, found.1))
    }

    fn is_linked(&self, _: &Self::Directory, name: &OsStr) -> bool {
        self.state.borrow().links.iter().any(|link| name == link.as_str())
    }

    fn exists(&self, directory: &Self::Directory, name: &OsStr) -> bool {
        self.meanwhile();
        self.state.borrow().find(directory.0, name.to_str().unwrap()).is_some()
    }

    fn open(&self, directory: &Self::Directory, name: &OsStr) -> io::Result<u64> {
        self.meanwhile();
        let found = self.state.borrow().find(directory.0, name.to_str().unwrap()).ok_or(io::ErrorKind::NotFound)?;
        Ok(found.1)
    }

    fn stat_file(&self, file: &u64) -> io::Result<Stat> {
        self.meanwhile();
        Ok(Self::stat_of(&self.state.borrow(), *file))
    }

    fn read(&self, file: &u64, _: u64) -> io::Result<Vec<u8>> {
        self.meanwhile();
        Ok(self.state.borrow().inodes[file].text.clone().into_bytes())
    }

    fn is_being_written(&self, file: &u64) -> Option<bool> {
        self.meanwhile();
        let state = self.state.borrow();
        state.has_leases.then(|| state.inodes[file].writers > 0)
    }
}
