//! The listening sockets of the admin API: loopback addresses and a unix socket. nodelb can serve without any of them:
//! a socket that cannot be opened is skipped with a warning and retried until it succeeds, and a unix socket whose file is
//! gone is opened again.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::libc;
use nodelb_host::clock::ticking;
use nodelb_host::messages;
use nodelb_host::register::Register;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::admin::socket::{self, Socket};
use crate::config::Admin;
use crate::http::{self, Binding, LISTEN_AGAIN, Listener};
use crate::reconcile::publish;
use crate::status::Unopened;

/// All listening sockets, before the runtime starts. The file of the unix socket is removed when this is dropped.
pub(super) struct AdminSockets {
    register: Register,
    tcp: Vec<TcpListener>,
    unopened: Vec<Unopened>,
    socket: Arc<Mutex<UnixSocket>>,
}

/// The unix socket that the configuration names, open or not.
struct UnixSocket {
    /// `None` if there is to be none.
    path: Option<PathBuf>,
    socket: Option<Socket>,
    /// Why it could not be opened, as it was reported last.
    why: Option<String>,
}

pub(super) struct Listeners {
    /// Open listeners, and the others as soon as they are open.
    pub(super) open: mpsc::Receiver<Listener>,
    pub(super) unopened: watch::Receiver<Arc<Vec<Unopened>>>,
}

impl AdminSockets {
    /// Opens the listeners that it can, and logs the others. Each TCP socket is registered before it is bound, so that
    /// a NodePort with the same port, left in the maps by an earlier nodelb, does not prevent the bind.
    pub(super) fn open(config: &Admin, register: &Register) -> Self {
        let mut socket = UnixSocket { path: config.socket().map(ToOwned::to_owned), socket: None, why: None };
        socket.keep();
        let (mut tcp, mut unopened) = (Vec::new(), Vec::new());
        for address in &config.listen {
            // A loopback address always belongs to one family.
            match http::bind(*address, Binding::default(), register) {
                Ok(listener) => tcp.push(listener),
                Err(error) => unopened.push(Unopened { address: *address, why: why(&error) }),
            }
        }
        for failed in &unopened {
            warn_of(failed);
        }
        if tcp.is_empty() && socket.socket.is_none() {
            warn!(
                message_id = %messages::LISTENER_FAILED,
                "no address of the admin API is open: commands cannot reach the daemon; traffic is not affected"
            );
        }
        Self { register: Arc::clone(register), tcp, unopened, socket: Arc::new(Mutex::new(socket)) }
    }

    /// The listeners for the current runtime. A task of the runtime retries the addresses that are not open.
    pub(super) fn listeners(&mut self) -> io::Result<Listeners> {
        let (opened, open) = mpsc::channel(self.tcp.len() + 2);
        let (report, unopened) = watch::channel(Arc::new(self.unopened.clone()));
        let tcp = std::mem::take(&mut self.tcp).into_iter();
        let tcp = tcp.map(|listener| tokio::net::TcpListener::from_std(listener).map(Listener::Tcp));
        let unix = locked(&self.socket).take().transpose()?.map(|listener| Ok(Listener::Unix(listener)));
        for listener in tcp.chain(unix) {
            opened.try_send(listener?).map_err(io::Error::other)?;
        }
        tokio::spawn(keep_socket(Arc::clone(&self.socket), opened.clone()));
        if !self.unopened.is_empty() {
            let (unopened, register) = (std::mem::take(&mut self.unopened), Arc::clone(&self.register));
            tokio::spawn(try_again(unopened, register, opened, report));
        }
        Ok(Listeners { open, unopened })
    }
}

/// The task that keeps the unix socket may be running in another thread. It opens none any more, and its share of the socket
/// keeps no file.
impl Drop for AdminSockets {
    fn drop(&mut self) {
        let mut socket = locked(&self.socket);
        (socket.path, socket.socket) = (None, None);
    }
}

