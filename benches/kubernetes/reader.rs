//! curl, which only reads the watch of the slices: the least that a client can do.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nodelb_apiserver::Role;

use crate::cluster::Content;
use crate::daemon::cpu_of;

const USER: &str = "reader";

/// The running process; killed when dropped.
pub(crate) struct Reader {
    child: Child,
}

impl Reader {
    /// Starts the watch at the present revision.
    pub(crate) fn start(content: &Content, output: Stdio) -> Self {
        let cluster = &content.cluster;
        cluster.allow(USER, Role::admin());
        let token = cluster.token(USER).unwrap();
        let (url, revision) = (content.replica.url(), cluster.revision());
        let child = Command::new("curl")
            .args(["--silent", "--insecure", "--no-buffer", "--header", &format!("Authorization: Bearer {token}")])
            .arg(format!("{url}/apis/discovery.k8s.io/v1/endpointslices?watch=true&resourceVersion={revision}"))
            .stdout(output)
            .spawn()
            .unwrap();
        // Until it is connected.
        std::thread::sleep(Duration::from_secs(1));
        Self { child }
    }

    /// The time of each event with this text.
    pub(crate) fn times_of(&mut self, text: &'static str) -> Receiver<Instant> {
        let (sent, times) = channel();
        let output = BufReader::new(self.child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok).filter(|line| line.contains(text)) {
                // The receiver may have seen enough.
                _ = (sent.send(Instant::now()), line);
            }
        });
        times
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu_of(&self.child)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The process may have ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
