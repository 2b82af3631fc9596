//! Property: whatever programs do to the services directory between any two steps of a scan, a service whose file exists,
//! or is absent for less than 100 ms, keeps its backends; and when the programs have ended for 12 s, exactly what the files
//! contain is served.
//!
//! `WORLD_SEQUENCES=n` sets the number of sequences, and `WORLD_SEED=n` the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::known::Files;
use super::last_valid::LastValid;
use super::looks::Looks;
use super::merge::{Merged, merge};
use super::scan;
use super::world::{Random, Step, World};

/// A service with a backend.
type Fact = (String, String);

const DIRECTORY: &str = "/s";

/// Scans of the whole directory are at most ten seconds apart, and the last one may need others.
const QUIET: Duration = Duration::from_secs(12);

/// So many failures end the test.
const SHOWN: usize = 20;

fn service(name: &str, frontend: &str, backend: &str) -> String {
    format!("[[service]]\nname = \"s/{name}\"\nfrontends = [\"198.51.{frontend}:80\"]\nbackends = [\"{backend}:80\"]\n")
}

/// Two services that every version of the file has, and one that each changes.
fn text(file: u64, version: u64) -> String {
    service(&format!("a{file}"), &format!("100.{file}"), "192.0.2.1")
        + &service(&format!("b{file}"), &format!("101.{file}"), "192.0.2.2")
        + &service(&format!("v{file}"), &format!("102.{file}"), &format!("203.0.113.{version}"))
}

/// A version whose beginning is not that of another one.
fn headed(file: u64, version: u64) -> String {
    format!("# version {version}\n{}", text(file, version))
}

fn stable(file: u64) -> [Fact; 2] {
    [(format!("s/a{file}"), "192.0.2.1".into()), (format!("s/b{file}"), "192.0.2.2".into())]
}

fn facts(merged: &Merged) -> BTreeSet<Fact> {
    let served = merged.slices.values().filter(|slice| merged.services.contains_key(&slice.service));
    let backends =
        served.flat_map(|slice| slice.ports.iter().flat_map(|port| &port.backends).map(move |it| (slice, it)));
    backends.map(|(slice, backend)| (slice.service.to_string(), backend.addr.to_string())).collect()
}

/// The file source as `run` drives it.
struct Daemon<'w> {
    world: &'w World,
    looks: Looks,
    files: Files,
    merged: Merged,
    /// What the maps have from the start, and no file has described since.
    maps: BTreeSet<Fact>,
    /// Whether [`Change::Synced`] was sent, and with everything.
    synced: Option<bool>,
    stored: Option<LastValid>,
    is_first: bool,
    has_trouble: bool,
}

impl<'w> Daemon<'w> {
    fn start(world: &'w World, maps: BTreeSet<Fact>, stored: Option<LastValid>) -> Self {
        let (looks, files) = (Looks::new(world.state.borrow().instant()), Files::default());
        Self {
            world,
            looks,
            files,
            merged: Merged::default(),
            maps,
            synced: None,
            stored,
            is_first: true,
            has_trouble: false,
        }
    }

    fn restart(&mut self) {
        *self = Self::start(self.world, self.served(), self.stored.take());
    }

    fn served(&self) -> BTreeSet<Fact> {
        let is_whole = self.synced == Some(true);
        facts(&self.merged).into_iter().chain(self.maps.iter().filter(|_| !is_whole).cloned()).collect()
    }

