//! A daemon with maps in memory under hostile clients: it answers other clients, applies changes,
//! and its memory stays bounded.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{NODELB, nodelb};

/// Time limit of every step, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum growth of memory under hostile clients, in KiB: connections, and 64 MiB of unread
/// responses.
const MAX_GROWTH_KIB: u64 = 160 * 1024;

struct Daemon {
    child: Child,
    scratch: tempfile::TempDir,
    tcp: SocketAddr,
}

impl Daemon {
    fn start() -> Self {
        Self::start_with(false, |_, _| {})
    }

    /// Starts a daemon, and calls `meanwhile` with the path of its configuration, which may be a pipe: then the text is in
    /// a file next to it.
    fn start_with(is_pipe: bool, meanwhile: impl FnOnce(&Child, &Path)) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let tcp = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("loopback");
        let path = |name: &str| scratch.path().join(name).display().to_string();
        fs::create_dir(scratch.path().join("services.d")).expect("a directory");
        let config = format!(
            "[files]\ndirectory = \"{}\"\n[state]\ndirectory = \"{}\"\n[admin]\nlisten = [\"{tcp}\"]\nsocket = \"{}\"\n",
            path("services.d"),
            path("state"),
            path("nodelb.sock")
        );
        fs::write(scratch.path().join(if is_pipe { "nodelb.text" } else { "nodelb.toml" }), config).expect("written");
        if is_pipe {
            let made = Command::new("mkfifo").arg(path("nodelb.toml")).status().expect("mkfifo runs");
            assert!(made.success());
        }
        let child = Command::new(NODELB)
            .args(["run", "--datapath", "memory", "--config", &path("nodelb.toml")])
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        meanwhile(&child, &scratch.path().join("nodelb.toml"));
        let daemon = Self { child, scratch, tcp };
        // The daemon listens before it can handle signals: wait until it responds.
        let socket = daemon.socket().display().to_string();
        daemon.wait("answer", || nodelb(&["frontends", "--admin", &socket]).code == 0);
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("nodelb.sock")
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < TIMEOUT, "no {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Adds a service file and waits until the command line shows the service over TCP and the unix
    /// socket.
    fn applies_a_change(&self, number: usize) {
        let name = format!("shop/web-{number}");
        let text = format!(
            "[[service]]\nname = \"{name}\"\nfrontends = [\"198.51.100.{number}:80/TCP\"]\nbackends = [\"192.0.2.1:8080\"]\n"
        );
        fs::write(self.scratch.path().join(format!("services.d/web-{number}.toml")), text).expect("written");
        let address = format!("198.51.100.{number}:80/TCP");
        for admin in [self.socket().display().to_string(), self.tcp.to_string()] {
            self.wait("change applied", || {
                let said = nodelb(&["frontends", "--service", &name, "--admin", &admin]);
                said.code == 0 && said.stdout.contains(&address)
            });
        }
    }

    /// Resident memory, in KiB.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("procfs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    }

    /// Number of open files.
    fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("procfs").count()
    }

    fn send(&self, bytes: &[u8]) -> Option<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.tcp, Duration::from_secs(1)).ok()?;
        stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let _ = stream.write_all(bytes);
        Some(stream)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hostile_clients_neither_stall_the_daemon_nor_exhaust_its_memory() {
    let daemon = Daemon::start();
    daemon.applies_a_change(1);
    let (before, files) = (daemon.resident(), daemon.files());
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    let endless = request("/frontends").repeat(500);
    let huge = [b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ".as_slice(), &[b'a'; 60_000]].concat();
    let kinds: [Vec<u8>; 7] = [
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: loc".to_vec(),
        b"\x16\x03\x01\x02\x00garbage".to_vec(),
        request("/frontends?watch"),
        request("/maps"),
        endless,
        huge,
    ];
    let mut held = Vec::new();
    for (number, bytes) in kinds.iter().cycle().take(700).enumerate() {
        held.extend(daemon.send(bytes));
        if number % 200 == 0 {
            daemon.applies_a_change(2 + number / 200);
        }
    }
    daemon.applies_a_change(10);
    let room = files_allowed().saturating_sub(held.len() + 100);
    let mut made = 0;
    for n in 0..10_000 {
        let connection = daemon.send(b"");
        made += usize::from(connection.is_some());
        held.extend(connection.filter(|_| made < room));
        if n == 5_000 {
            daemon.applies_a_change(11);
        }
    }
    daemon.applies_a_change(12);
    assert!(made > 9_000, "{made} of 10,000 connections were made");
    let grown = daemon.resident().saturating_sub(before);
    assert!(grown < MAX_GROWTH_KIB, "the daemon has grown by {grown} KiB, from {before} KiB");
    drop(held);
    daemon.wait("descriptor given back", || daemon.files() <= files);
}

/// Raises the limit of open files of this process to the maximum; returns the limit.
fn files_allowed() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, ..limit };
    let allowed = if setrlimit(Resource::Nofile, wanted).is_ok() { limit.maximum } else { limit.current };
    allowed.map_or(usize::MAX, |allowed| usize::try_from(allowed).unwrap_or(usize::MAX))
}

#[test]
fn the_daemon_refuses_requests_of_other_origins() {
    let daemon = Daemon::start();
    let ask = |head: &str| {
        let mut stream = daemon.send(format!("GET / {head}\r\n\r\n").as_bytes()).expect("a connection");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.split(' ').nth(1).unwrap_or("none").to_owned()
    };
    assert_eq!(ask("HTTP/1.1\r\nHost: localhost"), "200");
    assert_eq!(ask("HTTP/1.0"), "200");
    assert_eq!(ask("HTTP/1.1\r\nHost: rebound.example"), "403");
    assert_eq!(ask("HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example"), "403");
    assert_eq!(ask("HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site"), "403");
}

/// The daemon removes its own socket when it stops, but not one of another process.
#[test]
fn the_daemon_removes_its_socket() {
    let mut daemon = Daemon::start();
    let socket = daemon.socket();
    let killed = Command::new("kill").arg(daemon.child.id().to_string()).status().expect("kill runs");
    assert!(killed.success());
    assert!(daemon.child.wait().expect("it ends").success());
    assert!(!Path::new(&socket).exists());
}

/// The configuration is a pipe: the daemon is in its start until the configuration has been written into it.
#[test]
fn a_sighup_during_the_start_is_a_reload() {
    let daemon = Daemon::start_with(true, |child, config| {
        let text = fs::read_to_string(config.with_extension("text")).expect("readable");
        // This waits until the daemon reads.
        let mut pipe = fs::OpenOptions::new().write(true).open(config).expect("opened");
        let sent = Command::new("kill").args(["-HUP", &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        // What a reload refuses.
        fs::remove_file(config).expect("removed");
        fs::write(config, "[log]\nlevel = 3\n").expect("written");
        pipe.write_all(text.as_bytes()).expect("written");
    });
    let socket = daemon.socket().display().to_string();
    daemon.wait("reload", || nodelb(&["status", "--admin", &socket]).stdout.contains("not reloaded"));
}
