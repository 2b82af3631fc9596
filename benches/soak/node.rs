//! nodelb as a process that is killed and restarted with the same configuration, state and pins.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Content, NODE};
use crate::dns;
use crate::lab::{NODE_A, UPLINK};
use crate::relay::Relay;
use crate::sandbox::Sandbox;

/// The log line that accompanies READY=1.
const READY: &str = "every source is synced and the first full reconcile is done";

/// Seconds after which nodelb forgets a UDP client outside: so short that a sample need not wait for long.
const UDP_TIMEOUT: u32 = 30;

/// The default address of the admin API.
const ADMIN: &str = "127.0.0.1:9890";

pub(crate) struct Node {
    directory: TempDir,
    pub(crate) pins: PathBuf,
    child: Option<Child>,
    starts: u32,
}

impl Node {
    pub(crate) fn new(sandbox: &Sandbox, cgroup: &Path, content: &Content, relays: &[Relay; 2]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let url = format!("https://{}", relays[0].address);
        fs::write(path("kubeconfig"), content.cluster.kubeconfig(&[&url]).unwrap()).unwrap();
        fs::create_dir(path("services.d")).unwrap();
        fs::write(path("services.d/dns.toml"), dns::services()).unwrap();
        let pins = sandbox.bpffs.join("nodelb");
        let servers: String =
            relays.iter().map(|relay| format!("[[kubernetes.apiserver]]\naddress = \"{}\"\n", relay.address)).collect();
        let config = format!(
            "[state]\ndirectory = {:?}\n[files]\ndirectory = {:?}\n[datapath]\ncgroup = {:?}\npin-directory = {:?}\n\
             [node]\nname = {NODE:?}\nnodeport-addresses = [\"{}/32\"]\n\
             [packets]\nmode = \"on\"\nudp-timeout = \"{UDP_TIMEOUT}s\"\n[dns]\nservers = {:?}\n\
             [kubernetes]\nkubeconfig = {:?}\n{servers}",
            directory.path().join("state"),
            path("services.d"),
            cgroup,
            pins,
            NODE_A[0],
            dns::SERVERS.map(|server| server.to_string()),
            path("kubeconfig"),
        );
        fs::create_dir(path("state")).unwrap();
        fs::write(path("nodelb.toml"), config).unwrap();
        Self { directory, pins, child: None, starts: 0 }
    }

    /// Starts the daemon and waits until it is ready.
    pub(crate) fn start(&mut self) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nodelb"))
            .args(["run", "--config"])
            .arg(self.directory.path().join("nodelb.toml"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (ready_in, ready) = channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| show(&line, &ready_in)));
        self.child = Some(child);
        self.starts += 1;
        ready.recv_timeout(Duration::from_secs(60)).expect("nodelb becomes ready");
    }

    /// Waits until the packet programs are attached to the device that leads to the clients outside.
    pub(crate) fn wait_for_programs(&self) {
        let is_attached = || {
            let devices: Value = serde_json::from_str(&Self::get("/devices?output=json")).unwrap();
            let mut rows = devices["devices"].as_array().into_iter().flatten();
            rows.any(|row| row["device"] == UPLINK && row["programs"] == "attached")
        };
        let tries = (0..300).any(|_| {
            is_attached() || {
                sleep(Duration::from_millis(100));
                false
            }
        });
        assert!(tries, "no programs at {UPLINK}: {}", Self::get("/devices"));
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn starts(&self) -> u32 {
        self.starts
    }

    pub(crate) fn state_directory(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// The body of a response of the admin API.
    pub(crate) fn get(target: &str) -> String {
        let mut stream = TcpStream::connect(ADMIN).unwrap();
        write!(stream, "GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn show(line: &str, ready: &Sender<()>) {
    if line.contains(READY) {
        // The main thread waits only for the first one.
        _ = ready.send(());
    } else if line.contains("ERROR") || line.contains("panicked") {
        eprintln!("{line}");
    }
}