    fn scan(&mut self, is_reload: bool) {
        let hints = {
            let mut state = self.world.state.borrow_mut();
            let (now, has_events) = (state.instant(), state.has_events);
            let notes = has_events.then_some(&mut state.notes);
            self.looks.begin(notes, &self.files, self.is_first || is_reload || self.has_trouble, now)
        };
        let listing = scan::read(self.world, Path::new(DIRECTORY), &self.files.seen(), &hints).unwrap();
        let now = self.world.system_time();
        let previous = self.stored.clone().filter(|_| self.is_first);
        self.is_first = false;
        let mut is_new = previous.is_some();
        if let Some(last) = previous {
            self.files = Files::recalled(&listing.missing_of(&last), now);
        }
        let extent = listing.extent.clone();
        let accepted = self.files.accept(listing, false, now);
        self.has_trouble = accepted.is_err();
        is_new |= accepted.as_ref().is_ok_and(|accepted| accepted.has_changed);
        if is_new {
            let contents = self.files.contents();
            self.merged = self.merged.with(&contents);
            assert_eq!(self.merged, merge(&contents));
            let described: BTreeSet<String> = facts(&self.merged).into_iter().map(|(service, _)| service).collect();
            self.maps.retain(|(service, _)| !described.contains(service));
        }
        if accepted.is_ok() {
            self.stored = Some(self.files.last_valid(Path::new(DIRECTORY)));
        }
        if self.files.is_listed() || self.has_trouble && is_new {
            self.synced = Some(self.files.is_listed() && self.files.incomplete().is_none());
            if self.synced == Some(true) {
                self.maps.clear();
            }
        }
        let state = self.world.state.borrow();
        let extent = accepted.is_ok().then_some(&extent);
        self.looks.end(extent, &self.files, state.has_events, state.instant());
    }

    fn wait(&self) {
        let mut state = self.world.state.borrow_mut();
        loop {
            let next = self.looks.next(state.has_events.then_some(&state.notes));
            let left = next.saturating_duration_since(state.instant());
            if left == Duration::ZERO {
                return;
            }
            let slice = if state.is_quiet() { left } else { left.min(Duration::from_millis(20)) };
            state.pass(slice);
        }
    }
}

/// What a sequence does, and what may be expected of it.
struct Plan {
    programs: Vec<Vec<Step>>,
    /// Whether every file is valid and complete in the end.
    is_clean: bool,
    /// Whether only the state file shows what is missing: a writer ends in the middle, or the directory is not mounted.
    needs_state: bool,
    /// Whether the kernel tells who writes.
    has_leases: bool,
    is_restarted: bool,
    is_reloaded: bool,
}

fn name(file: u64) -> String {
    format!("f{file}.toml")
}

/// The text in pieces, which end anywhere, with pauses of any length.
fn pieces(random: &mut Random, text: &str, longest: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let lines: Vec<usize> = rest.match_indices('\n').map(|(at, _)| at + 1).collect();
        let at_line = lines[usize::try_from(random.below(lines.len() as u64)).unwrap()];
        let anywhere = usize::try_from(1 + random.below(rest.len() as u64)).unwrap();
        let (piece, others) = rest.split_at(if random.one_in(2) { at_line } else { anywhere });
        steps.push(Step::Write(piece.into()));
        if random.one_in(3) {
            steps.push(Step::Wait(random.below(longest)));
        }
        rest = others;
        if steps.len() > 4 && !rest.is_empty() {
            steps.push(Step::Write(rest.into()));
            break;
        }
    }
    steps
}

fn replace(random: &mut Random, name: &str, text: &str) -> Vec<Step> {
    let temporary = format!(".{name}.tmp");
    let mut steps = vec![Step::Open(temporary.clone())];
    steps.extend(pieces(random, text, 300));
    steps.extend([Step::Close, Step::Rename(temporary, name.into())]);
    steps
}

impl Plan {
    fn new(random: &mut Random, files: u64) -> Self {
        let mut plan = Self {
            programs: Vec::new(),
            is_clean: true,
            needs_state: false,
            has_leases: !random.one_in(4),
            is_restarted: random.one_in(3),
            is_reloaded: random.one_in(4),
        };
        let kind = random.below(8);
        match kind {
            0 => plan.exchange(random),
            1 => plan.unmount(random),
            _ => (0..files).for_each(|file| plan.change(random, file)),
        }
        // Who puts a file into an empty directory means it.
        if kind != 1 && random.one_in(4) {
            let noise = (0..random.below(30)).flat_map(|version| {
                let mut steps = replace(&mut Random(version), "noise.toml", &format!("# {version}\n"));
                steps.push(Step::Wait(30));
                steps
            });
            plan.programs.push(noise.collect());
        }
        if random.one_in(6) {
            plan.programs.push(vec![Step::Wait(random.below(2_000)), Step::Overflow]);
        }
        plan
    }

