//! A client on the node: a process in its cgroup, which connects on request.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::{PROTOCOLS, TEST};
use crate::host::{in_cgroup, say};
use crate::outside::TRANSPORTS;
use crate::talk::{TIMEOUT, ask};

/// Set in the process that is a client.
const CLIENT_OF_NODE: &str = "NODELB_TEST_CLIENT";

/// A running client; killed when dropped.
pub(super) struct ClientOfNode {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ClientOfNode {
    /// Must be called first in the test: connects if this process is one.
    pub(super) fn run_if_requested() {
        if std::env::var(CLIENT_OF_NODE).is_err() {
            return;
        }
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let (transport, to) = line.split_once(' ').unwrap();
            let transport = TRANSPORTS[usize::from(transport == PROTOCOLS[1])];
            say(&format!("got {:?}", ask(to, transport, TIMEOUT).map(drop)));
        }
        std::process::exit(0);
    }

    /// Starts a process in this cgroup.
    pub(super) fn start(cgroup: &Path) -> Self {
        let mut command = in_cgroup(cgroup, std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]).env(CLIENT_OF_NODE, "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// The result of a question, as text.
    pub(super) fn ask(&mut self, transport: usize, to: &str) -> String {
        writeln!(self.input, "{} {to}", PROTOCOLS[transport]).unwrap();
        let lines = (&mut self.output).lines().map(Result::unwrap);
        let mut got = lines.filter_map(|line| line.split_once("got ").map(|(_, got)| got.to_owned()));
        got.next().expect("the client lives")
    }
}

impl Drop for ClientOfNode {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
