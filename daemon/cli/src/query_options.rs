//! Options of the commands that query an apiserver themselves, and how these commands run.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, ColorChoice};
use clap_complete::engine::ArgValueCompleter;
use nodelb_core::model::service::ServiceName;

use super::answer::{Format, Output};
use super::client::At;
use super::print::{Sanitizer, is_read};
use super::{client, completions, names};
use crate::Actions;
use crate::exit::Failure;

/// The configuration and the credentials of a command, and the address of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ConnectionOptions {
    /// Configuration file [default: /etc/nodelb/nodelb.toml, if there is one]
    #[arg(long, value_name = "PATH", help_heading = "Connection")]
    pub config: Option<PathBuf>,
    /// Kubeconfig to use instead of the daemon's credentials (its current context)
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the daemon's admin API [default: as configured, then its socket, 127.0.0.1:9890 and [::1]:9890]
    #[arg(long, value_name = "ADDRESS:PORT|PATH", help_heading = "Connection")]
    pub admin: Option<At>,
}

/// Options of `nodelb diagnose`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct DiagnoseOptions {
    /// The service, or one of its addresses
    #[arg(value_name = "[NAMESPACE/]NAME|ADDRESS[:PORT]", add = ArgValueCompleter::new(completions::services))]
    pub service: String,
    /// Output format: text, wide (as with --verbose), json or yaml
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        help_heading = "Output"
    )]
    pub output: Format,
    /// Colorize output: auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true, help_heading = "Output")]
    pub color: ColorChoice,
    /// Also show details and what follows from the causes, and resolve the name of the service
    #[arg(short, long, help_heading = "Output")]
    pub verbose: bool,
    /// Configuration, credentials and daemon.
    #[command(flatten)]
    pub connection: ConnectionOptions,
    /// Do not connect to frontends or backends, and do not resolve names
    #[arg(long)]
    pub no_connect: bool,
}

impl DiagnoseOptions {
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose || self.output == Format::Wide
    }
}

/// Options of `nodelb watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct WatchOptions {
    /// Service to watch, with its EndpointSlices [default: all]
    #[arg(value_name = "[NAMESPACE/]NAME", add = ArgValueCompleter::new(completions::services))]
    pub service: Option<String>,
    /// Watch packets of clients outside the node and what becomes of them, instead of changes; needs the daemon
    #[arg(long, conflicts_with_all = ["config", "kubeconfig"])]
    pub packets: bool,
    /// With --packets: only those that are dropped, answered, or counted as if they were
    #[arg(long, requires = "packets")]
    pub dropped: bool,
    /// With --packets: also write them to this file as pcapng, for Wireshark; - for stdout
    #[arg(long, value_name = "FILE", requires = "packets")]
    pub pcap: Option<PathBuf>,
    /// Output format; JSON is one object per line
    #[arg(short, long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    pub output: Output,
    /// Configuration, credentials and daemon.
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

impl WatchOptions {
    /// Returns the service to watch. A name without a namespace needs the daemon.
    pub(super) fn service(&self, actions: Actions) -> Result<Option<ServiceName>, Failure> {
        let Some(text) = &self.service else { return Ok(None) };
        let (option, others) = (self.connection.admin.as_ref(), client::default_addresses());
        names::resolve_at((option, &others), actions.stored_state, text).map(Some)
    }
}

/// Prints the output of a command line by line, until the command ends or the reader has left.
pub(super) fn print_stream(action: impl FnOnce(&mut dyn Write) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut stdout = LineWriter { text: Sanitizer::default(), reader_is_gone: false };
    match action(&mut stdout) {
        Err(failure) if !stdout.reader_is_gone => Err(failure),
        _ => Ok(()),
    }
}

/// Stdout, flushed after each piece.
struct LineWriter {
    text: Sanitizer,
    reader_is_gone: bool,
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let shown = self.text.pass(bytes);
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(shown.as_bytes()).and_then(|()| stdout.flush());
        self.reader_is_gone |= matches!(&written, Err(error) if error.kind() == ErrorKind::BrokenPipe);
        written.map(|()| bytes.len())
    }

    /// Fails if the reader has left, even if there is nothing to write.
    fn flush(&mut self) -> io::Result<()> {
        let is_gone = !is_read()?;
        self.reader_is_gone |= is_gone;
        if is_gone { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}
