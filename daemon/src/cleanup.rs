//! `nodelb cleanup`: removes every pin and link, and with them the translation of service addresses.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nodelb_cli::CleanupOptions;
use nodelb_cli::exit::{Code, Failure};
use nodelb_datapath::{CrashPoint, HiddenLink, LinkUser};
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
        return detach_hidden(config()?.datapath.cgroup(), options.yes, out);
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

/// Lists the programs with unreachable pins, and detaches them if the user agrees.
fn detach_hidden(cgroup: Option<&Path>, is_agreed: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let links = nodelb_datapath::hidden_links(cgroup).map_err(refused)?;
    let (mut links, used): (Vec<_>, Vec<_>) = links.into_iter().partition(|link| link.user.is_none());
    let mut say = |text: String| writeln!(out, "{text}").context("writing the summary");
    for HiddenLink { id, hook, program, user } in &used {
        let user = match user {
            Some(LinkUser::Process(pid)) => format!("process {pid} holds it"),
            Some(LinkUser::Pin(path)) => format!("it is pinned at {}", path.display()),
            None => String::new(),
        };
        say(format!("kept link {id}: program {program} of nodelb at {hook}; {user}"))?;
    }
    if !links.is_empty() && !is_agreed {
        ask(&links)?;
    }
    links = nodelb_datapath::detach_hidden(cgroup, &links).map_err(refused)?;
    for link in &links {
        say(format!("detached {}", described(link)))?;
    }
    let count = links.len();
    say(format!("detached {count} links of nodelb that no BPF file system shows and no process holds"))?;
    Ok(())
}

fn described(HiddenLink { id, hook, program, .. }: &HiddenLink) -> String {
    format!("link {id}: program {program} of nodelb at {hook}")
}

/// Asks on the terminal whether to detach these links. An error means no.
fn ask(links: &[HiddenLink]) -> Result<(), Failure> {
    let list: String = links.iter().map(|link| format!("{}\n", described(link))).collect();
    let count = links.len();
    let (stdin, mut stderr) = (io::stdin(), io::stderr());
    if !stdin.is_terminal() {
        let refused = format!(
            "these {count} links would be detached, and connections that only their programs translate would fail. \
             Nothing was detached, because stdin is no terminal to ask on: --yes detaches them without a question\n{list}",
        );
        return Err(Failure::message(Code::Usage, refused.trim_end()));
    }
    let question = format!(
        "{list}No process holds these links, and no BPF file system shows them. Connections that only their programs \
         translate will fail. Detach {count} links? [y/N] "
    );
    let mut answer = String::new();
    let asked = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    let read = asked.and_then(|()| stdin.read_line(&mut answer)).context("asking on the terminal");
    read.map_err(|error| Failure::new(Code::System, error))?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::message(Code::Usage, "nothing was detached"))
}
