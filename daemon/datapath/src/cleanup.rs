//! Removes everything that nodelb has ever pinned, and nothing else. May be repeated, also after an interruption.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkInfo;

use crate::attach::{self, Hook};
use crate::crash::CrashPoint;
use crate::device_hooks;
use crate::error::{OpenError, failed};
use crate::kept;
use crate::load::PERSISTENT;
use crate::maps::NAMES;
use crate::outside;
use crate::packets;
use crate::pins::{self, Pins, UNFINISHED, numbered};
use crate::sys;
use crate::versions::{self, LAYOUT, Lock};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupReport {
    /// Number of detached links and of removed filters at network devices. After that nothing is translated.
    pub links: usize,
    /// Number of removed map pins.
    pub maps: usize,
    /// Files in the pin directory that do not belong to nodelb and were left.
    pub left: Vec<PathBuf>,
}

/// Detaches the programs and removes all pins, of every layout version. Open connections stay open; new ones go to
/// their destination without translation.
///
/// `wait` is called once destinations are no longer translated. Until it returns, answers still are: those to datagrams
/// that are under way, and the peer's name of a socket that a program has just connected.
///
/// # Errors
/// If a nodelb is running, or something cannot be removed.
pub fn cleanup(pin_directory: &Path, wait: &dyn Fn(), crash: &CrashPoint) -> Result<CleanupReport, OpenError> {
    // A pin directory that appears after this belongs to a daemon that is starting.
    let Some(_lock) = Lock::take(pin_directory)? else {
        // Filters at network devices need no pin.
        let links = remove_from_devices(&Pins::new(pin_directory, LAYOUT, crash))?;
        return Ok(CleanupReport { links, ..CleanupReport::default() });
    };
    let mut work = Work { report: CleanupReport::default(), detached: BTreeSet::new(), wait, crash };
    // Oldest version first: the version that a newer one took over from must not become current again.
    for (layout, root) in versions::all(pin_directory)? {
        let pins = Pins::new(pin_directory, layout, crash);
        work.report.links += remove_from_devices(&pins)?;
        let is_known = layout == LAYOUT;
        work.remove_links(&pins, is_known)?;
        kept::remove_all(&root, crash).map_err(failed("removing the programs in", &root))?;
        work.remove_maps(&pins, is_known)?;
        work.remove_if_empty(&root)?;
    }
    work.remove_if_empty(pin_directory)?;
    let mut report = work.report;
    report.left.sort_unstable();
    report.left.dedup();
    Ok(report)
}

fn remove_from_devices(pins: &Pins) -> Result<usize, OpenError> {
    device_hooks::remove_all(pins).map_err(failed("detaching the programs of devices, pinned in", &pins.links()))
}

struct Work<'a> {
    report: CleanupReport,
    /// Ids of the detached links: two versions may have pinned the same link.
    detached: BTreeSet<u32>,
    wait: &'a dyn Fn(),
    crash: &'a CrashPoint,
}

impl Work<'_> {
    /// Removes the links of a version. First stops translating destinations, then stops translating answers back.
    fn remove_links(&mut self, pins: &Pins, is_known: bool) -> Result<(), OpenError> {
        let mut names = if is_known { Vec::new() } else { files(&pins.links())? };
        names.retain(|name| !attach::all_hooks().any(|hook| [hook.name, &unfinished(hook)].contains(&name.as_str())));
        let detached = self.report.links;
        for name in &names {
            self.remove_link(pins, name)?;
        }
        let (answers, destinations): (Vec<_>, Vec<_>) =
            attach::all_hooks().rev().partition(|hook| hook.is_of_answers());
        self.remove_hooks(pins, &destinations)?;
        if self.report.links > detached {
            (self.wait)();
        }
        self.remove_hooks(pins, &answers)?;
        self.remove_if_empty(&pins.links())
    }

    fn remove_hooks(&mut self, pins: &Pins, hooks: &[&Hook]) -> Result<(), OpenError> {
        hooks.iter().try_for_each(|hook| {
            self.remove_link(pins, hook.name)?;
            self.remove_link(pins, &unfinished(hook))
        })
    }

    fn remove_link(&mut self, pins: &Pins, name: &str) -> Result<(), OpenError> {
        let path = pins.link(name);
        if let Ok(Some(link)) = sys::open_link(&path) {
            let id = LinkInfo::from_fd(link.as_fd()).map(|info| info.id);
            // Fails only if the link is detached already, because its cgroup was removed or through its other pin.
            let _ = sys::link_detach(link.as_fd());
            self.crash.pass();
            self.report.links += usize::from(id.is_ok_and(|id| self.detached.insert(id)));
        }
        pins::clear(&path, self.crash).map_err(failed("removing", &path))
    }

    fn remove_maps(&mut self, pins: &Pins, is_known: bool) -> Result<(), OpenError> {
        self.remove_unfinished(pins, is_known)?;
        let names = pins::list(pins.root()).map_err(failed("reading", pins.root()))?;
        for number in names.iter().filter_map(|name| numbered(name, "g")) {
            // In one step, so that a crash does not leave a partial current generation.
            pins.withdraw(number)?;
            self.remove_unfinished(pins, is_known)?;
        }
        if is_known {
            let names: Vec<String> = packets::maps::pin_names().collect();
            self.remove_pins(pins.root(), Some(&names.iter().map(String::as_str).collect::<Vec<_>>()))?;
        }
        self.remove_pins(pins.root(), is_known.then_some(&PERSISTENT))
    }

    fn remove_unfinished(&mut self, pins: &Pins, is_known: bool) -> Result<(), OpenError> {
        let names = pins::list(pins.root()).map_err(failed("reading", pins.root()))?;
        let is_unfinished =
            |name: &&String| name.strip_suffix(UNFINISHED).is_some_and(|name| numbered(name, "g").is_some());
        for directory in names.iter().filter(is_unfinished).map(|name| pins.root().join(name)) {
            let names = NAMES.iter().chain(&outside::NAMES).copied().collect::<Vec<_>>();
            self.remove_pins(&directory, is_known.then_some(&names))?;
            self.remove_if_empty(&directory)?;
        }
        Ok(())
    }

    /// Removes the pins with these names; with `None` all, for an unknown layout.
    fn remove_pins(&mut self, directory: &Path, names: Option<&[&str]>) -> Result<(), OpenError> {
        let names = match names {
            Some(names) => names.iter().map(ToString::to_string).collect(),
            None => files(directory)?,
        };
        for path in names.iter().map(|name| directory.join(name)) {
            self.report.maps += usize::from(path.exists());
            pins::remove_file(&path, self.crash).map_err(failed("removing", &path))?;
        }
        Ok(())
    }

    fn remove_if_empty(&mut self, directory: &Path) -> Result<(), OpenError> {
        let names = pins::list(directory).map_err(failed("reading", directory))?;
        if !names.is_empty() {
            self.report.left.extend(names.iter().map(|name| directory.join(name)));
            return Ok(());
        }
        pins::remove_empty(directory, self.crash).map_err(failed("removing", directory))
    }
}

/// The name of a hook's pin while it is replaced.
fn unfinished(hook: &Hook) -> String {
    format!("{}{UNFINISHED}", hook.name)
}

/// The names of the entries that are not directories.
fn files(directory: &Path) -> Result<Vec<String>, OpenError> {
    let mut names = pins::list(directory).map_err(failed("reading", directory))?;
    names.retain(|name| !directory.join(name).is_dir());
    Ok(names)
}
