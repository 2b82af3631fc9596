//! The `nodelb` binary: connects the command line to the implementations of its commands.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::ExitCode;

use nodelb::admin::without_daemon;
use nodelb::config::Config;
use nodelb::node::Identity;
use nodelb::sockets::{nf_tables, reaper};
use nodelb::{check, cleanup, run};
use nodelb_cli::Actions;
use nodelb_cli::endpoints::Configured;
use nodelb_cli::exit::{Code, Failure};
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_host::sock_diag;

fn main() -> ExitCode {
    let actions = Actions {
        run: run::run,
        check_config: check::check,
        cleanup: cleanup::cleanup,
        reaper: reaper::run,
        configured,
        peer,
        forward_drops: nf_tables::forward_drops,
        stored_state: without_daemon::open,
    };
    nodelb_cli::main(std::env::args_os(), actions)
}

/// The configured addresses that a command may query.
fn configured(path: Option<&Path>) -> Result<Configured, Failure> {
    let config = Config::load(path).map_err(|error| Failure::new(Code::Config, error))?;
    let node = Identity::new(&config);
    let node = node.map_err(|error| Failure::message(Code::System, format!("asking for the node's name: {error}")))?;
    let (kubernetes, selection) = (config.kubernetes_settings(), config.kubernetes.selection());
    let Config { admin, state, .. } = config;
    Ok(Configured {
        socket: admin.socket,
        listen: admin.listen,
        kubernetes,
        selection,
        state_directory: state.directory,
        node: node.name.to_string(),
    })
}

/// The peer of a socket of this process, in the kernel's list.
fn peer(socket: BorrowedFd<'_>, source: SocketAddr, protocol: Protocol) -> io::Result<Option<L4Addr>> {
    let peer = sock_diag::peer(socket, source, protocol.number())?;
    Ok(peer.map(|peer| L4Addr::new(peer.ip().into(), peer.port(), protocol)))
}
