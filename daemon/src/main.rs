//! The `nodelb` binary: brings the command line together with what carries its commands out.

use std::process::ExitCode;

use nodelb::cli::{self, Actions};
use nodelb::{check, cleanup, diagnose, observe, reaper, run};

fn main() -> ExitCode {
    let actions = Actions {
        run: run::run,
        check_config: check::check,
        diagnose: diagnose::diagnose,
        watch: observe::watch,
        cleanup: cleanup::cleanup,
        reaper: reaper::run,
    };
    cli::main(std::env::args_os(), actions)
}
