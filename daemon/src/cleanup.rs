//! `nodelb cleanup`: removes every pin and link, and with them the translation of service addresses.

use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nodelb_cli::CleanupOptions;
use nodelb_cli::exit::{Code, Failure};
use nodelb_datapath::{CrashPoint, HiddenLink};
use nodelb_kube::source::state_file;

use crate::config::Config;
use crate::run::{crash_after, refused, under_way};

/// How long answers are translated back after destinations no longer are.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// Removes everything that nodelb has pinned, and reports how much it was.
///
/// # Errors
/// If a daemon uses it (69), or something cannot be removed (71).
pub fn cleanup(options: &CleanupOptions, out: &mut dyn Write) -> Result<(), Failure> {
    let config = || Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error));
    if options.hidden {
        return detach_hidden(config()?.datapath.cgroup(), out);
    }
    let (directory, state) = match &options.pin_directory {
        Some(directory) => (directory.clone(), None),
        None => {
            let config = config()?;
            // If Kubernetes is a source, its services return at the next start in any case.
            let state = config.kubernetes_settings().is_none().then_some(config.state.directory);
            (config.datapath.pin_directory, state)
        }
    };
    let (under_way, crash) = (under_way()?.unwrap_or(UNDER_WAY), CrashPoint::new(crash_after()?));
    let report = nodelb_datapath::cleanup(&directory, &|| thread::sleep(under_way), &crash).map_err(refused)?;
    let summary = match (report.links, report.maps) {
        (0, 0) => format!("Nothing to clean up in {}.", directory.display()),
        (links, maps) => format!("removed {links} links and {maps} maps from {}", directory.display()),
    };
    let mut say = |text: String| writeln!(out, "{text}").context("writing the summary");
    say(summary)?;
    if let Some(state) = state {
        let path = state_file::path(&state);
        let forgotten = state_file::forget(&state).with_context(|| format!("removing {}", path.display()));
        if forgotten.map_err(|error| Failure::new(Code::System, error))? {
            say(format!("removed {}: Kubernetes is no longer a source", path.display()))?;
        }
    }
    for path in report.left {
        say(format!("kept, because nodelb did not create it: {}", path.display()))?;
    }
    Ok(())
}

/// Detaches the programs with unreachable pins, and reports which.
fn detach_hidden(cgroup: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
    let report = nodelb_datapath::detach_hidden(cgroup).map_err(refused)?;
    let mut say = |text: String| writeln!(out, "{text}").context("writing the summary");
    for HiddenLink { id, hook, program, .. } in &report.detached {
        say(format!("detached link {id}: program {program} at {hook}"))?;
    }
    for HiddenLink { id, hook, program, holder } in &report.held {
        let holder = holder.map(|pid| format!("process {pid} holds it")).unwrap_or_default();
        say(format!("kept link {id}: program {program} at {hook}; {holder}"))?;
    }
    say(format!("detached {} links that no mounted BPF file system shows", report.detached.len()))?;
    Ok(())
}
