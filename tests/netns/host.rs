//! A node in a sandbox: its configuration, service files and daemon, and requests to the daemon.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodelb_prober::{Backend, Plan, Tally, Transport, probe};
use serde_json::Value;

use crate::sandbox::{self, Sandbox};

/// Maximum number of polls for a condition that should hold at once: two minutes, for a busy machine.
/// Counts sleeps instead of time because the clock jumps when a virtual machine is paused.
const MAX_POLLS: u32 = 6_000;
const NAP: Duration = Duration::from_millis(20);

/// The binary under test.
pub(crate) const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");

/// Makes the daemon kill itself with SIGKILL after this many map, pin and link operations.
const CRASH_AFTER: &str = "NODELB_TEST_CRASH_AFTER";

/// The milliseconds that `nodelb cleanup` waits for answers under way.
pub(crate) const UNDER_WAY: &str = "NODELB_TEST_UNDER_WAY";

/// Makes connection tracking count as a module.
const CONNTRACK: &str = "NODELB_TEST_CONNTRACK";

/// Makes the daemon use this layout version.
const LAYOUT: &str = "NODELB_TEST_LAYOUT";

/// A node without a daemon. Its files are on a tmpfs that is removed with the sandbox.
pub(crate) struct Host {
    dir: PathBuf,
    cgroup: PathBuf,
    /// Whether daemons have to join the cgroup, because the test is not in it.
    is_test_outside: bool,
    pub(crate) pins: PathBuf,
    layout: AtomicU32,
    lists_connections: AtomicBool,
}

