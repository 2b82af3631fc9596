//! The network between a node and its apiservers: addresses that forward to them, separate hosts
//! behind a link that can be cut, a process that can be stopped. Independent of nodelb.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodelb_prober::exchange::QUESTION;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::Socket;

use crate::forward::join;
use crate::host::{eventually, socket};
use crate::sandbox;

/// Polling interval of a thread that may have to stop, and the time limit for a client's first
/// byte.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const FIRST_BYTE: Duration = Duration::from_secs(5);

/// Makes an address local to the sandbox without adding it to an interface: it represents another
/// host.
pub(crate) fn own(address: &str) {
    ip(&["route", "add", "local", address, "dev", "lo"]);
}

/// Runs `ip` with these arguments; panics if it fails.
pub(crate) fn ip(arguments: &[&str]) {
    let output = sandbox::program("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An address in front of apiservers, such as a cloud load balancer. Forwards TLS clients to the
/// first apiserver that accepts; answers a prober with its own name.
pub(crate) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    forwarded: Arc<AtomicU64>,
}

impl Forwarder {
    pub(crate) fn open(name: &'static str, at: &str, servers: &[&str]) -> Self {
        let listener = Socket::from(TcpListener::bind(at).unwrap());
        listener.listen(1024).unwrap();
        listener.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        let servers: Arc<[SocketAddr]> = servers.iter().map(|server| socket(server)).collect();
        let (stop, forwarded) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&forwarded));
        let accept = move || {
            while !stopped.load(Ordering::Relaxed) {
                let Ok((client, _)) = listener.accept() else { continue };
                let (servers, count) = (Arc::clone(&servers), Arc::clone(&count));
                thread::spawn(move || drop(attend(client.into(), name, &servers, &count)));
            }
        };
        Self { stop, thread: Some(thread::spawn(accept)), forwarded }
    }

    /// Number of forwarded connections.
    pub(crate) fn forwarded(&self) -> u64 {
        self.forwarded.load(Ordering::Relaxed)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn attend(mut client: TcpStream, name: &str, servers: &[SocketAddr], forwarded: &AtomicU64) -> io::Result<()> {
    client.set_read_timeout(Some(FIRST_BYTE))?;
    let mut first = [0];
    if client.peek(&mut first)? == 0 {
        return Ok(());
    }
    if first == [QUESTION] {
        client.read_exact(&mut first)?;
        return client.write_all(format!("{name}\n").as_bytes());
    }
    client.set_read_timeout(None)?;
    let Some(server) = servers.iter().find_map(|server| TcpStream::connect(server).ok()) else { return Ok(()) };
    forwarded.fetch_add(1, Ordering::Relaxed);
    join(&client, &server)
}

/// An address that nodelb must not connect to; counts connections.
pub(crate) struct Trap(TcpListener);

impl Trap {
    pub(crate) fn set(at: &str) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    /// Number of connections since the last call.
    pub(crate) fn caught(&self) -> usize {
        std::iter::from_fn(|| self.0.accept().ok()).count()
    }
}

/// A separate host at the other end of a link.
pub(crate) struct RemoteHost {
    name: String,
    near: String,
    far: String,
}

impl RemoteHost {
    /// Creates the host with this number, 0 to 15.
    pub(crate) fn new(number: u8) -> Self {
        let name = format!("far{number}");
        let [near, far] = [1, 2].map(|last| format!("203.0.113.{}", 128 + 4 * number + last));
        let wire = format!("wire{number}");
        ip(&["netns", "add", &name]);
        ip(&["link", "add", &wire, "type", "veth", "peer", "name", "wire", "netns", &name]);
        ip(&["address", "add", &format!("{near}/30"), "dev", &wire]);
        ip(&["link", "set", &wire, "up"]);
        ip(&["-n", &name, "address", "add", &format!("{far}/30"), "dev", "wire"]);
        ip(&["-n", &name, "link", "set", "wire", "up"]);
        Self { name, near, far }
    }

    /// Its address, with the port of an apiserver.
    pub(crate) fn address(&self) -> String {
        format!("{}:6443", self.far)
    }

    /// A listener on that host.
    pub(crate) fn listen(&self) -> TcpListener {
        let (place, at) = (format!("/run/netns/{}", self.name), self.address());
        let listening = thread::spawn(move || {
            use std::os::fd::AsFd;
            let namespace = File::open(place).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            TcpListener::bind(at).unwrap()
        });
        listening.join().unwrap()
    }

    /// Drops all traffic in both directions without an error: frames go to a station that does not
    /// exist.
    pub(crate) fn cut(&self) {
        const NO_STATION: &str = "02:00:00:00:00:99";
        let wire = self.name.replace("far", "wire");
        ip(&["neigh", "replace", &self.far, "lladdr", NO_STATION, "nud", "permanent", "dev", &wire]);
        ip(&[
            "-n",
            &self.name,
            "neigh",
            "replace",
            &self.near,
            "lladdr",
            NO_STATION,
            "nud",
            "permanent",
            "dev",
            "wire",
        ]);
    }
}

/// `FROM>TO`, set in a process that [`Relay::start`] starts.
const RELAY: &str = "NODELB_TEST_RELAY";

/// A separate process that forwards an address to an apiserver. It runs the test binary with the
/// same test.
pub(crate) struct Relay {
    child: Child,
}

impl Relay {
    /// Must be called first in a test that starts relays: runs the relay if this process is one.
    pub(crate) fn run_if_requested() {
        let Ok(addresses) = std::env::var(RELAY) else { return };
        let (from, to) = addresses.split_once('>').unwrap();
        for client in TcpListener::bind(from).unwrap().incoming() {
            let (client, to) = (client.unwrap(), socket(to));
            thread::spawn(move || TcpStream::connect(to).and_then(|server| join(&client, &server)));
        }
    }

    /// Starts a relay; `test` is the calling test.
    pub(crate) fn start(test: &str, from: &str, to: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(RELAY, format!("{from}>{to}"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        eventually("the relay listens", || TcpStream::connect(from).is_ok());
        Self { child }
    }

    /// SIGSTOP: the kernel still accepts connections and acknowledges data.
    pub(crate) fn freeze(&self) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), Signal::SIGSTOP).unwrap();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
