//! The command line: its commands and options, each defined once, and what carries each out. Owns parsing, the printing
//! of answers and the exit code. The commands that only read are clients of the admin API ([`client`]); the others are
//! carried out by the [`Actions`] the binary brings.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nodelb_core::addr::Addr;
use nodelb_core::service::ServiceName;

pub mod client;

use crate::exit::{Code, Failure};
use crate::log;

const EXIT_CODES: &str = "\
Exit codes:
  0   done
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
    /// Show every service, where it was read and how it stands
    Services(Rows),
    /// Show every address a client may dial, whom it reaches and since when
    Frontends(Rows),
    /// Show every backend, and whether it may be chosen
    Backends(Rows),
    /// Show what the kernel holds now, read back from it
    Maps(Rows),
    /// Show every place services are read from, and what is wrong with it
    Sources(Asking),
    /// Show every address an apiserver may have, which one is in use and why
    Apiservers(Asking),
    /// Remove everything nodelb left in the kernel: service addresses stop working at once
    ///
    /// Stopping the daemon leaves its maps and programs in place, so that connections go on. This takes them away.
    /// It refuses while a daemon works with them.
    Cleanup(CleanupOptions),
    /// End sockets as the daemon says; started by it
    #[command(hide = true)]
    Reaper(ReaperOptions),
}

/// What `nodelb run` was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct RunOptions {
    /// Configuration file [default: /etc/nodelb/nodelb.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// What holds the maps, whatever the configuration says: memory needs no privilege and translates nothing
    #[arg(long, value_name = "WHICH")]
    pub datapath: Option<DatapathChoice>,
}

/// The datapaths the command line knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatapathChoice {
    /// BPF maps and programs.
    Kernel,
    /// Everything but translation.
    Memory,
}

/// What `nodelb check-config` was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct CheckOptions {
    /// Configuration file [default: /etc/nodelb/nodelb.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
}

/// What `nodelb cleanup` was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct CleanupOptions {
    /// Configuration file that names the pin directory [default: /etc/nodelb/nodelb.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Pin directory, whatever the configuration says
    #[arg(long, value_name = "PATH")]
    pub pin_directory: Option<PathBuf>,
}

/// What the daemon starts its reaper with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ReaperOptions {
    /// Cgroup whose processes' sockets may be ended for the address they dialled
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Rows {
    /// Only this service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service: Option<ServiceName>,
    /// Only this address, whatever the port
    #[arg(long, value_name = "ADDRESS")]
    address: Option<Addr>,
    #[command(flatten)]
    asking: Asking,
}

#[derive(Debug, Args)]
struct Asking {
    /// Tables for people, or JSON for programs
    #[arg(long, value_name = "FORM", default_value = "text")]
    output: Output,
    /// Where the daemon's admin API listens [default: 127.0.0.1:9890, then [::1]:9890]
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Carries out a command that does more than ask a running daemon.
pub type Action<Options> = fn(&Options) -> Result<(), Failure>;

/// The same for a command that prints; what there is to tell besides problems goes to the writer.
pub type Telling<Options> = fn(&Options, &mut dyn Write) -> Result<(), Failure>;

/// What carries out the commands that do more than ask a running daemon.
#[derive(Clone, Copy, Debug)]
pub struct Actions {
    /// `run`: returns when the daemon has been told to end.
    pub run: Action<RunOptions>,
    /// `check-config`.
    pub check_config: Telling<CheckOptions>,
    /// `cleanup`.
    pub cleanup: Telling<CleanupOptions>,
    /// `reaper`: returns when the daemon has ended.
    pub reaper: Action<ReaperOptions>,
}

/// Parses the arguments, carries out the command and says with which code the process ends.
pub fn main(args: impl IntoIterator<Item = OsString>, actions: Actions) -> ExitCode {
    let command = match CommandLine::try_parse_from(args) {
        Ok(line) => line.command,
        Err(answer) => {
            // Help and version are answers, not errors. A reader that is gone has seen enough of either.
            let _ = answer.print();
            return if answer.use_stderr() { Code::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    match carry_out(&command, actions) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log::last_words(&failure.to_string());
            failure.code.into()
        }
    }
}

fn carry_out(command: &Command, actions: Actions) -> Result<(), Failure> {
    match command {
        Command::Run(options) => (actions.run)(options),
        Command::CheckConfig(options) => tell(|told| (actions.check_config)(options, told)),
        Command::Services(rows) => rows.ask("/services"),
        Command::Frontends(rows) => rows.ask("/frontends"),
        Command::Backends(rows) => rows.ask("/backends"),
        Command::Maps(rows) => rows.ask("/maps"),
        Command::Sources(asking) => asking.ask("/sources", []),
        Command::Apiservers(asking) => asking.ask("/apiservers", []),
        Command::Cleanup(options) => tell(|told| (actions.cleanup)(options, told)),
        Command::Reaper(options) => (actions.reaper)(options),
    }
}

fn tell(command: impl FnOnce(&mut dyn Write) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut told = Vec::new();
    let done = command(&mut told);
    print(&told)?;
    done
}

impl Rows {
    /// Names and addresses consist of characters that stand for themselves in a query string.
    fn ask(&self, route: &str) -> Result<(), Failure> {
        let service = self.service.as_ref().map(|service| format!("service={service}"));
        let address = self.address.map(|address| format!("address={address}"));
        self.asking.ask(route, service.into_iter().chain(address))
    }
}

impl Asking {
    fn ask(&self, route: &str, filters: impl IntoIterator<Item = String>) -> Result<(), Failure> {
        let output = match self.output {
            Output::Text => "output=text",
            Output::Json => "output=json",
        };
        let target = filters.into_iter().fold(format!("{route}?{output}"), |target, filter| target + "&" + &filter);
        let addresses = self.admin.map_or_else(client::default_addresses, |address| vec![address]);
        print(&client::get(&addresses, &target)?)
    }
}

/// Writes to stdout: the one place that does. A reader that is gone (`| head`) has seen what it wanted.
fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::message(Code::System, format!("the answer cannot be written to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
