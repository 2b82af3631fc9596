//! nodelb as a process that is killed and restarted with the same configuration, state and pins.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tempfile::TempDir;

use crate::cluster::Content;
use crate::relay::Relay;
use crate::sandbox::Sandbox;

/// The log line that accompanies READY=1.
const READY: &str = "every source is synced and the first full reconcile is done";

/// The default address of the admin API.
const ADMIN: &str = "127.0.0.1:9890";

pub(crate) struct Node {
    directory: TempDir,
    child: Option<Child>,
    starts: u32,
}

impl Node {
    pub(crate) fn new(sandbox: &Sandbox, content: &Content, relays: &[Relay; 2]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let url = format!("https://{}", relays[0].address);
        fs::write(path("kubeconfig"), content.cluster.kubeconfig(&[&url]).unwrap()).unwrap();
        fs::create_dir(path("services.d")).unwrap();
        let servers: String =
            relays.iter().map(|relay| format!("[[kubernetes.apiserver]]\naddress = \"{}\"\n", relay.address)).collect();
        let config = format!(
            "[state]\ndirectory = {:?}\n[files]\ndirectory = {:?}\n[datapath]\ncgroup = {:?}\npin-directory = {:?}\n\
             [kubernetes]\nkubeconfig = {:?}\n{servers}",
            directory.path().join("state"),
            path("services.d"),
            sandbox.cgroup,
            sandbox.bpffs.join("nodelb"),
            path("kubeconfig"),
        );
        fs::create_dir(path("state")).unwrap();
        fs::write(path("nodelb.toml"), config).unwrap();
        Self { directory, child: None, starts: 0 }
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

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn starts(&self) -> u32 {
        self.starts
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