    fn change(&mut self, random: &mut Random, file: u64) {
        let (name, version) = (name(file), 1 + random.below(100));
        let mut steps = vec![Step::Wait(random.below(1_500))];
        match random.below(8) {
            0 => steps.extend(replace(random, &name, &headed(file, version))),
            1 | 2 => steps.extend(self.write_in_place(random, file, version)),
            3 => {
                for version in 1..=1 + random.below(3) {
                    steps.extend([Step::Unlink(name.clone()), Step::Open(name.clone())]);
                    steps.push(Step::Write(headed(file, version)));
                    steps.extend([Step::Close, Step::Wait(random.below(700))]);
                }
            }
            4 => {
                let other = format!("z{file}.toml");
                for _ in 0..=random.below(5) {
                    steps.extend([Step::Rename(name.clone(), other.clone()), Step::Wait(random.below(400))]);
                    steps.extend([Step::Rename(other.clone(), name.clone()), Step::Wait(random.below(400))]);
                }
            }
            5 => steps.extend([Step::GiveUp(name.clone()), Step::Unlink(name)]),
            6 => {
                // A full disk.
                steps.extend(random.one_in(2).then(|| Step::Unlink(name.clone())));
                steps.extend([Step::Open(name), Step::Close]);
                self.is_clean = false;
            }
            _ => {
                steps.extend(replace(random, &name, &(headed(file, version) + "oops [\n")));
                steps.extend([Step::Wait(random.below(3_000)), Step::Rename(name, format!("x{file}.toml"))]);
                self.is_clean = false;
            }
        }
        self.programs.push(steps);
    }

    /// A writer that ends in the middle leaves the beginning of both versions; and so does one that pauses for longer than
    /// the daemon waits where the kernel does not tell who writes.
    fn write_in_place(&mut self, random: &mut Random, file: u64, version: u64) -> Vec<Step> {
        let is_torn = random.one_in(3);
        let longest = [300, 3_000, 70_000][usize::try_from(random.below(3)).unwrap()];
        let is_shown = self.has_leases || longest == 300;
        let text = if is_torn || !is_shown { text(file, version) } else { headed(file, version) };
        let mut steps = vec![Step::Open(name(file))];
        if random.one_in(3) {
            steps.push(Step::Wait(random.below(longest)));
        }
        steps.extend(pieces(random, &text, longest));
        if is_torn {
            steps.truncate(usize::try_from(1 + random.below(steps.len() as u64)).unwrap());
        }
        steps.push(Step::Close);
        self.needs_state |= is_torn;
        self.is_clean &= !is_torn;
        steps
    }

    /// The path is a link that is exchanged between two directories, with other names of the same files.
    fn exchange(&mut self, random: &mut Random) {
        let exchanges = (0..1 + random.below(6)).flat_map(|n| {
            [
                Step::Wait([0, 50, 600][usize::try_from(n % 3).unwrap()]),
                Step::Exchange([2, 1][usize::try_from(n % 2).unwrap()]),
            ]
        });
        self.programs.push(exchanges.collect());
    }

    /// Another, empty directory is there for a while.
    fn unmount(&mut self, random: &mut Random) {
        self.needs_state = true;
        let (before, during) = (random.below(2_000), random.below(15_000));
        self.programs.push(vec![Step::Wait(before), Step::Exchange(3), Step::Wait(during), Step::Exchange(1)]);
    }
}

