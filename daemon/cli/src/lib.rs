//! The command line: its commands and options, each defined once, and the functions that run them. Owns parsing and the
//! exit code. Each command is a variant of [`Command`]; its options and its code are in a file below. Commands that
//! only read query the daemon ([`ask`], [`client`]); the others run one of the [`Actions`] of the binary.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use nodelb_report::rows::{Apiservers, Backends, ConfigAnswer, Devices, Maps, Names, Services, Sources};

mod accept;
mod addresses;
pub mod answer;
mod ask;
mod asking;
pub mod client;
mod completions;
pub mod diagnose;
mod diff;
mod drain;
pub mod endpoints;
mod examples;
pub mod exit;
mod follow;
mod history;
mod names;
mod observe;
mod options;
mod packets;
mod print;
mod query_options;
mod similar;
mod status;
mod terminal;
mod times;
mod top;
mod trace;
pub mod without_daemon;
mod yaml;

pub use answer::Output;
use ask::{Connections, DaemonAddresses, Drops, Frontends, Metrics, Rows};
use asking::Asking;
use completions::Completions;
pub use diagnose::ReadForwardDrops;
pub use diff::probe::ReadPeer;
pub use options::{CheckOptions, CleanupOptions, DatapathChoice, RunOptions};
use print::print_output;
pub(crate) use print::unwritten;
use query_options::print_stream;
pub use query_options::{ConnectionOptions, DiagnoseOptions, WatchOptions};
use trace::Trace;
use without_daemon::{Fallback, OpenStoredState, Shown};

use crate::endpoints::ReadConfiguration;
use crate::exit::{Code, Failure};

/// The commands by their purpose, in the order of the help.
const GROUPS: [(&str, &str); 4] = [
    ("Look", "status services frontends backends top sources dns apiservers config maps metrics"),
    ("Explain", "diagnose trace history diff watch"),
    ("Run", "run drain undrain accept check-config cleanup completions version help"),
    ("Packets of clients outside the node", "devices connections drops"),
];

const EXIT_CODES: &str = "\
Exit codes:
  0   success; status, diagnose: no problems found
  1   diff: differences found; status: problems found; diagnose: warning
  2   status: the node is not ready; diagnose: connections to the service fail
  4   there is no such service, address or backend
  64  wrong command line
  65  invalid service file or response
  69  the daemon does not respond, or a requirement is missing
  70  internal error: a bug in nodelb
  71  operating system error
  75  the change is refused for now, such as a drain of the last backend
  77  missing permission or capability
  78  invalid configuration

See nodelb(8) and nodelb.toml(5).";

