//! A sandbox for tests that need root: its own mount, network and process namespaces, bpffs and
//! cgroup. Creates and removes them, also after `kill -9`. Independent of nodelb.
//!
//! The test runs twice. The outer process creates a cgroup and starts a janitor that removes it when the test process
//! has ended for any reason; then it runs the same test again inside new namespaces. The inner process finds the
//! prepared sandbox and runs the body of the test.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The cgroup of the sandbox; set only in the inner process.
const INNER: &str = "NODELB_SANDBOX_CGROUP";

/// The temporary directory of a sandbox, which it has for itself: in their process namespaces, tests that run at the
/// same time have the same process ID, and so the same names for their files.
const TEMPORARY: &str = "/dev/shm";

/// Time limit of one test: far more than any takes, so that a test that hangs is named. `NODELB_TEST_SECONDS` changes it.
const SECONDS: &str = "900";

/// The environment variable with a file where each test adds a line: its seconds, those of processors, and its name.
const TIMES: &str = "NODELB_TEST_TIMES";

/// The exit status of `timeout` after it has killed its command.
const KILLED: i32 = 137;

/// Every address of this range is local inside the sandbox, so that backends can listen on it. The
/// other documentation ranges (198.51.100.0/24, 203.0.113.0/24, the rest of 2001:db8::/32) have no
/// route: a connection to a frontend there that is not translated fails with ENETUNREACH.
pub(crate) const BACKENDS_V4: &str = "192.0.2.0/24";
/// See [`BACKENDS_V4`].
pub(crate) const BACKENDS_V6: &str = "2001:db8:b::/48";

/// The resources of a test inside the sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The cgroup of the test, which the test is a member of. Programs are attached here, never to
    /// the root cgroup.
    pub(crate) cgroup: PathBuf,
    /// A new bpffs.
    pub(crate) bpffs: PathBuf,
}

/// Runs `body` in a sandbox. `test` is the name of the calling test as in `cargo test -- --list`.
pub(crate) fn run(test: &str, body: impl FnOnce(&Sandbox)) {
    match std::env::var_os(INNER) {
        Some(cgroup) => body(&enter(PathBuf::from(cgroup))),
        None => outside(test),
    }
}

fn outside(test: &str) {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test loads BPF programs and makes namespaces: run it as root (sudo -E cargo test, or make test)"
    );
    let cgroup = OwnCgroup::make();
    let this_binary = std::env::current_exe().expect("the path of the test binary");
    let limit = std::env::var("NODELB_TEST_SECONDS").unwrap_or_else(|_| SECONDS.into());
    let begun = Instant::now();
    let status = program("setpriv")
        .args(["--pdeathsig", "KILL", "timeout", "--foreground", "--signal=KILL", &limit])
        .args(["setpriv", "--pdeathsig", "KILL"])
        .args(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(this_binary)
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(INNER, &cgroup.path)
        .env("TMPDIR", TEMPORARY)
        .stdin(Stdio::null())
        .status()
        .expect("setpriv runs");
    note_time(test, begun.elapsed(), &cgroup.path);
    drop(cgroup);
    let late = if status.code() == Some(KILLED) { format!(", killed, perhaps after {limit} s") } else { String::new() };
    assert!(status.success(), "{test} failed inside its sandbox ({status}{late}); its output is above");
}

fn note_time(test: &str, took: Duration, cgroup: &Path) {
    let Some(file) = std::env::var_os(TIMES) else { return };
    let statistics = fs::read_to_string(cgroup.join("cpu.stat")).unwrap_or_default();
    let used = statistics.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
    let used = Duration::from_micros(used.unwrap_or_default());
    let line = format!("{:.1} {:.1} {test}\n", took.as_secs_f64(), used.as_secs_f64());
    let file = fs::File::options().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of NODELB_TEST_TIMES");
}

fn enter(cgroup: PathBuf) -> Sandbox {
    let bpffs = PathBuf::from("/sys/fs/bpf");
    // Mounts must not propagate to the host.
    command("mount", &["--make-rprivate", "/"]);
    command("mount", &["-t", "bpf", "bpf", "/sys/fs/bpf"]);
    command("mount", &["-t", "tmpfs", "tmpfs", TEMPORARY]);
    command("ip", &["link", "set", "lo", "up"]);
    command("ip", &["address", "add", BACKENDS_V4, "dev", "lo"]);
    command("ip", &["-6", "route", "add", "local", BACKENDS_V6, "dev", "lo"]);
    // IPv6 has no local subnets on lo: binding to any address of the range requires this.
    fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").expect("ip_nonlocal_bind");
    fs::write(cgroup.join("cgroup.procs"), "0").expect("joining the test's cgroup");
    Sandbox { cgroup, bpffs }
}

/// Runs a program, which must succeed.
pub(crate) fn command(name: &str, args: &[&str]) {
    let output = program(name).args(args).output().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(output.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A program that tests need. Panics with the name of its package if it is not installed.
pub(crate) fn program(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Those of administrators may not be in the path of a test's user.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    Command::new(found.unwrap_or_else(|| panic!("{name} is missing: install the Debian package {}", package_of(name))))
}

/// The Debian package of a program, by the list of `make deps`.
fn package_of(program: &str) -> &'static str {
    let rows = include_str!("../../scripts/deps.sh").lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let package = rows.filter(|row| row.len() == 3 && row[2] == program).map(|row| row[1]).next();
    package.unwrap_or("that contains it, and add it to scripts/deps.sh")
}

/// A cgroup that is removed with this process: the janitor waits until its standard input is
/// closed, kills the processes in the cgroup and removes it.
struct OwnCgroup {
    path: PathBuf,
    janitor: Child,
    alive: Option<ChildStdin>,
}

impl OwnCgroup {
    fn make() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        const SWEEP: &str = r#"
            cat >/dev/null
            echo 1 >"$0/cgroup.kill"
            tries=0
            while [ -d "$0" ] && [ $tries -lt 100 ]; do
                find "$0" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
                tries=$((tries + 1))
            done
            [ ! -d "$0" ]"#;
        let name = format!("nodelb-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = cgroup2_mount().join(name);
        let mut janitor = program("setsid")
            .args(["sh", "-c", SWEEP])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setsid runs");
        let alive = janitor.stdin.take();
        // The janitor starts first, so that the cgroup is removed in any case.
        fs::create_dir(&path).unwrap_or_else(|error| panic!("making {}: {error}", path.display()));
        Self { path, janitor, alive }
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        self.alive = None;
        let status = self.janitor.wait();
        if !status.is_ok_and(|status| status.success()) {
            let _ = writeln!(std::io::stderr(), "cgroup {} could not be removed", self.path.display());
        }
    }
}

/// The mount point of cgroup v2, with or without v1.
fn cgroup2_mount() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc/self/mountinfo");
    let found = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        after.starts_with("cgroup2 ").then(|| Path::new(point).to_path_buf())
    });
    found.expect("a cgroup v2 mount (mount -t cgroup2 none /sys/fs/cgroup)")
}