/// Plays a sequence; returns what is wrong.
fn play(seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let files = 2 + random.below(2);
    let plan = Plan::new(&mut random, files);
    let world = World::new(Random(random.below(u64::MAX)));
    {
        let mut state = world.state.borrow_mut();
        for file in 0..files {
            state.add(1, &name(file), &text(file, 0));
            state.add(
                2,
                &format!("{}{}.toml", ["f", "a", "z"][usize::try_from(file % 3).unwrap()], files - file),
                &text(file, 0),
            );
        }
        state.has_leases = plan.has_leases;
        state.has_events = !random.one_in(6);
        state.loses_events = random.one_in(6);
        if random.one_in(3) {
            state.links = vec![name(0)];
        }
    }
    let expected = |world: &World| -> Vec<Fact> {
        let given_up = &world.state.borrow().given_up;
        (0..files).filter(|file| !given_up.contains(&name(*file))).flat_map(stable).collect()
    };
    // The maps and the state file are those of an earlier run.
    let mut earlier = Daemon::start(&world, BTreeSet::new(), None);
    for _ in 0..3 {
        earlier.scan(false);
        world.state.borrow_mut().pass(Duration::from_secs(1));
    }
    plan.programs.iter().for_each(|steps| world.state.borrow_mut().run(steps));
    // Without the state file, a start takes half a file for a whole one where the kernel does not tell who writes.
    let is_lost = plan.has_leases && !plan.needs_state && random.one_in(4);
    let mut daemon = Daemon::start(&world, earlier.served(), earlier.stored.filter(|_| !is_lost));
    let (restart, reload) = (random.below(20), random.below(20));
    let mut quiet_since = None;
    for scan in 0..3_000 {
        daemon.scan(plan.is_reloaded && scan == reload);
        let served = daemon.served();
        if let Some((service, backend)) = expected(&world).into_iter().find(|fact| !served.contains(fact)) {
            return Err(format!("scan {scan}: {service} has lost {backend}; {:?}", plan.programs));
        }
        if plan.is_restarted && scan == restart {
            daemon.restart();
        }
        daemon.wait();
        let state = world.state.borrow();
        let is_done = state.is_quiet() && (!plan.is_restarted || scan > restart);
        let since = *quiet_since.get_or_insert(state.instant());
        quiet_since = is_done.then_some(since);
        if is_done && state.instant() >= since + QUIET {
            drop(state);
            return if plan.is_clean { agrees(&world, &daemon) } else { Ok(()) };
        }
    }
    Err("the programs do not end".into())
}

fn agrees(world: &World, daemon: &Daemon<'_>) -> Result<(), String> {
    let texts = world.state.borrow().texts();
    let visible = texts.iter().filter(|(name, _)| !name.starts_with('.'));
    let contents = visible.map(|(name, text)| {
        let path = PathBuf::from(DIRECTORY).join(name);
        let content = super::parse(&path, text.as_bytes()).map_err(|problems| format!("{path:?}: {problems:?}"))?;
        Ok((path, Arc::new(content)))
    });
    let expected = facts(&merge(&contents.collect::<Result<_, String>>()?));
    let served = daemon.served();
    if served == expected && daemon.synced == Some(true) {
        return Ok(());
    }
    let (more, less): (Vec<_>, Vec<_>) =
        (served.difference(&expected).collect(), expected.difference(&served).collect());
    Err(format!("in the end, {more:?} is served, {less:?} is not; synced {:?}", daemon.synced))
}

#[test]
fn no_interleaving_takes_what_the_source_has() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, sequences) = (number("WORLD_SEED", 0), number("WORLD_SEQUENCES", 20_000));
    let next = AtomicU64::new(first);
    let failed = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < first + sequences
                    && failed.lock().unwrap().len() < SHOWN
                {
                    if let Err(problem) = play(seed) {
                        failed.lock().unwrap().insert(seed, problem);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    let played = next.into_inner().min(first + sequences) - first;
    assert!(failed.is_empty(), "{} of {played} fail (WORLD_SEED=n plays one): {failed:#?}", failed.len());
}