impl UnixSocket {
    /// Opens the socket unless the path leads to the open one: its directory may have been missing, or may have been removed
    /// and made again.
    fn keep(&mut self) {
        let Some(path) = self.path.clone() else { return };
        if self.socket.as_ref().is_some_and(Socket::is_there) {
            return;
        }
        match Socket::open(&path) {
            Ok(socket) => {
                if self.socket.is_some() || self.why.is_some() {
                    let path = path.display();
                    info!(message_id = %messages::LISTENER_WORKS, "the admin API listens on admin.socket {path} again");
                }
                (self.socket, self.why) = (Some(socket), None);
            }
            // systemd creates the directory. A daemon that is started by hand has none and needs none.
            Err(socket::Error::NoDirectory) if self.socket.is_none() && path == Admin::default().socket => {
                debug!("no {}: its directory does not exist", path.display());
            }
            Err(error) => {
                let why = error.to_string();
                if self.why.as_ref() != Some(&why) {
                    warn!(
                        message_id = %messages::ADMIN_SOCKET_MISSING,
                        "cannot open admin.socket {}: {why}; the admin API is available on admin.listen only. nodelb retries \
                         every {} s", path.display(), LISTEN_AGAIN.as_secs()
                    );
                    self.why = Some(why);
                }
            }
        }
    }

    /// The listener, if it is not served yet.
    fn take(&mut self) -> Option<io::Result<UnixListener>> {
        self.socket.as_mut().and_then(|socket| socket.listener.take()).map(UnixListener::from_std)
    }
}

/// Every change under the lock is complete, so poisoning does no harm.
fn locked(socket: &Mutex<UnixSocket>) -> MutexGuard<'_, UnixSocket> {
    socket.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the unix socket open until the admin API has ended.
async fn keep_socket(socket: Arc<Mutex<UnixSocket>>, opened: mpsc::Sender<Listener>) {
    let mut tick = ticking(LISTEN_AGAIN);
    while !opened.is_closed() {
        tick.tick().await;
        let kept = Arc::clone(&socket);
        let looked = tokio::task::spawn_blocking(move || locked(&kept).keep()).await;
        let listener = if looked.is_ok() { locked(&socket).take() } else { None };
        match listener {
            // Fails only if the admin API has ended.
            Some(Ok(listener)) => drop(opened.send(Listener::Unix(listener)).await),
            Some(Err(error)) => warn!(message_id = %messages::ADMIN_SOCKET_MISSING, "admin.socket: {error}"),
            None => {}
        }
    }
}

/// Retries the addresses until all are open or the admin API has ended.
async fn try_again(
    mut unopened: Vec<Unopened>,
    register: Register,
    opened: mpsc::Sender<Listener>,
    report: watch::Sender<Arc<Vec<Unopened>>>,
) {
    let mut tick = ticking(LISTEN_AGAIN);
    while !unopened.is_empty() && !opened.is_closed() {
        tick.tick().await;
        let mut left = Vec::new();
        for mut failed in unopened {
            let address = failed.address;
            let listener =
                http::bind(address, Binding::default(), &register).and_then(tokio::net::TcpListener::from_std);
            match listener {
                Ok(listener) => {
                    info!(message_id = %messages::LISTENER_WORKS, "the admin API listens on {address} of admin.listen");
                    // Fails only if the admin API has ended.
                    let _ = opened.send(Listener::Tcp(listener)).await;
                }
                Err(error) => {
                    let why = why(&error);
                    if why != failed.why {
                        failed.why = why;
                        warn_of(&failed);
                    }
                    left.push(failed);
                }
            }
        }
        unopened = left;
        publish(&report, Arc::new(unopened.clone()));
    }
}

fn warn_of(Unopened { address, why }: &Unopened) {
    warn!(
        message_id = %messages::LISTENER_FAILED,
        "cannot open {address} of admin.listen: {why}; nodelb runs without it and retries every {} s",
        LISTEN_AGAIN.as_secs()
    );
}

/// An error of [`http::bind`], with what to do about it.
fn why(error: &io::Error) -> String {
    let remedy = match (error.kind(), error.raw_os_error()) {
        (ErrorKind::AddrInUse, _) => {
            "another process uses the port, perhaps a second nodelb: stop it (ss -ltnp shows it), or change \
             admin.listen; if ss shows none, the programs of another nodelb protect it as a NodePort: remove them \
             with nodelb cleanup and its --pin-directory"
        }
        (ErrorKind::AddrNotAvailable, _) | (_, Some(libc::EAFNOSUPPORT)) => {
            "this host does not have the address (no IPv6?): enable it, or remove it from admin.listen"
        }
        (ErrorKind::PermissionDenied, _) => {
            "nodelb lacks the privilege for this port: choose one above 1023 in admin.listen"
        }
        _ => "see admin.listen",
    };
    format!("{error} ({remedy})")
}

#[cfg(test)]
#[path = "tests/admin_sockets.rs"]
mod tests;
