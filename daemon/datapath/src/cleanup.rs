//! Removing everything nodelb ever pinned, and nothing else. May be repeated, also after it was interrupted.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::attach::HOOKS;
use crate::crash::CrashPoint;
use crate::error::{OpenError, failed};
use crate::load::LASTING;
use crate::maps::NAMES;
use crate::pins::{self, Pins, UNFINISHED, numbered};
use crate::sys;

/// What was there and is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupReport {
    /// Links detached: from here on nothing is translated.
    pub links: usize,
    /// Map pins removed.
    pub maps: usize,
    /// Files in the pin directory that are none of nodelb's, and were left.
    pub left: Vec<PathBuf>,
}

/// Detaches the programs and removes all pins. Connections that are open stay open; new ones go where they are dialled.
///
/// # Errors
/// When a nodelb is running, or something cannot be removed.
pub fn cleanup(pin_directory: &Path, crash: &CrashPoint) -> Result<CleanupReport, OpenError> {
    let mut report = CleanupReport::default();
    for pins in Pins::existing(pin_directory, crash)? {
        remove_links(&pins, &mut report, crash)?;
        remove_maps(&pins, &mut report, crash)?;
        remove_if_empty(pins.root(), &mut report, crash)?;
    }
    remove_if_empty(pin_directory, &mut report, crash)?;
    report.left.sort_unstable();
    report.left.dedup();
    Ok(report)
}

/// Connections are no longer turned before answers are no longer turned back.
fn remove_links(pins: &Pins, report: &mut CleanupReport, crash: &CrashPoint) -> Result<(), OpenError> {
    for hook in HOOKS.iter().rev() {
        for path in [pins.link(hook.name), pins.link(&format!("{}{UNFINISHED}", hook.name))] {
            if let Ok(link) = sys::open_pinned(&path) {
                // Fails only if the link is detached already, because its cgroup is gone.
                let _ = sys::link_detach(link.as_fd());
                crash.pass();
                report.links += 1;
            }
            pins::remove_file(&path, crash).map_err(failed("removing", &path))?;
        }
    }
    remove_if_empty(&pins.root().join("links"), report, crash)
}

fn remove_maps(pins: &Pins, report: &mut CleanupReport, crash: &CrashPoint) -> Result<(), OpenError> {
    remove_unfinished(pins, report, crash)?;
    let names = pins::list(pins.root()).map_err(failed("reading", pins.root()))?;
    for number in names.iter().filter_map(|name| numbered(name, "g")) {
        // In one step, so that a crash does not leave half of the truth behind.
        pins.withdraw(number)?;
        remove_unfinished(pins, report, crash)?;
    }
    LASTING.iter().try_for_each(|name| remove_map(&pins.lasting(name), report, crash))
}

fn remove_unfinished(pins: &Pins, report: &mut CleanupReport, crash: &CrashPoint) -> Result<(), OpenError> {
    let names = pins::list(pins.root()).map_err(failed("reading", pins.root()))?;
    let is_unfinished =
        |name: &&String| name.strip_suffix(UNFINISHED).is_some_and(|name| numbered(name, "g").is_some());
    for directory in names.iter().filter(is_unfinished).map(|name| pins.root().join(name)) {
        for name in NAMES {
            remove_map(&directory.join(name), report, crash)?;
        }
        remove_if_empty(&directory, report, crash)?;
    }
    Ok(())
}

fn remove_map(path: &Path, report: &mut CleanupReport, crash: &CrashPoint) -> Result<(), OpenError> {
    report.maps += usize::from(path.exists());
    pins::remove_file(path, crash).map_err(failed("removing", path))
}

fn remove_if_empty(directory: &Path, report: &mut CleanupReport, crash: &CrashPoint) -> Result<(), OpenError> {
    let reading = |error: io::Error| failed("reading", directory)(error);
    let names = pins::list(directory).map_err(reading)?;
    if !names.is_empty() {
        report.left.extend(names.iter().map(|name| directory.join(name)));
        return Ok(());
    }
    match fs::remove_dir(directory) {
        Ok(()) => crash.pass(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("removing", directory)(error)),
    }
    Ok(())
}