impl Host {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        mount_run();
        Self::with(sandbox, "nodelb", sandbox.cgroup.clone(), false)
    }

    /// A node with a cgroup that contains its daemons and not the test. Connections of the test are
    /// thus those of other machines: no hook translates them.
    pub(crate) fn without_the_test(sandbox: &Sandbox) -> Self {
        mount_run();
        Self::outside(sandbox, "nodelb", "node")
    }

    /// [`Self::without_the_test`] for another node in the sandbox, with its own files, cgroup and pins. Its daemon runs
    /// in the network namespace of the thread that starts it.
    pub(crate) fn another(sandbox: &Sandbox, name: &str) -> Self {
        Self::outside(sandbox, name, name)
    }

    fn outside(sandbox: &Sandbox, name: &str, cgroup: &str) -> Self {
        let cgroup = sandbox.cgroup.join(cgroup);
        fs::create_dir(&cgroup).unwrap();
        Self::with(sandbox, name, cgroup, true)
    }

    fn with(sandbox: &Sandbox, name: &str, cgroup: PathBuf, is_test_outside: bool) -> Self {
        let dir = Path::new("/run").join(format!("{name}-test"));
        fs::create_dir_all(dir.join("services.d")).unwrap();
        let (pins, layout) = (sandbox.bpffs.join(name), AtomicU32::new(1));
        let host = Self { dir, cgroup, is_test_outside, pins, layout, lists_connections: AtomicBool::new(false) };
        host.configure("");
        host
    }

    /// Writes the configuration with these lines in its `[datapath]` section. Packets are translated only if a test has
    /// a section `[packets]`: the others are about the connections of sockets alone.
    pub(crate) fn configure(&self, datapath: &str) {
        // The state directory is in the sandbox unless a test sets it.
        let state = match datapath.contains("[state]") {
            true => String::new(),
            false => format!("[state]\ndirectory = {:?}\n", self.dir.join("state")),
        };
        let packets = if datapath.contains("[packets]") { "" } else { "[packets]\nmode = \"off\"\n" };
        let text = format!(
            "{state}{packets}[files]\ndirectory = {:?}\n[datapath]\ncgroup = {:?}\npin-directory = {:?}\n{datapath}\n",
            self.dir.join("services.d"),
            self.cgroup,
            self.pins
        );
        self.write("nodelb.toml", &text);
    }

    /// Sets the layout version of daemons started from now on.
    pub(crate) fn use_layout(&self, version: u32) {
        self.layout.store(version, Ordering::Relaxed);
    }

    /// For daemons started from now on, connection tracking is a module, as in most kernels: it is listed, not queried.
    pub(crate) fn list_connections(&self) {
        self.lists_connections.store(true, Ordering::Relaxed);
    }

    /// Replaces the content of a service file atomically.
    pub(crate) fn serve(&self, file: &str, text: &str) {
        self.write(&format!("services.d/{file}"), text);
    }

    /// Removes a service file.
    pub(crate) fn withdraw(&self, file: &str) {
        fs::remove_file(self.dir.join("services.d").join(file)).unwrap();
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let new = self.dir.join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.dir.join(file)).unwrap();
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Starts the daemon and waits until it is ready.
    pub(crate) fn start(&self) -> Daemon {
        let mut daemon = self.spawn(None);
        assert!(daemon.wait_ready(), "nodelb ended before it was ready: {:?}\n{}", daemon.child.wait(), self.log());
        daemon
    }

    /// Starts the daemon, which crashes after this many operations, without waiting.
    pub(crate) fn spawn(&self, crash_after: Option<u32>) -> Daemon {
        let mut command = if self.is_test_outside { in_cgroup(&self.cgroup, NODELB) } else { Command::new(NODELB) };
        crash_at(&mut command, crash_after);
        command.env(LAYOUT, self.layout.load(Ordering::Relaxed).to_string());
        if self.lists_connections.load(Ordering::Relaxed) {
            command.env(CONNTRACK, "module");
        }
        self.launch(command, &[])
    }

    /// Starts the daemon through `command`, with these additional arguments.
    pub(crate) fn launch(&self, mut command: Command, arguments: &[&str]) -> Daemon {
        let socket = self.dir.join("notify");
        drop(fs::remove_file(&socket));
        let notify = UnixDatagram::bind(&socket).unwrap();
        notify.set_nonblocking(true).unwrap();
        // Lets a daemon without privileges write to it.
        fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        command.args(["run", "--config"]).arg(self.dir.join("nodelb.toml")).args(arguments);
        command.env("NOTIFY_SOCKET", &socket).env_remove("JOURNAL_STREAM");
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Daemon { child: command.spawn().unwrap(), notify }
    }

    /// `nodelb cleanup`, as an administrator runs it.
    pub(crate) fn cleanup_command(&self) -> Command {
        let mut command = Command::new(NODELB);
        command.arg("cleanup").arg("--config").arg(self.dir.join("nodelb.toml"));
        command
    }

    /// Runs `nodelb cleanup`, which waits for no answer, and crashes after this many operations.
    pub(crate) fn try_cleanup(&self, crash_after: Option<u32>) -> Output {
        let mut command = self.cleanup_command();
        crash_at(&mut command, crash_after);
        command.env(UNDER_WAY, "0").output().unwrap()
    }

    /// Cleans up and checks that no pin is left.
    pub(crate) fn cleanup(&self) {
        let output = self.try_cleanup(None);
        assert!(output.status.success(), "cleanup: {output:?}");
        assert!(self.nothing_pinned(), "left in {}: {:?}", self.pins.display(), self.pinned());
    }

    pub(crate) fn nothing_pinned(&self) -> bool {
        self.pinned().is_empty()
    }

    /// The paths of the pin directory and everything below it.
    pub(crate) fn pinned(&self) -> Vec<PathBuf> {
        if self.pins.exists() { below(&self.pins) } else { Vec::new() }
    }

    /// The log of the daemon so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Waits until the log contains the text: it follows what clients and the admin API observe.
    #[track_caller]
    pub(crate) fn assert_logged(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), || self.log().contains(text));
    }

    /// Waits until the log contains the text so many times; it must not do so more often.
    #[track_caller]
    pub(crate) fn assert_logged_times(&self, text: &str, times: usize) {
        let count = || self.log().matches(text).count();
        eventually(&format!("{text:?} {times} times in the log"), || count() >= times);
        assert_eq!(count(), times, "{text:?}: {}", self.log());
    }
}

impl Drop for Host {
    /// Prints the log of nodelb if the test fails.
    fn drop(&mut self) {
        if thread::panicking() {
            say(&format!("nodelb said:\n{}", self.log()));
        }
    }
}

/// Gives the sandbox a writable `/run`.
/// A command that runs the program in the cgroup.
pub(crate) fn in_cgroup(cgroup: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = sandbox::program("sh");
    command.args(["-c", &format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", cgroup.display())]).arg(program);
    command
}

fn mount_run() {
    let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status().unwrap();
    assert!(mounted.success(), "mounting a tmpfs");
}

fn below(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_path_buf()];
    if path.is_dir() {
        found.extend(fs::read_dir(path).unwrap().flat_map(|entry| below(&entry.unwrap().path())));
    }
    found
}

fn crash_at(command: &mut Command, operations: Option<u32>) {
    match operations {
        Some(n) => command.env(CRASH_AFTER, n.to_string()),
        None => command.env_remove(CRASH_AFTER),
    };
}

/// A running daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    notify: UnixDatagram,
}

impl Daemon {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Waits for READY=1; false if the daemon has exited.
    pub(crate) fn wait_ready(&mut self) -> bool {
        self.wait_for("READY=1")
    }

