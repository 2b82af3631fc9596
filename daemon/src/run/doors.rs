//! Where the admin API is listened for: loopback addresses, which have to be there, and a unix socket, which is left out
//! with a warning where it cannot be.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

use tracing::{debug, warn};

use crate::admin::Listener;
use crate::admin::socket::{self, Socket};
use crate::config::Admin;
use crate::exit::{Code, Failure};
use crate::log::messages;

/// Everything that is listened on, before there is a runtime. The socket's file is removed when this is dropped.
pub(super) struct Doors {
    tcp: Vec<TcpListener>,
    socket: Option<Socket>,
}

impl Doors {
    /// Opens them.
    ///
    /// # Errors
    /// When an address cannot be listened on: another daemon runs.
    pub(super) fn open(config: &Admin) -> Result<Self, Failure> {
        let tcp = config.listen.iter().map(bind).collect::<Result<_, _>>()?;
        Ok(Self { tcp, socket: open_socket(config) })
    }

    /// The listeners, for the runtime that asks.
    ///
    /// # Errors
    /// When the runtime cannot wait for one.
    pub(super) fn listeners(&mut self) -> io::Result<Vec<Listener>> {
        let tcp = std::mem::take(&mut self.tcp).into_iter();
        let tcp = tcp.map(|listener| tokio::net::TcpListener::from_std(listener).map(Listener::Tcp));
        let unix = self.socket.as_mut().and_then(Socket::take_listener).into_iter();
        tcp.chain(unix.map(|listener| tokio::net::UnixListener::from_std(listener).map(Listener::Unix))).collect()
    }
}

fn open_socket(config: &Admin) -> Option<Socket> {
    let path = config.socket()?;
    match Socket::open(path) {
        Ok(socket) => Some(socket),
        // systemd makes the directory; a daemon that somebody starts by hand has none, and need not.
        Err(socket::Error::NoDirectory) if config.socket == Admin::default().socket => {
            debug!("no {}: its directory does not exist", path.display());
            None
        }
        Err(error) => {
            warn!(
                message_id = %messages::ADMIN_SOCKET_MISSING,
                "admin.socket {} is not there: {error}; the admin API answers on admin.listen only", path.display()
            );
            None
        }
    }
}

fn bind(address: &SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    match listener {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(Failure::message(
            Code::Unavailable,
            format!("{address} is in use: another nodelb runs, or something else has the port; see admin.listen"),
        )),
        other => other.map_err(|error| {
            Failure::message(Code::Unavailable, format!("listening on {address} of admin.listen: {error}"))
        }),
    }
}
