//! A reaper that is started through its socket, as systemd does for
//! `contrib/systemd/nodelb-reaper.socket`: the daemon has none of its capabilities.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::{Host, backend, eventually, in_cgroup, is_served_by, service};
use crate::outside_devices::{NODE, SERVICE, configure, is_attached, works};
use crate::pod::Pod;
use crate::sandbox;
use crate::stale_sockets::{
    PodWithProcess, assert_in_time, cluster_ip, connected, connected_to, metric, reaper_of, status, until_ended, within,
};

const DNS: &str = "198.51.100.10:53";
const ONE: &str = "192.0.2.11:8080";
const TWO: &str = "192.0.2.12:8080";
/// The user of the reaper.
const USER: u32 = 65533;

/// The socket unit: for each connection it starts a reaper with the privileges of the service unit.
struct SocketUnit {
    path: PathBuf,
    started: Arc<Mutex<Vec<Child>>>,
}

impl SocketUnit {
    fn start(host: &Host, path: &Path, mode: u32) -> Self {
        // Other users may not have access to the build directory.
        let binary = host.path("nodelb");
        fs::copy(env!("CARGO_BIN_EXE_nodelb"), &binary).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let started: Arc<Mutex<Vec<Child>>> = Arc::default();
        let children = Arc::clone(&started);
        let log = host.path("reaper.log");
        thread::spawn(move || {
            for line in listener.incoming() {
                let log = fs::File::options().create(true).append(true).open(&log).unwrap();
                let mut command = sandbox::program("setpriv");
                let caps = |set: &str| format!("--{set}={}", capabilities_of("nodelb-reaper@.service"));
                command.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".into()]);
                command.args([caps("bounding-set"), caps("inh-caps"), caps("ambient-caps"), "--no-new-privs".into()]);
                command.arg(&binary).arg("reaper").env_clear();
                command.stdin(OwnedFd::from(line.unwrap())).stdout(Stdio::null()).stderr(log);
                let child = command.spawn().unwrap();
                children.lock().unwrap().push(child);
            }
        });
        Self { path: path.to_owned(), started }
    }

    /// Waits for the first reaper to exit; returns its status.
    fn ended(&self) -> ExitStatus {
        let mut status = None;
        eventually("the end of a reaper", || {
            status = self.started.lock().unwrap().iter_mut().find_map(|child| child.try_wait().unwrap());
            status.is_some()
        });
        status.unwrap()
    }

    /// The reaper that was started last.
    fn latest(&self) -> Option<Pid> {
        let started = self.started.lock().unwrap();
        started.last().map(|child| Pid::from_raw(child.id().try_into().unwrap()))
    }
}

/// The capabilities that a unit keeps, as options of setpriv(1).
fn capabilities_of(unit: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/systemd").join(unit);
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let each = line.split(' ').map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
    each.fold("-all".into(), |all, one| all + &one)
}

/// The daemon with the privileges of `contrib/systemd/nodelb.service`.
fn as_unit(host: &Host, reaper: &Path) -> crate::host::Daemon {
    as_unit_with(host, reaper, sandbox::program("setpriv"))
}

/// [`as_unit`] with the environment of this command.
fn as_unit_with(host: &Host, reaper: &Path, mut command: Command) -> crate::host::Daemon {
    let least = format!("--bounding-set={}", capabilities_of("nodelb.service"));
    command.args([&least, "--inh-caps=-all", "--no-new-privs", env!("CARGO_BIN_EXE_nodelb")]);
    let mut daemon = host.launch(command, &["--reaper", reaper.to_str().unwrap()]);
    assert!(daemon.wait_ready(), "{}", host.log());
    daemon
}

fn is_up() -> bool {
    metric("nodelb_socket_reaper_up") == Some(1.0)
}