/// Host-level service load balancer.
///
/// nodelb reads services and their backends from Kubernetes and from files, and balances connections to service
/// addresses over their backends, in the kernel.
#[derive(Debug, Parser)]
#[command(name = "nodelb", version, after_help = format!("{}\n\n{EXIT_CODES}", examples::NODELB), max_term_width = 100)]
struct CommandLine {
    /// Address of the daemon's admin API [default: its socket, then 127.0.0.1:9890 and [::1]:9890]
    // The commands that query the daemon have an option of the same name, which gets this value.
    #[arg(long, global = true, value_name = "ADDRESS:PORT|PATH", help_heading = "Connection")]
    admin: Option<client::At>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    ///
    /// Reads the configuration and the services, and keeps the kernel in sync. SIGHUP reloads the configuration;
    /// SIGTERM stops the daemon, and traffic continues.
    #[command(after_help = examples::RUN)]
    Run(RunOptions),
    /// Check the configuration and the service files
    #[command(after_help = examples::CHECK_CONFIG)]
    CheckConfig(CheckOptions),
    /// Show what is wrong on this node, and a summary, on one screen
    ///
    /// Exit status: 0 no problems, 1 problems, 2 the node is not ready.
    #[command(after_help = examples::STATUS)]
    Status(status::Options),
    /// List services with their source and status
    #[command(visible_alias = "svc", alias = "service", after_help = examples::SERVICES)]
    Services(Rows),
    /// List service addresses with backends and status
    #[command(visible_alias = "fe", alias = "frontend", after_help = examples::FRONTENDS)]
    Frontends(Frontends),
    /// List backends and whether they receive traffic
    #[command(visible_alias = "be", alias = "backend", after_help = examples::BACKENDS)]
    Backends(DaemonAddresses),
    /// Show the content of the kernel maps
    #[command(after_help = examples::MAPS)]
    Maps(DaemonAddresses),
    /// Show differences between source, memory and kernel
    ///
    /// Shows the likely cause of each. Exits with 1 if there are differences.
    #[command(after_help = examples::DIFF)]
    Diff(diff::DiffOptions),
    /// Show what changed, when, who changed it, and when it was applied
    #[command(after_help = examples::HISTORY)]
    History(history::Options),
    /// Explain where a connection to an address would go
    #[command(after_help = examples::TRACE)]
    Trace(Trace),
    /// Show connections per second, the busiest services first
    ///
    /// Counts connections of this node, and of clients outside it if packets are translated. The kernel counts them by
    /// service port, not by backend; nodelb connections lists those of clients outside with their backends. On a
    /// terminal, the table is redrawn until interrupted; otherwise each interval is printed below the last one.
    #[command(after_help = examples::TOP)]
    Top(top::Options),
    /// List the sources of services with their problems
    #[command(after_help = examples::SOURCES)]
    Sources(Asking),
    /// List DNS names of backends in files, and each answer
    #[command(after_help = examples::DNS)]
    Dns(Asking),
    /// List addresses of API servers, which one is in use, and why
    #[command(after_help = examples::APISERVERS)]
    Apiservers(Asking),
    /// List network devices, and whether packets are translated there
    #[command(after_help = examples::DEVICES)]
    Devices(Asking),
    /// List connections of clients outside this node
    #[command(after_help = examples::CONNECTIONS)]
    Connections(Connections),
    /// Show why packets from outside this node were dropped or answered
    #[command(after_help = examples::DROPS)]
    Drops(Drops),
    /// Show the active configuration
    #[command(after_help = examples::CONFIG)]
    Config(Asking),
    /// Find out why a service fails: the likely cause, and a fix
    ///
    /// Queries the daemon and an API server, and connects to the service from here, skipping whatever is unreachable.
    /// Exit status: 0 no problems, 1 warning, 2 outage.
    #[command(after_help = examples::DIAGNOSE)]
    Diagnose(DiagnoseOptions),
    /// Show changes as the API server sends them, or packets
    ///
    /// Prints the differences of each event of a Service or EndpointSlice. Works without the daemon. Runs until
    /// interrupted. With --packets, the daemon reports what becomes of each packet, over its socket.
    #[command(after_help = examples::WATCH)]
    Watch(WatchOptions),
    /// Keep new connections away from a backend
    ///
    /// For one service, or for every service that has the backend now. Existing connections continue. Requires root. The
    /// drain stays over restarts, and ends after --for or with nodelb undrain. If a service would have no healthy backend
    /// left, nothing is drained, unless --force is given.
    #[command(allow_missing_positional = true, after_help = examples::DRAIN)]
    Drain(drain::Drain),
    /// End a drain: the backend receives new connections again
    #[command(allow_missing_positional = true, after_help = examples::UNDRAIN)]
    Undrain(drain::Undrain),
    /// Accept a changed selection of Kubernetes services
    ///
    /// If kubernetes.namespaces, kubernetes.services or kubernetes.label-selector leaves out more than half of the services
    /// that this node knew, nodelb keeps these until the change is accepted. Requires root.
    #[command(after_help = examples::ACCEPT)]
    Accept(Asking),
    /// Remove all BPF programs and maps: service addresses stop working
    ///
    /// A stopped daemon leaves its maps and programs in place, so that traffic continues. This command removes them. It
    /// fails while a daemon uses them.
    #[command(after_help = examples::CLEANUP)]
    Cleanup(CleanupOptions),
    /// Print the metrics for Prometheus
    #[command(after_help = examples::METRICS)]
    Metrics(Metrics),
    /// Print the version
    #[command(after_help = examples::VERSION)]
    Version,
    /// Generate a shell completion script
    #[command(after_help = examples::COMPLETIONS)]
    Completions(Completions),
    /// Close sockets on request of the daemon; started by the daemon or systemd
    #[command(hide = true)]
    Reaper,
}

impl Command {
    /// The options of a command that works without the daemon, and what it shows then.
    fn without_daemon(&mut self) -> Option<(&mut Asking, Shown)> {
        Some(match self {
            Self::Frontends(frontends) if !frontends.watch => (&mut frontends.rows.addresses.asking, Shown::Kernel),
            Self::Backends(addresses) | Self::Maps(addresses) => (&mut addresses.asking, Shown::Kernel),
            Self::Trace(trace) => (&mut trace.asking, Shown::Kernel),
            Self::History(history) if !history.watch => (&mut history.addresses.asking, Shown::History),
            _ => return None,
        })
    }
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
    pub check_config: Telling<CheckOptions>,
    pub cleanup: Telling<CleanupOptions>,
    /// `reaper`: returns when the daemon has ended.
    pub reaper: fn() -> Result<(), Failure>,
    /// Reads the configuration, for commands that query an apiserver themselves.
    pub configured: ReadConfiguration,
    /// Returns the peer of a socket of this process, for `diff --probe` and `diagnose`.
    pub peer: ReadPeer,
    /// Returns the chains of the firewall with the policy to drop forwarded packets, for `diagnose`.
    pub forward_drops: ReadForwardDrops,
    /// Returns what the daemon has stored, for commands that work without it.
    pub stored_state: OpenStoredState,
}

