//! The `nodelb` binary: brings the command line together with what carries its commands out.

use std::process::ExitCode;

use nodelb::cli::{self, Actions};
use nodelb::exit::{Code, Failure};

fn main() -> ExitCode {
    cli::main(
        std::env::args_os(),
        Actions {
            run: |_| Err(Failure::message(Code::Internal, "`run` is not part of this build")),
            check_config: |_, _| Err(Failure::message(Code::Internal, "`check-config` is not part of this build")),
            cleanup: |_| Err(Failure::message(Code::Internal, "`cleanup` is not part of this build")),
        },
    )
}
