//! Shell completion: `nodelb completions` prints a script for a shell, which runs this program for the candidates on
//! each request. They follow from the definition of the command line; names of services come from the daemon.

use std::ffi::{OsStr, OsString};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::{Args, CommandFactory};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use nodelb_report::rows::{Backends, Services};

use super::CommandLine;
use super::asking::target;
use super::client::{self, At};
use super::print::print;
use crate::exit::{Code, Failure};

/// The environment variable that a script requests candidates with.
const VARIABLE: &str = "NODELB_COMPLETE";
const PROGRAM: &str = "nodelb";

/// Completes at the first request, when zsh loads the script as a function of its file's name.
const AUTOLOAD: &str = "[[ ${funcstack[1]} != _nodelb ]] || _clap_dynamic_completer_nodelb \"$@\"\n";

/// Maximum time for the names of services: a daemon that does not respond must not delay the prompt.
const ANSWER_TIME: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn print(&self) -> Result<(), Failure> {
        let shell = self.shell.to_string();
        let unknown = || Failure::message(Code::Internal, format!("no completions for {shell}"));
        let mut script = Vec::new();
        let shells = Shells::builtins();
        let completer = shells.completer(&shell).ok_or_else(unknown)?;
        let written = completer.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script);
        written.map_err(|error| Failure::new(Code::Internal, error))?;
        if self.shell == Shell::Zsh {
            script.extend_from_slice(AUTOLOAD.as_bytes());
        }
        print(&script)
    }
}

/// Prints candidates if a completion script requests them, and returns whether it does.
pub(super) fn complete(args: &[OsString]) -> bool {
    let env = CompleteEnv::with_factory(CommandLine::command).var(VARIABLE).bin(PROGRAM).completer(PROGRAM);
    // An error, such as an unknown shell, must not reach the prompt.
    env.try_complete(args.iter().cloned(), None).unwrap_or(true)
}

/// Returns the names of services that begin with this text; none if no daemon responds in time.
pub(super) fn services(begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    let names = within_time(known);
    matching(begun, &names).into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the backends of the service on the command line that begin with this text.
pub(super) fn backends(begun: &OsStr) -> Vec<CompletionCandidate> {
    let (Some(begun), Some(service)) = (begun.to_str(), drained_service(std::env::args_os())) else {
        return Vec::new();
    };
    let mut names = within_time(move |addresses| backends_of(addresses, &service));
    names.retain(|name| name.starts_with(begun));
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Asks the daemon for names; none if it does not respond in time.
fn within_time(ask: impl FnOnce(&[At]) -> Option<Vec<String>> + Send + 'static) -> Vec<String> {
    let addresses = admin(std::env::args_os()).map_or_else(client::default_addresses, |at| vec![at]);
    let (done, names) = mpsc::channel();
    let ask = move || {
        // An error: the time limit has passed.
        let _ = done.send(ask(&addresses));
    };
    if thread::Builder::new().spawn(ask).is_err() {
        return Vec::new();
    }
    names.recv_timeout(ANSWER_TIME).ok().flatten().unwrap_or_default()
}

/// The service between `drain` or `undrain` and the backend.
fn drained_service(words: impl Iterator<Item = OsString>) -> Option<String> {
    let mut words = words.filter_map(|word| word.into_string().ok());
    words.find(|word| word == "drain" || word == "undrain")?;
    words.find(|word| !word.starts_with('-'))
}

fn backends_of(addresses: &[At], service: &str) -> Option<Vec<String>> {
    let mut parameters = vec![("output", "json".to_owned())];
    // Only a full name is a filter.
    parameters.extend(service.contains('/').then(|| ("service", service.to_owned())));
    let body = client::get(addresses, &target("/backends", &parameters)).ok()?;
    let answer: Backends = serde_json::from_slice(&body).ok()?;
    let is_meant = |name: &str| name == service || name.split_once('/').is_some_and(|(_, name)| name == service);
    let rows = answer.backends.into_iter().filter(|row| row.service.as_deref().is_some_and(is_meant));
    let addresses = rows.map(|row| row.address.to_string());
    let mut names: Vec<String> = addresses.filter_map(|at| Some(at.rsplit_once('/')?.0.to_owned())).collect();
    names.dedup();
    Some(names)
}

fn known(addresses: &[At]) -> Option<Vec<String>> {
    let answer: Services = serde_json::from_slice(&client::get(addresses, "/services?output=json").ok()?).ok()?;
    Some(answer.services.into_iter().filter_map(|row| row.service).collect())
}

/// The names that begin with the text: full names, or names without their namespace if there are none.
fn matching<'a>(begun: &str, names: &'a [String]) -> Vec<&'a str> {
    let full: Vec<&str> = names.iter().map(String::as_str).filter(|name| name.starts_with(begun)).collect();
    if !full.is_empty() || begun.contains('/') {
        return full;
    }
    names.iter().filter_map(|name| Some(name.split_once('/')?.1)).filter(|name| name.starts_with(begun)).collect()
}

/// The address that the command line names.
fn admin(words: impl Iterator<Item = OsString>) -> Option<At> {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let separate = words.windows(2).find(|pair| pair[0] == "--admin").map(|pair| pair[1].as_str());
    let joined = words.iter().find_map(|word| word.strip_prefix("--admin="));
    separate.or(joined)?.parse().ok()
}

#[cfg(test)]
#[path = "tests/completions.rs"]
mod tests;
