//! The wanted and the open sockets: opens and closes them, and retries those that cannot be opened. Does not know what
//! they are for.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use nix::errno::Errno;
use nodelb_host::clock;
use nodelb_host::register::Register;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::answer::HealthAnswer;
use crate::http::{Binding, Listener, Server, Slots, bind};

/// Returns the answer for a path. Runs in the task of the connection and must not block.
pub(super) type Reply = Arc<dyn Fn(&str) -> HealthAnswer + Send + Sync>;

/// A listening socket with its server. After a drop it is closed soon, with all its connections.
#[derive(Debug)]
pub(super) struct ServerTask(JoinHandle<()>);

impl ServerTask {
    pub(super) fn open(listener: TcpListener, slots: &Arc<Slots>, reply: Reply) -> Self {
        let respond = move |request: Request<Incoming>, _connection| {
            let answer = reply(request.uri().path());
            async { answer.into_response() }
        };
        let server = Server { name: "load balancers", respond, slots: Arc::clone(slots), is_like_go: true };
        Self(tokio::spawn(server.serve(Listener::Tcp(listener), std::future::pending())))
    }

    /// Closes the socket, and waits until the address is free.
    pub(super) async fn close(mut self) {
        self.0.abort();
        // The abort ends the task.
        _ = (&mut self.0).await;
    }
}

impl Drop for ServerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The open and the failed sockets. `L` identifies the user of each: a socket that changes its user is closed and
/// opened again.
pub(super) struct Listeners<L> {
    slots: Arc<Slots>,
    most: usize,
    retry: Duration,
    open: BTreeMap<SocketAddr, (L, ServerTask)>,
    failed: BTreeMap<SocketAddr, (L, io::Error)>,
    retry_at: Option<Instant>,
    takes_foreign: bool,
    register: Register,
}

impl<L: Clone + PartialEq> Listeners<L> {
    /// Opens at most `most` sockets. `register` registers each before it is bound, so that a protected NodePort does not
    /// prevent the bind.
    pub(super) fn new(slots: Arc<Slots>, most: usize, retry: Duration, register: Register) -> Self {
        let (open, failed) = (BTreeMap::new(), BTreeMap::new());
        Self { slots, most, retry, open, failed, retry_at: None, takes_foreign: false, register }
    }

    /// Also opens sockets at addresses that no device has.
    pub(super) fn with_foreign(self) -> Self {
        Self { takes_foreign: true, ..self }
    }

    /// Opens and closes sockets until the open ones are the wanted ones, if possible. Unchanged sockets stay open, and
    /// a failed one is retried when its time has come.
    pub(super) async fn want(&mut self, wanted: &BTreeMap<SocketAddr, L>, reply: impl Fn(SocketAddr, &L) -> Reply) {
        let is_due = self.retry_at.is_some_and(|at| at <= Instant::now());
        self.failed.retain(|at, (label, _)| wanted.get(at) == Some(&*label));
        let is_surplus =
            |(at, (label, _)): (&SocketAddr, &(L, ServerTask))| (wanted.get(at) != Some(label)).then_some(*at);
        let surplus: Vec<SocketAddr> = self.open.iter().filter_map(is_surplus).collect();
        for at in surplus {
            if let Some((_, server)) = self.open.remove(&at) {
                server.close().await;
            }
        }
        for (at, label) in wanted {
            if self.open.contains_key(at) || (self.failed.contains_key(at) && !is_due) {
                continue;
            }
            match self.listen(*at, wanted) {
                Ok(listener) => {
                    self.failed.remove(at);
                    self.open.insert(*at, (label.clone(), ServerTask::open(listener, &self.slots, reply(*at, label))));
                }
                Err(error) => {
                    self.failed.insert(*at, (label.clone(), error));
                }
            }
        }
        if self.failed.is_empty() {
            self.retry_at = None;
        } else if is_due || self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + self.retry);
        }
    }

    /// `[::]` also serves IPv4, unless an IPv4 socket is wanted separately; on a host without IPv6 it serves only IPv4.
    fn listen(&self, at: SocketAddr, wanted: &BTreeMap<SocketAddr, L>) -> io::Result<TcpListener> {
        if self.open.len() >= self.most {
            let most = self.most;
            let message =
                format!("the limit of {most} listening sockets is reached; raise LimitNOFILE of nodelb.service");
            return Err(io::Error::other(message));
        }
        let in_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port()));
        let both_families = at.ip().is_unspecified() && at.is_ipv6() && !wanted.contains_key(&in_v4);
        let binding = Binding { both_families, is_foreign: self.takes_foreign };
        let listener = match bind(at, binding, &self.register) {
            Err(error) if both_families && error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32) => {
                bind(in_v4, binding, &self.register)
            }
            result => result,
        };
        TcpListener::from_std(listener?)
    }

    /// The sockets that cannot be opened, with their users and the errors.
    pub(super) fn failed(&self) -> impl Iterator<Item = (SocketAddr, &L, &io::Error)> {
        self.failed.iter().map(|(at, (label, error))| (*at, label, error))
    }

    /// Waits until a failed socket must be retried; forever if none has failed.
    pub(super) async fn retry_is_due(&self) {
        clock::at(self.retry_at).await;
    }
}

#[cfg(test)]
#[path = "tests/listeners.rs"]
mod tests;
