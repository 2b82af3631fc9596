//! `nodelb completions`: prints shell completion scripts, which are generated from the definition of the command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::CommandLine;
use super::print::print;
use crate::exit::Failure;

/// Options of `nodelb completions`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn print(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut CommandLine::command(), "nodelb", &mut script);
        print(&script)
    }
}
