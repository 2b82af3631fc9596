//! The daemon, as a process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::sandbox::Sandbox;

/// The log line that accompanies READY=1.
const READY: &str = "every source is synced and the first full reconcile is done";

/// The running daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    begun: Instant,
    ready: Receiver<()>,
    /// The pin directory of its maps.
    pub(crate) pins: PathBuf,
}

/// The cost of a start.
pub(crate) struct Start {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

/// In megabytes.
pub(crate) struct Memory {
    pub(crate) resident: f64,
    pub(crate) peak: f64,
}

impl Daemon {
    /// Starts it with its state and `services.d` in the directory. `sections` are further sections of its configuration.
    pub(crate) fn start(sandbox: &Sandbox, directory: &Path, sections: &str) -> Self {
        let path = |name: &str| directory.join(name);
        fs::create_dir_all(path("services.d")).unwrap();
        let pins = sandbox.bpffs.join("nodelb");
        let config = format!(
            "{sections}[state]\ndirectory = {:?}\n[files]\ndirectory = {:?}\n\
             [datapath]\ncgroup = {:?}\npin-directory = {:?}\n",
            directory,
            path("services.d"),
            sandbox.cgroup,
            pins
        );
        fs::write(path("nodelb.toml"), config).unwrap();
        let begun = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_nodelb"))
            .args(["run", "--config"])
            .arg(path("nodelb.toml"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sent, ready) = channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if line.contains(READY) {
                    // The receiver waits only for the first one.
                    _ = sent.send(());
                } else if line.contains("WARN") || line.contains("ERROR") {
                    eprintln!("{line}");
                }
            }
        });
        Self { child, begun, ready, pins }
    }

    pub(crate) fn until_ready(&self) -> Start {
        self.ready.recv_timeout(Duration::from_secs(120)).unwrap();
        Start { cpu: self.cpu(), wall: self.begun.elapsed() }
    }

    /// CPU time of the process since the start.
    pub(crate) fn cpu(&self) -> Duration {
        cpu_of(&self.child)
    }

    pub(crate) fn memory(&self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let megabytes = |key: &str| -> f64 {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0 / 1e6
        };
        Memory { resident: megabytes("VmRSS:"), peak: megabytes("VmHWM:") }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// CPU time of the process in nanoseconds, with the threads that have ended; /proc/PID/stat has a resolution of one tick.
pub(crate) fn cpu_of(child: &Child) -> Duration {
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    clock_getcpuclockid(pid).and_then(ClockId::now).unwrap().into()
}
