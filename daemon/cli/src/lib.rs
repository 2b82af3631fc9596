//! The command line: its commands and options, each defined once, and the functions that run them. Owns parsing and the
//! exit code. Each command is a variant of [`Command`]; its options and its code are in a file below. Commands that
//! only read query the daemon ([`ask`], [`client`]); the others run one of the [`Actions`] of the binary.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub mod ask;
pub mod client;
mod completions;
pub mod diagnose;
mod diff;
pub mod endpoints;
pub mod exit;
mod observe;
mod options;
mod print;
mod query_options;
mod trace;

pub use ask::Output;
use ask::{Asking, DaemonAddresses, Frontends, History, Rows};
use completions::Completions;
pub use diff::probe::ReadPeer;
pub use options::{CheckOptions, CleanupOptions, DatapathChoice, RunOptions};
use print::print_output;
pub(crate) use print::unwritten;
pub use query_options::{ConnectionOptions, DiagnoseOptions, WatchOptions};
use trace::Trace;

use crate::endpoints::ReadConfiguration;
use crate::exit::{Code, Failure};

const EXIT_CODES: &str = "\
Exit codes:
  0   done; of diagnose: nothing is wrong
  1   diff: there are differences; diagnose: something is wrong, or will be
  2   diagnose: connections to the service fail
  64  wrong command line
  65  a service file, or an answer, has a problem
  69  the daemon does not answer, or something it needs is missing
  70  a bug of nodelb
  71  the operating system refuses something
  77  permission or a capability is missing
  78  the configuration has a problem

See nodelb(8) and nodelb.toml(5).";

/// Host-level service load balancer.
///
/// nodelb reads services and their backends from Kubernetes and from files, and makes every connection of this host to a service address
/// reach a good backend.
#[derive(Debug, Parser)]
#[command(name = "nodelb", version, after_help = EXIT_CODES, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    ///
    /// Reads the configuration and the services, programs the kernel, and keeps it so. SIGHUP reloads the
    /// configuration; SIGTERM ends the daemon and leaves traffic flowing.
    Run(RunOptions),
    /// Check the configuration and what it names, and show every problem
    CheckConfig(CheckOptions),
    /// Show on one screen how the daemon and the node stand
    Status(Asking),
    /// Show every service, where it was read and how it stands
    Services(Rows),
    /// Show every service address, its backends and the time of its last change
    Frontends(Frontends),
    /// Show every backend, and whether it may be chosen
    Backends(DaemonAddresses),
    /// Show what the kernel holds now, read back from it
    Maps(DaemonAddresses),
    /// Show where source, memory and kernel differ, with the likely cause
    ///
    /// Ends with 1 if they do.
    Diff(diff::DiffOptions),
    /// Show changes of services and their backends: when, made by which client, and when the kernel had them
    History(History),
    /// Explain what happens to a connection to an address
    Trace(Trace),
    /// Show every place services are read from, and what is wrong with it
    Sources(Asking),
    /// Show every address an apiserver may have, which one is in use and why
    Apiservers(Asking),
    /// Show the configuration in effect
    Config(Asking),
    /// Find out why a service does not work: the most likely cause first
    ///
    /// Asks the daemon, an apiserver and, with connections made from here, the service itself, as far as each can be
    /// reached. Ends with 0 when nothing is wrong, 1 for a warning, 2 when connections fail.
    Diagnose(DiagnoseOptions),
    /// Show changes of Services and EndpointSlices as an apiserver reports them
    ///
    /// Each event with what differs. Needs no daemon. Ends when it is interrupted.
    Watch(WatchOptions),
    /// Remove everything nodelb left in the kernel: service addresses stop working at once
    ///
    /// Stopping the daemon leaves its maps and programs in place, so that connections go on. This takes them away.
    /// It refuses while a daemon works with them.
    Cleanup(CleanupOptions),
    /// Print what makes a shell complete commands and options
    Completions(Completions),
    /// End sockets as the daemon says; started by it or by systemd
    #[command(hide = true)]
    Reaper,
}

/// Runs a command of the daemon itself.
pub type Action<Options> = fn(&Options) -> Result<(), Failure>;

/// Runs a command that prints. Everything except problems goes to the writer.
pub type Telling<Options> = fn(&Options, &mut dyn Write) -> Result<(), Failure>;

/// The commands that the daemon's package runs, and the functions that it provides for other commands.
#[derive(Clone, Copy, Debug)]
pub struct Actions {
    /// `run`: returns after the daemon was asked to end.
    pub run: Action<RunOptions>,
    /// `check-config`.
    pub check_config: Telling<CheckOptions>,
    /// `cleanup`.
    pub cleanup: Telling<CleanupOptions>,
    /// `reaper`: returns when the daemon has ended.
    pub reaper: fn() -> Result<(), Failure>,
    /// Reads the configuration, for commands that query an apiserver themselves.
    pub configured: ReadConfiguration,
    /// Returns the peer of a socket of this process, for `diff --probe`.
    pub peer: ReadPeer,
}

/// Returns the definition of the command line, for documents and tests.
pub fn command() -> clap::Command {
    CommandLine::command()
}

/// Parses the arguments, runs the command, and returns the exit code of the process.
pub fn main(args: impl IntoIterator<Item = OsString>, actions: Actions) -> ExitCode {
    let command = match CommandLine::try_parse_from(args) {
        Ok(line) => line.command,
        Err(answer) => {
            // Help and version are answers, not errors. A reader that has closed stdout wants no more of them.
            let _ = answer.print();
            return if answer.use_stderr() { Code::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    match carry_out(&command, actions) {
        Ok(code) => code,
        Err(failure) => {
            exit::eprint_fatal(&print::sanitize(failure.to_string().as_bytes()));
            failure.code.into()
        }
    }
}

fn carry_out(command: &Command, actions: Actions) -> Result<ExitCode, Failure> {
    let done = match command {
        Command::Run(options) => (actions.run)(options),
        Command::CheckConfig(options) => print_output(|out| (actions.check_config)(options, out)),
        Command::Status(asking) => asking.ask("/status", &[]),
        Command::Config(asking) => asking.ask("/config", &[]),
        Command::Completions(completions) => completions.print(),
        Command::Services(rows) => rows.ask("/services"),
        Command::Frontends(frontends) => frontends.ask(),
        Command::Backends(addresses) => addresses.ask("/backends"),
        Command::Maps(addresses) => addresses.ask("/maps"),
        Command::Diff(options) => diff::diff(options, actions.peer),
        Command::History(history) => history.ask(),
        Command::Trace(trace) => trace.ask(),
        Command::Sources(asking) => asking.ask("/sources", &[]),
        Command::Apiservers(asking) => asking.ask("/apiservers", &[]),
        Command::Cleanup(options) => print_output(|out| (actions.cleanup)(options, out)),
        Command::Reaper => (actions.reaper)(),
        Command::Diagnose(options) => {
            return query_options::print_result(|out| diagnose::diagnose(options, actions.configured, out));
        }
        Command::Watch(options) => {
            return query_options::print_stream(|out| observe::watch(options, actions.configured, out));
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
#[path = "tests/lib.rs"]
mod tests;