#[test]
fn a_reaper_behind_a_socket_ends_sockets_and_is_replaced() {
    sandbox::run("reaper::a_reaper_behind_a_socket_ends_sockets_and_is_replaced", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", ONE), backend("2", TWO)];
        host.serve("a.toml", &service("shop/dns", &[DNS], &[ONE]));
        let path = host.path("reaper.sock");
        let daemon = as_unit(&host, &path);
        eventually("it is missed", || host.log().contains(&format!("no reaper responds at {}", path.display())));
        assert!(!is_up());
        let unit = SocketUnit::start(&host, &path, 0o600);
        eventually("it is found", is_up);
        host.assert_logged("closing stale sockets resumed");
        let first = unit.latest().unwrap();
        assert_eq!(reaper_of(&daemon), None, "the daemon starts none by itself");
        eventually("it has its name", || status(&process(first), "Name") == "nodelb-reaper");
        // CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
        let kept = format!("{:016x}", 1 << 12 | 1 << 19 | 1 << 21);
        for (field, expected) in
            [("CapInh", "0000000000000000"), ("CapPrm", &kept), ("CapEff", &kept), ("CapBnd", &kept)]
        {
            assert_eq!(status(&process(first), field), expected, "{field}");
        }
        assert!(status(&process(first), "Uid").starts_with(&USER.to_string()));
        assert_eq!(status(&process(daemon.pid()), "CapPrm"), "0000000000000000");

        let pod = PodWithProcess::new(1);
        end_one(&host, &pod, &[ONE], &[TWO]);

        kill(first, Signal::SIGKILL).unwrap();
        eventually("another one", || unit.latest() != Some(first) && is_up());
        host.assert_logged("no reaper responds");
        end_one(&host, &pod, &[TWO], &[ONE]);

        // Changes during the absence of the reaper are processed later.
        let socket = connected_to("1", DNS);
        let second = unit.latest().unwrap();
        kill(second, Signal::SIGKILL).unwrap();
        host.serve("a.toml", &service("shop/dns", &[DNS], &[TWO]));
        until_ended(&socket, Instant::now());
        assert_ne!(unit.latest(), Some(second));

        let last = unit.latest();
        daemon.stop();
        eventually("it ends with the connection", || {
            let mut started = unit.started.lock().unwrap();
            started.last_mut().unwrap().try_wait().unwrap().is_some_and(|status| status.success())
        });
        assert_eq!(unit.latest(), last);
    });
}

fn process(pid: Pid) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Removes the backend of a socket on the host and one in a pod.
fn end_one(host: &Host, pod: &PodWithProcess, before: &[&str], after: &[&str]) {
    let name = if before == [ONE] { "1" } else { "2" };
    eventually("the backend before", || is_served_by(&format!("{DNS}/UDP"), &[&format!("{}/UDP", before[0])]));
    let (here, there) = (connected_to(name, DNS), pod.pod.run(|| connected_to(name, DNS)));
    let start = Instant::now();
    host.serve("a.toml", &service("shop/dns", &[DNS], after));
    let (took, took_there) = thread::scope(|scope| {
        let there = scope.spawn(|| until_ended(&there, start));
        (until_ended(&here, start), there.join().unwrap())
    });
    assert_in_time("a socket of the host is ended by a reaper behind a socket", took);
    assert_in_time("a socket of a pod is ended by a reaper behind a socket", took_there);
}

#[test]
fn sockets_older_than_their_service_count_only_in_the_daemons_cgroup() {
    sandbox::run("reaper::sockets_older_than_their_service_count_only_in_the_daemons_cgroup", |sandbox| {
        const EARLY: &str = "192.0.2.99:53";
        let served = sandbox.cgroup.join("served");
        fs::create_dir_all(&served).unwrap();
        let host = Host::new(&sandbox::Sandbox { cgroup: served.clone(), bpffs: sandbox.bpffs.clone() });
        let _backends = [backend("1", ONE), backend("early", EARLY)];
        let path = host.path("reaper.sock");
        let _unit = SocketUnit::start(&host, &path, 0o600);
        let _daemon = within(&served, sandbox, || as_unit(&host, &path));
        eventually("a reaper", is_up);
        let inside = within(&served, sandbox, || connected(EARLY));
        let outside = connected(EARLY);
        host.serve("a.yaml", &cluster_ip(EARLY, &[ONE]));
        assert_in_time("a socket that came too early", until_ended(&inside, Instant::now()));
        thread::sleep(Duration::from_millis(600));
        assert_eq!(crate::stale_sockets::ask(&outside).unwrap(), "early", "not in the cgroup");
    });
}

