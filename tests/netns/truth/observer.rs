//! Processes that connect to every address again and again, from the node, from a pod and from outside, and write what
//! they get. They know nothing of nodelb.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nodelb_prober::{Transport, exchange};

/// The addresses to connect to, separated by commas; set in the processes that [`Observer::start`] starts.
const ADDRESSES: &str = "NODELB_TEST_OBSERVED";
/// A process connects to each address once in this time.
pub(super) const EVERY_MILLIS: u64 = 150;
const EVERY: Duration = Duration::from_millis(EVERY_MILLIS);
/// A connection without an answer within this time has failed.
const TIMEOUT: Duration = Duration::from_millis(LONGEST_MILLIS / 2);
/// The longest time of an exchange: to connect, and to be answered.
pub(super) const LONGEST_MILLIS: u64 = 600;

/// From where clients connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum From {
    Node,
    Pod,
    Outside,
}

impl From {
    pub(super) const ALL: [Self; 3] = [Self::Node, Self::Pod, Self::Outside];

    /// The parameter of `/trace`.
    pub(super) fn parameter(self) -> &'static str {
        match self {
            Self::Node => "host",
            Self::Pod => "pod",
            Self::Outside => "outside",
        }
    }
}

/// One connection: when it began and ended, in milliseconds since 1970, and the name of the backend or the error.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) result: Result<String, String>,
}

/// A running process; killed when dropped.
pub(super) struct Observer {
    child: Child,
    output: PathBuf,
}

impl Observer {
    /// Must be called first in the test: observes if this process is an observer.
    pub(super) fn run_if_requested() {
        let Ok(addresses) = std::env::var(ADDRESSES) else { return };
        let addresses: Vec<SocketAddr> = addresses.split(',').map(|address| address.parse().unwrap()).collect();
        thread::scope(|scope| {
            for (number, address) in addresses.iter().enumerate() {
                scope.spawn(move || observe(*address, EVERY * u32::try_from(number).unwrap() / 24));
            }
        });
    }

    /// Starts a process in the network namespace of the pod or the client, and in the cgroup of the node unless it is
    /// outside. `test` is the calling test.
    pub(super) fn start(test: &str, from: From, addresses: &[String], (cgroup, output): (&Path, PathBuf)) -> Self {
        let join = format!("echo $$ >{}/cgroup.procs && ", cgroup.display());
        let namespace = match from {
            From::Node => "",
            From::Pod => "nsenter --net=/run/netns/pod-a2 ",
            From::Outside => "nsenter --net=/run/netns/client ",
        };
        let join = if from == From::Outside { "" } else { &join };
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{join}exec {namespace}\"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ADDRESSES, addresses.join(","));
        command.stdin(Stdio::null()).stdout(File::create(&output).unwrap()).stderr(Stdio::null());
        Self { child: command.spawn().unwrap(), output }
    }

    /// Ends the process, and returns the connections to each address in the order of their beginnings.
    pub(super) fn finish(mut self) -> BTreeMap<String, Vec<Sample>> {
        drop(self.child.kill());
        drop(self.child.wait());
        let mut samples: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        for line in fs::read_to_string(&self.output).unwrap().lines() {
            let words: Vec<&str> = line.splitn(5, ' ').collect();
            let [begin, end, address, verdict, text] = words[..] else { continue };
            let Ok(begin) = begin.parse() else { continue };
            let result = if verdict == "ok" { Ok(text.to_owned()) } else { Err(text.to_owned()) };
            let sample = Sample { begin, end: end.parse().unwrap(), result };
            samples.entry(address.to_owned()).or_default().push(sample);
        }
        samples
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn observe(address: SocketAddr, offset: Duration) {
    thread::sleep(offset);
    loop {
        let begin = now();
        let result = exchange(address, Transport::Tcp, TIMEOUT);
        let end = now();
        let (verdict, text) = match &result {
            Ok(name) => ("ok", name.clone()),
            Err(failure) => ("failed", failure.to_string()),
        };
        let line = format!("{begin} {end} {address} {verdict} {text}\n");
        if io::stdout().lock().write_all(line.as_bytes()).is_err() {
            return;
        }
        thread::sleep(EVERY.saturating_sub(Duration::from_millis(end - begin)));
    }
}