    /// Waits for a line on the notify socket; false if the daemon has exited.
    pub(crate) fn wait_for(&mut self, line: &str) -> bool {
        let mut buffer = [0; 4096];
        let mut seen = false;
        eventually(line, || {
            while let Ok(length) = self.notify.recv(&mut buffer) {
                seen |= String::from_utf8_lossy(&buffer[..length]).lines().any(|each| each == line);
            }
            seen || !self.is_alive()
        });
        seen
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Sends SIGTERM; panics unless the daemon exits with success.
    pub(crate) fn stop(mut self) {
        let status = self.terminate();
        assert!(status.success(), "nodelb ended with {status} after SIGTERM");
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Sends SIGKILL and waits for the exit.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the exit.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of nodelb", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether a process was killed by SIGKILL.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::SIGKILL as i32)
}

/// Prints how long something took. `NODELB_STRICT=1` enforces the limit: no other run may depend on the speed of the machine.
pub(crate) fn assert_within(what: &str, limit: Duration, took: Duration) {
    say(&format!("{what}: after {took:.1?}, at most {limit:?}"));
    assert!(took <= limit || std::env::var_os("NODELB_STRICT").is_none(), "{what}: after {took:?}");
}

/// Prints a line for the user who runs the test.
pub(crate) fn say(text: &str) {
    drop(writeln!(io::stdout(), "{text}"));
}

/// Waits until `done` holds; panics after a timeout.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..MAX_POLLS {
        if done() {
            return;
        }
        thread::sleep(NAP);
    }
    for path in ["/frontends", "/sources", "/apiservers"] {
        say(&format!("{path}:\n{}", answer(path, "text/plain").unwrap_or_default()));
    }
    panic!("waited in vain for: {what}");
}

/// Requests a path from the admin API; `None` unless the status is 200.
pub(crate) fn get(path: &str) -> Option<Value> {
    answer(path, "application/json").map(|body| serde_json::from_str(&body).unwrap())
}

/// [`get`] with this `Accept` header, as text.
pub(crate) fn answer(path: &str, form: &str) -> Option<String> {
    let mut stream = TcpStream::connect("127.0.0.1:9890").ok()?;
    stream.set_read_timeout(Some(NAP * MAX_POLLS)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {form}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

/// The row of `/frontends` for an address such as `198.51.100.10:80/TCP`.
pub(crate) fn frontend(address: &str) -> Option<Value> {
    let answer = get("/frontends")?;
    let rows = answer["frontends"].as_array().unwrap();
    rows.iter().find(|row| row["address"] == address).cloned()
}

/// The rows of `/history` of a service, oldest first. The recorder collects events for 250 ms.
pub(crate) fn history(service: &str) -> Vec<Value> {
    thread::sleep(Duration::from_millis(350));
    let answer = get(&format!("/history?service={service}")).unwrap_or_default();
    answer["history"].as_array().cloned().unwrap_or_default()
}

/// Whether the address is served by exactly these backends; none or all may be unhealthy.
pub(crate) fn is_served_by(address: &str, backends: &[&str]) -> bool {
    let served: &[&str] = if backends.is_empty() { &["NoBackends"] } else { &["OK", "LastResort"] };
    let is_served = |row: &Value| row["status"].as_str().is_some_and(|status| served.contains(&status));
    frontend(address).is_some_and(|row| is_served(&row) && row["backends"] == Value::from(backends.to_vec()))
}

/// A backend that answers over TCP and UDP on one address.
pub(crate) fn backend(name: &str, address: &str) -> Backend {
    let address = socket(address);
    Backend::start(name, &[(Transport::Tcp, address), (Transport::Udp, address)]).unwrap()
}

pub(crate) fn socket(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// Connects `count` times.
pub(crate) fn connect(address: &str, transport: Transport, count: u32) -> Tally {
    probe::connect_times(Plan::new(socket(address), transport), count)
}

/// The names of the backends at the address; panics if any of 20 connections fails.
pub(crate) fn answering(address: &str) -> Vec<String> {
    let tally = connect(address, Transport::Tcp, 20);
    assert_eq!(tally.failures(), 0, "{address}: {tally}");
    tally.answered.into_keys().collect()
}

/// The errno of one connection; empty if it succeeds.
pub(crate) fn errno(address: &str, transport: Transport) -> String {
    connect(address, transport, 1).failed.into_keys().collect()
}

/// A TOML service file with each frontend over TCP and UDP.
pub(crate) fn service(name: &str, frontends: &[&str], backends: &[&str]) -> String {
    let frontends: Vec<String> =
        frontends.iter().flat_map(|address| ["TCP", "UDP"].map(|protocol| format!("{address}/{protocol}"))).collect();
    format!("[[service]]\nname = {name:?}\nfrontends = {frontends:?}\nbackends = {backends:?}\n")
}
