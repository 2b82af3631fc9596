//! One apiserver of a cluster: a listener, TLS and its connections, in a separate thread.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::answer::{Peer, answer};
use crate::cluster::Cluster;
use crate::faults::{Behaviour, Faults};
use crate::identity::Identity;

/// The options of a replica.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Names and addresses in its certificate; the listen address is added.
    pub names: Vec<String>,
    /// The CA that issues its certificate and the client certificates; `None` is the CA of the
    /// cluster.
    pub identity: Option<Identity>,
    /// ALPN protocols, preferred first.
    pub alpn: Vec<&'static str>,
    /// The initial behaviour.
    pub behaviour: Behaviour,
}

impl Default for ServeOptions {
    /// As kubeadm configures it: `kubernetes` and its longer forms, `localhost`; HTTP/2 and
    /// HTTP/1.1.
    fn default() -> Self {
        let names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
        ];
        Self {
            names: names.map(str::to_owned).to_vec(),
            identity: None,
            alpn: vec!["h2", "http/1.1"],
            behaviour: Behaviour::default(),
        }
    }
}

/// A running apiserver. It stops when dropped.
#[derive(Debug)]
pub struct Replica {
    address: SocketAddr,
    faults: Arc<Faults>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Replica {
    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https://` and the address.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The faults of this replica.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Closes the listener and every connection. To restart it, serve the cluster again at the same
    /// address.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has already printed its panic message.
            let _ = thread.join();
        }
    }
}

impl Cluster {
    /// Serves the cluster on a listener, in the caller's network namespace, until the replica is
    /// dropped.
    ///
    /// # Errors
    /// A name is not valid in a certificate, or the thread cannot be created.
    pub fn serve(&self, listener: TcpListener, options: ServeOptions) -> anyhow::Result<Replica> {
        let address = listener.local_addr().context("the listener has no address")?;
        listener.set_nonblocking(true)?;
        let identity = options.identity.as_ref().unwrap_or(self.identity()).clone();
        let mut names = options.names;
        names.push(address.ip().to_string());
        let tls = identity.server(&names, &options.alpn)?;
        let faults = Arc::new(Faults::new(options.behaviour));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = Server { cluster: self.clone(), identity, tls, faults: faults.clone(), address };
        let thread = std::thread::Builder::new().name(format!("apiserver {address}")).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = server.accept(listener) => {}
                    _ = stopped => {}
                }
            });
            // Dropping the runtime drops every connection.
        })?;
        Ok(Replica { address, faults, stop: Some(stop), thread: Some(thread) })
    }

    /// Serves the cluster on a free port of `127.0.0.1`.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub fn serve_on_free_port(&self) -> anyhow::Result<Replica> {
        self.serve(TcpListener::bind("127.0.0.1:0")?, ServeOptions::default())
    }
}

struct Server {
    cluster: Cluster,
    identity: Identity,
    tls: Arc<ServerConfig>,
    faults: Arc<Faults>,
    address: SocketAddr,
}

/// How long the socket of a drained connection stays open after the last response, as in Go's HTTP/2 server.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between attempts to bind the listener again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

impl Server {
    /// Accepts connections, except while the replica refuses them.
    async fn accept(&self, listener: TcpListener) {
        let mut listening = self.faults.listening.subscribe();
        let mut listener = tokio::net::TcpListener::from_std(listener).ok();
        loop {
            let Some(open) = &listener else {
                listener = self.listen_again(&mut listening).await;
                continue;
            };
            tokio::select! {
                refuse = listening.wait_for(|on| !on) => drop(refuse),
                accepted = open.accept() => {
                    match accepted {
                        Ok((stream, _)) => self.connection(stream),
                        Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
                    }
                    continue;
                }
            }
            listener = None;
        }
    }

    /// Keeps the port and refuses connections until the replica accepts them again.
    async fn listen_again(
        &self,
        listening: &mut tokio::sync::watch::Receiver<bool>,
    ) -> Option<tokio::net::TcpListener> {
        let reserved = loop {
            match reserve(self.address) {
                Ok(socket) => break socket,
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        };
        listening.wait_for(|on| *on).await.ok()?;
        reserved.listen(1024).ok()?;
        tokio::net::TcpListener::from_std(reserved.into()).ok()
    }

    fn connection(&self, stream: TcpStream) {
        // Failure only costs latency.
        let _ = stream.set_nodelay(true);
        let kept_open = stream.as_fd().try_clone_to_owned();
        let wire = self.faults.gate.admit(stream);
        let acceptor = TlsAcceptor::from(self.tls.clone());
        let (cluster, identity, faults) = (self.cluster.clone(), self.identity.clone(), self.faults.clone());
        tokio::spawn(async move {
            // The client notices the end of the connection, whatever the reason.
            let Ok(stream) = acceptor.accept(wire).await else { return };
            let session = stream.get_ref().1;
            let is_http2 = session.alpn_protocol() == Some(b"h2");
            let chain = session.peer_certificates().unwrap_or_default();
            let peer = Arc::new(Peer { user: identity.user(chain), has_certificate: !chain.is_empty() });
            let connection_faults = faults.clone();
            let service =
                service_fn(move |request| answer(cluster.clone(), connection_faults.clone(), peer.clone(), request));
            let builder = auto::Builder::new(TokioExecutor::new());
            // A builder that has to detect the version closes a connection that is drained at once without a GOAWAY.
            let mut builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
            builder.http1().timer(TokioTimer::new()).http2().timer(TokioTimer::new());
            let mut retired = faults.retired.subscribe();
            let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                _ = connection.as_mut() => return,
                _ = retired.changed() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
            // As in Go: a socket that is closed with unread data resets the connection, and a client may then never read
            // the GOAWAY.
            tokio::time::sleep(GOAWAY_TIMEOUT).await;
            drop(kept_open);
        });
    }
}

/// Returns a socket that is bound but does not listen: connections are refused, and no other
/// process gets the port.
fn reserve(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