/// Returns the definition of the command line, for documents and tests.
pub fn command() -> clap::Command {
    let mut command = CommandLine::command();
    // Adds the command help.
    command.build();
    let (commands, header) = (grouped(&command), command.get_styles().get_header().to_owned());
    let options = format!("{header}Options:{header:#}\n{{options}}{{after-help}}");
    command.help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}{options}"))
}

/// The list of commands in the help: clap has no groups of them.
fn grouped(command: &clap::Command) -> String {
    let header = command.get_styles().get_header();
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{header}{heading}:{header:#}\n");
        for command in names.split(' ').filter_map(|name| command.find_subcommand(name)) {
            let aliases = command.get_visible_aliases().map(|alias| format!(" [alias: {alias}]"));
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format!("  {:<12}  {about}{}\n", command.get_name(), aliases.collect::<String>());
        }
        text.push('\n');
    }
    text
}

/// Parses the arguments, runs the command, and returns the exit code of the process.
pub fn main(args: impl IntoIterator<Item = OsString>, actions: Actions) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if completions::complete(&args) {
        return ExitCode::SUCCESS;
    }
    let mut command = match command().try_get_matches_from(args).and_then(|found| CommandLine::from_arg_matches(&found))
    {
        Ok(line) => line.command,
        Err(answer) => {
            // Help and version are answers, not errors. A reader that has closed stdout wants no more of them.
            let _ = answer.print();
            return if answer.use_stderr() { Code::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    if let Some((asking, shown)) = command.without_daemon() {
        asking.fallback = Fallback::new(actions.stored_state, shown);
    }
    match carry_out(&command, actions) {
        Ok(code) => code,
        Err(mut failure) => {
            without_daemon::explain(&mut failure, actions.stored_state);
            exit::eprint_fatal(&print::sanitize(failure.to_string().as_bytes()));
            failure.code.into()
        }
    }
}

fn carry_out(command: &Command, actions: Actions) -> Result<ExitCode, Failure> {
    let done = match command {
        Command::Run(options) => (actions.run)(options),
        Command::CheckConfig(options) => print_output(|out| (actions.check_config)(options, out)),
        Command::Config(asking) => asking.ask::<ConfigAnswer>("/config", &[]),
        Command::Metrics(metrics) => metrics.ask(),
        Command::Version => print::print(concat!("nodelb ", env!("CARGO_PKG_VERSION"), "\n").as_bytes()),
        Command::Completions(completions) => completions.print(),
        Command::Services(rows) => rows.list("/services", |answer: &Services| answer.services.is_empty()),
        Command::Frontends(frontends) => frontends.ask(),
        Command::Backends(addresses) => {
            addresses.list("/backends", &[], |answer: &Backends| answer.backends.is_empty())
        }
        Command::Maps(addresses) => addresses.list("/maps", &[], Maps::has_no_services),
        Command::Diff(options) => diff::diff(options, actions.peer),
        Command::History(history) => history.ask(),
        Command::Trace(trace) => trace.ask(),
        Command::Top(options) => options.run(),
        Command::Sources(asking) => asking.ask::<Sources>("/sources", &[]),
        Command::Dns(asking) => asking.ask::<Names>("/dns", &[]),
        Command::Apiservers(asking) => asking.ask::<Apiservers>("/apiservers", &[]),
        Command::Connections(connections) => connections.ask(),
        Command::Drops(drops) => drops.ask(),
        Command::Devices(asking) => asking.ask::<Devices>("/devices", &[]),
        Command::Drain(options) => options.run(),
        Command::Undrain(options) => options.run(),
        Command::Accept(asking) => accept::run(asking),
        Command::Cleanup(options) => print_output(|out| (actions.cleanup)(options, out)),
        Command::Reaper => (actions.reaper)(),
        Command::Status(options) => return options.run(),
        Command::Diagnose(options) => return diagnose::diagnose(options, actions),
        Command::Watch(options) if options.packets => {
            let service = options.service(actions)?;
            print_stream(|out| packets::watch(options, service.as_ref(), out))
        }
        Command::Watch(options) => {
            let service = options.service(actions)?;
            print_stream(|out| observe::watch(options, service.as_ref(), actions.configured, out))
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
#[path = "tests/synopsis.rs"]
mod synopsis;
#[cfg(test)]
#[path = "tests/lib.rs"]
mod tests;
