//! A daemon with the memory datapath and its own directory of service files.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tempfile::TempDir;

const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");

/// Time limit of every step, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

const SERVICES: &str = "\
[[service]]
name = \"shop/web\"
frontends = [\"198.51.100.7:80\"]
backends = [\"192.0.2.1:8080\"]
";

/// The daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) admin: SocketAddr,
    lines: Receiver<String>,
    directory: TempDir,
}

impl Daemon {
    /// Starts the daemon and waits until it is ready. Returns its log up to then.
    pub(crate) fn start() -> (Self, Vec<String>) {
        Self::start_with("", "first full reconcile is done")
    }

    /// [`Self::start`] with additional configuration; waits for this text in the log.
    pub(crate) fn start_with(more: &str, until: &str) -> (Self, Vec<String>) {
        let directory = TempDir::new().expect("this machine lets it");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("services.d")).expect("this machine lets it");
        fs::write(at("services.d/shop.toml"), SERVICES).expect("this machine lets it");
        let admin =
            TcpListener::bind("127.0.0.1:0").expect("this machine lets it").local_addr().expect("this machine lets it");
        let (services, state) = (at("services.d"), at("state"));
        let config = format!(
            "[files]\ndirectory = {services:?}\n[state]\ndirectory = {state:?}\n[admin]\nlisten = [\"{admin}\"]\n{more}"
        );
        fs::write(at("nodelb.toml"), config).expect("this machine lets it");
        let mut command = Command::new(NODELB);
        command.args(["run", "--datapath", "memory", "--config"]).arg(at("nodelb.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.env_remove("JOURNAL_STREAM").env_remove("NOTIFY_SOCKET").spawn().expect("this machine lets it");
        let stderr = BufReader::new(child.stderr.take().expect("this machine lets it"));
        let (sender, lines) = channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let daemon = Self { child, admin, lines, directory };
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.contains(until)) {
            said.push(
                daemon
                    .lines
                    .recv_timeout(TIMEOUT)
                    .map_err(|error| format!("{error}: {said:#?}"))
                    .expect("it gets ready"),
            );
        }
        (daemon, said)
    }

    /// The path of its configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.directory.path().join("nodelb.toml")
    }

    /// The log lines within this time.
    pub(crate) fn log_within(&self, time: Duration) -> Vec<String> {
        std::thread::sleep(time);
        self.lines.try_iter().collect()
    }

    /// The body of the response to `GET path`.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).expect("this machine lets it");
        stream.set_read_timeout(Some(TIMEOUT)).expect("this machine lets it");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("this machine lets it");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("this machine lets it");
        let (head, body) = answer.split_once("\r\n\r\n").expect("this machine lets it");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(!head.to_lowercase().contains("chunked"), "{head}");
        body.to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().expect("this machine lets it");
        self.child.wait().expect("this machine lets it");
    }
}
