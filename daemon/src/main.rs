//! The `nodelb` binary: connects the command line to the implementations of its commands.

use std::path::Path;
use std::process::ExitCode;

use nodelb::admin::without_daemon;
use nodelb::config::Config;
use nodelb::node::Identity;
use nodelb::sockets::{reaper, sock_diag};
use nodelb::{check, cleanup, run};
use nodelb_cli::Actions;
use nodelb_cli::endpoints::Configured;
use nodelb_cli::exit::{Code, Failure};

fn main() -> ExitCode {
    let actions = Actions {
        run: run::run,
        check_config: check::check,
        cleanup: cleanup::cleanup,
        reaper: reaper::run,
        configured,
        peer: sock_diag::peer,
        stored_state: without_daemon::open,
    };
    nodelb_cli::main(std::env::args_os(), actions)
}

/// The configured addresses that a command may query.
fn configured(path: Option<&Path>) -> Result<Configured, Failure> {
    let config = Config::load(path).map_err(|error| Failure::new(Code::Config, error))?;
    let node = Identity::new(&config.node);
    let node = node.map_err(|error| Failure::message(Code::System, format!("asking for the node's name: {error}")))?;
    let kubernetes = config.kubernetes_settings();
    let Config { admin, state, .. } = config;
    Ok(Configured {
        socket: admin.socket,
        listen: admin.listen,
        kubernetes,
        state_directory: state.directory,
        node: node.name.to_string(),
    })
}
