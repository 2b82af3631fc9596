//! Options of the commands that do more than query a running daemon.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// Options of `nodelb run`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct RunOptions {
    /// Configuration file [default: /etc/nodelb/nodelb.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Datapath, overrides the configuration: memory needs no privilege and translates nothing
    #[arg(long, value_name = "WHICH")]
    pub datapath: Option<DatapathChoice>,
    /// Socket of a reaper that another program starts, as systemd does for nodelb.service; without it `run` starts one
    #[arg(long, value_name = "PATH")]
    pub reaper: Option<PathBuf>,
}

/// The datapaths, on the command line and in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DatapathChoice {
    /// BPF maps and programs.
    Kernel,
    /// Everything but translation.
    Memory,
}

/// Options of `nodelb check-config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct CheckOptions {
    /// Configuration file [default: /etc/nodelb/nodelb.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Check only the syntax, the keys and their values, not the files that they refer to
    #[arg(long)]
    pub keys: bool,
}

/// Options of `nodelb cleanup`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct CleanupOptions {
    /// Configuration file that names the pin directory [default: /etc/nodelb/nodelb.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Pin directory, overrides the configuration
    #[arg(long, value_name = "PATH")]
    pub pin_directory: Option<PathBuf>,
    /// List nodelb's programs that are pinned in no mounted BPF file system and that no process holds, and detach them
    /// after a confirmation; nodelb may be running
    #[arg(long, conflicts_with = "pin_directory")]
    pub hidden: bool,
    /// With --hidden: detach them without asking
    #[arg(long, requires = "hidden")]
    pub yes: bool,
}