#[test]
fn the_reaper_rejects_other_users() {
    sandbox::run("reaper::the_reaper_rejects_other_users", |sandbox| {
        let host = Host::new(sandbox);
        fs::set_permissions(host.path(""), Permissions::from_mode(0o755)).unwrap();
        let ask = |path: &Path, user: u32| {
            let mut command = sandbox::program("setpriv");
            command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
            command.args(["--bounding-set=-all", "curl", "--silent", "--show-error", "--max-time", "10"]);
            let output = command.arg("--unix-socket").arg(path).arg("http://reaper/").output().unwrap();
            String::from_utf8(output.stderr).unwrap()
        };
        let closed = SocketUnit::start(&host, &host.path("closed.sock"), 0o600);
        let said = ask(&closed.path, 65534);
        assert!(said.contains("connect"), "{said}");
        assert_eq!(closed.latest(), None, "it is not even started");

        // If an administrator had made the socket accessible to everyone.
        let open = SocketUnit::start(&host, &host.path("open.sock"), 0o666);
        ask(&open.path, 65534);
        assert_eq!(open.ended().code(), Some(77));
        let said = fs::read_to_string(host.path("reaper.log")).unwrap();
        assert!(said.contains("of user 65534: refusing requests"), "{said}");
    });
}

/// Without tcx links, each change at a device takes CAP_NET_ADMIN, which only the reaper has.
#[test]
fn the_reaper_attaches_programs_to_devices_that_appear_later() {
    sandbox::run("reaper::the_reaper_attaches_programs_to_devices_that_appear_later", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"on\"");
        let path = host.path("reaper.sock");
        let unit = SocketUnit::start(&host, &path, 0o600);
        let (first, _backend) = (Pod::new(0), backend("1", "192.0.2.11:8080"));
        host.serve("web.yaml", SERVICE);
        let mut command = in_cgroup(&sandbox.cgroup.join("node"), "setpriv");
        command.env("NODELB_TEST_HOOKS", "clsact");
        let daemon = as_unit_with(&host, &path, command);
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status(&process(daemon.pid()), set), "0000000000000000", "{set}");
        }
        eventually("programs at pod0", || is_attached("pod0"));
        assert_eq!(filters_at("pod0"), ["nodelb", "nodelb"]);
        eventually("an answer", || works(&first, NODE[0]));

        // The next change meets another reaper.
        kill(unit.latest().unwrap(), Signal::SIGKILL).unwrap();
        let second = Pod::new(1);
        let came = Instant::now();
        eventually("programs at pod1", || is_attached("pod1"));
        assert_in_time("programs at a device that appears later", came.elapsed());
        eventually("an answer there", || works(&second, NODE[1]));

        // Filters that another process removes.
        sandbox::command("tc", &["qdisc", "del", "dev", "pod1", "clsact"]);
        sandbox::command("ip", &["link", "set", "pod1", "mtu", "1400"]);
        eventually("filters again", || filters_at("pod1") == ["nodelb", "nodelb"]);
        daemon.stop();
        assert!(works(&first, NODE[0]), "without a daemon");
        host.cleanup();
        assert_eq!((filters_at("pod0"), filters_at("pod1")), (Vec::new(), Vec::new()));
    });
}

/// The names of the filters at a device.
fn filters_at(device: &str) -> Vec<String> {
    let ifindex = nix::net::if_::if_nametoindex(device).unwrap();
    nodelb_datapath::filters::at_device(ifindex).unwrap()
}
