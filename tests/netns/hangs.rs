//! Nothing outside the reconcile path stops it: one thing after the other is frozen, at the start of the daemon or later,
//! and each time an endpoint change reaches the kernel, the watchdog is fed, and SIGTERM ends the daemon in its time.
//! ARCHITECTURE.md, "Blocking calls and their threads", has the list of these things.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nodelb_apiserver::{Cluster, Replica};
use nodelb_prober::{Backend, Transport};

use crate::cluster::{self, apply, serve};
use crate::host::{self, Daemon, Host, answer, connect, eventually};
use crate::sandbox::{self, Sandbox};

const WEB: &str = "198.51.100.10:80";
const A: &str = "192.0.2.11:80";
const B: &str = "192.0.2.12:80";
const C: &str = "192.0.2.13:80";

const SERVER: &str = "192.0.2.21:6443";
const API: &str = "198.51.100.80:443";
const X: &str = "192.0.2.31:443";
const Y: &str = "192.0.2.32:443";
const Z: &str = "192.0.2.33:443";

/// Less than `TimeoutStopSec=` of nodelb.service.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

/// Where journald listens.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// A node with one service in a file, and backends that answer with their name.
struct Fixture {
    host: Host,
    _backends: [Backend; 3],
}

impl Fixture {
    fn new(sandbox: &Sandbox) -> Self {
        let host = Host::new(sandbox);
        fs::create_dir_all(host.path("state")).unwrap();
        let backends = [("a", A), ("b", B), ("c", C)].map(|(name, address)| host::backend(name, address));
        let fixture = Self { host, _backends: backends };
        fixture.serve(A);
        fixture
    }

    /// Makes this the backend of the service.
    fn serve(&self, backend: &str) {
        self.host.serve("web.toml", &host::service("shop/web", &[WEB], &[backend]));
    }

    /// Starts the daemon with a watchdog and these variables, and does not wait.
    fn launch(&self, variables: &[String]) -> Daemon {
        let mut command = Command::new("env");
        command.arg("WATCHDOG_USEC=4000000").args(variables).arg(env!("CARGO_BIN_EXE_nodelb"));
        self.host.launch(command, &[])
    }

    /// The daemon that this starts, once it is ready and serves what is in the file.
    fn ready(&self, launch: impl FnOnce() -> Daemon) -> Daemon {
        self.serve(A);
        let mut daemon = launch();
        assert!(daemon.wait_ready(), "nodelb ended: {}", self.host.log());
        reaches(WEB, "a");
        daemon
    }

    /// Freezes something while the daemon runs, which goes on; and so does one that starts while it is frozen. Returns
    /// what is frozen, still so.
    fn outlasts<T>(&self, launch: impl Fn() -> Daemon, freeze: impl FnOnce() -> T) -> T {
        let daemon = self.ready(&launch);
        let frozen = freeze();
        self.still_works(daemon);
        self.still_works(self.ready(&launch));
        frozen
    }

    /// While something is frozen: a change reaches the kernel, the watchdog is fed, the daemon ends.
    fn still_works(&self, mut daemon: Daemon) {
        self.serve(B);
        reaches(WEB, "b");
        feeds_the_watchdog(&mut daemon);
        no_worker_is_blocked(&daemon);
        self.serve(C);
        reaches(WEB, "c");
        ends(daemon);
    }
}

/// A cluster with one service, and backends that answer with their name.
struct Api {
    objects: Cluster,
    _server: Replica,
    _backends: [Backend; 3],
}

impl Api {
    fn new() -> Self {
        let backends = [("x", X), ("y", Y), ("z", Z)].map(|(name, address)| host::backend(name, address));
        let objects = cluster::cluster_at(&[SERVER]);
        apply(&objects, cluster::service("api", "198.51.100.80"));
        let server = serve(&objects, SERVER);
        let api = Self { objects, _server: server, _backends: backends };
        api.serve(X);
        api
    }

    /// Makes this the backend of the service.
    fn serve(&self, backend: &str) {
        apply(&self.objects, cluster::slice("api", &[backend]));
    }
}

/// Waits until connections to the address reach this backend.
fn reaches(address: &str, backend: &str) {
    eventually(&format!("{address} reaches {backend}"), || {
        let tally = connect(address, Transport::Tcp, 3);
        tally.failures() == 0 && tally.answered.keys().eq([backend])
    });
}

/// Not only what was sent before: it is fed every other second.
fn feeds_the_watchdog(daemon: &mut Daemon) {
    for _ in 0..3 {
        assert!(daemon.wait_for("WATCHDOG=1"), "nodelb ended");
    }
}

/// A runtime has two workers: with one of them blocked it seems to work, until something else blocks the other.
fn no_worker_is_blocked(daemon: &Daemon) {
    let tasks = PathBuf::from(format!("/proc/{}/task", daemon.pid()));
    let read = |task: &Path, file| fs::read_to_string(task.join(file)).unwrap_or_default().trim().to_owned();
    let blocked = || {
        let tasks = fs::read_dir(&tasks).unwrap().map(|entry| entry.unwrap().path());
        let workers = tasks.filter(|task| read(task, "comm") == "tokio-rt-worker");
        let places = workers.map(|task| read(&task, "wchan"));
        let waits =
            |place: &String| place != "0" && !place.contains("epoll") && !place.contains("futex") && !place.is_empty();
        places.filter(waits).collect::<Vec<_>>()
    };
    let mut last = Vec::new();
    for _ in 0..200 {
        last = blocked();
        if last.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("workers of the runtime wait in the kernel: {last:?}");
}

fn ends(mut daemon: Daemon) {
    let began = Instant::now();
    let status = daemon.terminate();
    assert!(status.success(), "{status}");
    assert!(began.elapsed() < STOPS_WITHIN, "SIGTERM took {:?}", began.elapsed());
}

/// Writes until the buffer is full.
fn fill(mut send: impl FnMut() -> std::io::Result<usize>) {
    loop {
        match send() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A file system over a directory that answers nothing. Thawed when dropped: what waits for it fails then.
struct Hung {
    at: PathBuf,
    device: Option<File>,
}

impl Hung {
    /// FUSE whose server reads no request, as a network file system whose server is away.
    fn over(at: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let mounted = Command::new("mount")
            .args(["-i", "-n", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0", "hung"])
            .arg(at)
            .stdin(Stdio::from(device.try_clone().unwrap()))
            .status()
            .unwrap();
        assert!(mounted.success(), "mounting FUSE over {}", at.display());
        Self { at: at.to_path_buf(), device: Some(device) }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.device = None;
        drop(Command::new("umount").arg("-l").arg(&self.at).status());
    }
}

/// journald, which reads or does not.
struct Journald {
    socket: UnixDatagram,
}

impl Journald {
    fn start() -> Self {
        fs::create_dir_all(Path::new(JOURNAL).parent().unwrap()).unwrap();
        drop(fs::remove_file(JOURNAL));
        let socket = UnixDatagram::bind(JOURNAL).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket }
    }

    /// No more fits into its socket.
    fn freeze(&self) {
        let client = UnixDatagram::unbound().unwrap();
        client.set_nonblocking(true).unwrap();
        fill(|| client.send_to(b"MESSAGE=full\n", JOURNAL));
    }

    /// Everything it gets until a message has this in it.
    fn read_until(&self, text: &str) -> String {
        let mut all = String::new();
        let mut buffer = vec![0; 1 << 16];
        eventually(text, || {
            while let Ok(length) = self.socket.recv(&mut buffer) {
                all.push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
            all.contains(text)
        });
        all
    }
}

/// What systemd sets if stderr is the journal, for the file that the host makes stderr.
fn journal_stream(host: &Host) -> String {
    fs::write(host.path("log"), "").unwrap();
    let file = fs::metadata(host.path("log")).unwrap();
    format!("JOURNAL_STREAM={}:{}", file.dev(), file.ino())
}

#[test]
fn journald_that_does_not_read_stops_nothing() {
    sandbox::run("hangs::journald_that_does_not_read_stops_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let journald = Journald::start();
        let stream = journal_stream(&fixture.host);
        let launch = || fixture.launch(std::slice::from_ref(&stream));
        let daemon = fixture.ready(launch);
        let output = journald.read_until("every source is synced");
        for field in ["PRIORITY\u{a}", "SYSLOG_IDENTIFIER", "MESSAGE_ID", "starting nodelb", "CODE_FILE"] {
            assert!(output.contains(field.trim_end()), "{field}: {output}");
        }
        journald.freeze();
        fixture.still_works(daemon);

        // From the start: the first thing that the journal's library does is to send.
        let mut daemon = fixture.ready(launch);
        feeds_the_watchdog(&mut daemon);
        fixture.serve(B);
        reaches(WEB, "b");
        // What waited is written when it reads again, in order.
        let output = journald.read_until("applied: shop/web");
        let (starts, applied) = (output.find("starting nodelb").unwrap(), output.rfind("applied: shop/web").unwrap());
        assert!(starts < applied, "{output}");
        journald.freeze();
        ends(daemon);
        assert_eq!(fixture.host.log(), "", "nothing goes to stderr while there is a journal");
    });
}

#[test]
fn a_stderr_that_is_not_read_stops_nothing() {
    sandbox::run("hangs::a_stderr_that_is_not_read_stops_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let path = fixture.host.path("stderr");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut reader =
            File::options().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(&path).unwrap();
        let launch = || {
            let mut command = Command::new("sh");
            let script = format!("exec env WATCHDOG_USEC=4000000 \"$0\" \"$@\" 2>{}", path.display());
            command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_nodelb"));
            fixture.host.launch(command, &[])
        };
        fixture.outlasts(launch, || {
            let mut text = [0; 1 << 16];
            let length = reader.read(&mut text).unwrap();
            assert!(String::from_utf8_lossy(&text[..length]).contains("starting nodelb"));
            fill(|| reader.write(&[b'.'; 512]));
        });
        // The last words of a start that fails are bounded, too.
        fixture.host.write("nodelb.toml", "what = ");
        let began = Instant::now();
        let status = launch().wait();
        assert_eq!(status.code(), Some(78));
        assert!(began.elapsed() < STOPS_WITHIN);
    });
}

#[test]
fn a_state_directory_that_hangs_stops_nothing() {
    sandbox::run("hangs::a_state_directory_that_hangs_stops_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        drop(fixture.outlasts(|| fixture.launch(&[]), || Hung::over(&fixture.host.path("state"))));
    });
}

/// Whether Kubernetes was a source cannot be read while the directory hangs, and the configuration does not contain it
/// any more: what the kernel has of it stays.
#[test]
fn a_state_directory_that_hangs_takes_nothing_of_a_source_that_is_not_configured() {
    sandbox::run("hangs::a_state_directory_that_hangs_takes_nothing_of_a_source_that_is_not_configured", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let api = Api::new();
        cluster::join(&fixture.host, &api.objects, &[SERVER]);
        let launch = || fixture.launch(&[]);
        let daemon = fixture.ready(launch);
        reaches(API, "x");
        ends(daemon);

        fixture.host.configure("");
        // The log follows the state.
        let assert_warned =
            |times| fixture.host.assert_logged_times(" WARN kubernetes is no longer configured as a source", times);
        let hung = fixture.outlasts(launch, || {
            reaches(API, "x");
            assert_warned(1);
            Hung::over(&fixture.host.path("state"))
        });
        reaches(API, "x");
        assert_warned(2);
        drop(hung);
        ends(fixture.ready(launch));
        reaches(API, "x");
    });
}

#[test]
fn fifos_in_place_of_files_stop_nothing() {
    sandbox::run("hangs::fifos_in_place_of_files_stop_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let fifo = |path: PathBuf| {
            drop(fs::remove_file(&path));
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        };
        let mut daemon = fixture.ready(|| fixture.launch(&[]));
        for round in ["later", "from the start"] {
            let state = fs::read_dir(fixture.host.path("state")).unwrap();
            let files: Vec<PathBuf> = state.map(|entry| entry.unwrap().path()).collect();
            assert!(!files.is_empty(), "{round}");
            files.into_iter().for_each(fifo);
            fifo(fixture.host.path("services.d/fifo.toml"));
            fixture.still_works(daemon);
            daemon = fixture.ready(|| fixture.launch(&[]));
        }
        daemon.stop();
    });
}

#[test]
fn a_services_directory_that_hangs_stops_nothing_else() {
    sandbox::run("hangs::a_services_directory_that_hangs_stops_nothing_else", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let api = Api::new();
        cluster::join(&fixture.host, &api.objects, &[SERVER]);

        let mut daemon = fixture.ready(|| fixture.launch(&[]));
        reaches(API, "x");
        let mut hung = Hung::over(&fixture.host.path("services.d"));
        for round in ["later", "from the start"] {
            api.serve(Y);
            reaches(API, "y");
            feeds_the_watchdog(&mut daemon);
            no_worker_is_blocked(&daemon);
            // What the directory held is served on, and it is shown that it does not answer.
            reaches(WEB, "a");
            eventually("/sources says so", || answer("/sources", "text/plain").unwrap().contains("does not respond"));
            daemon.signal(Signal::SIGHUP);
            api.serve(Z);
            reaches(API, "z");
            ends(daemon);
            api.serve(X);
            daemon = fixture.launch(&[]);
            // After ten seconds: what is ordered after nodelb has to start.
            assert!(daemon.wait_ready(), "{round}");
            reaches(API, "x");
        }
        // It answers again: what changed meanwhile is read.
        hung.device = None;
        drop(hung);
        fixture.serve(B);
        reaches(WEB, "b");
        daemon.stop();
    });
}

#[test]
fn an_exec_plugin_that_never_ends_stops_nothing() {
    sandbox::run("hangs::an_exec_plugin_that_never_ends_stops_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let objects = cluster::cluster_at(&[SERVER]);
        cluster::join(&fixture.host, &objects, &[SERVER]);
        let kubeconfig = fs::read_to_string(fixture.host.path("kubeconfig")).unwrap();
        let (clusters, _) = kubeconfig.split_once("users:").unwrap();
        fs::create_dir(fixture.host.path("plugins")).unwrap();
        let plugin = fixture.host.path("plugins/plugin");
        fs::write(&plugin, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
        let users = format!(
            "users:\n- name: plugin\n  user:\n    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      \
             interactiveMode: Never\n      command: {}\n",
            plugin.display()
        );
        let contexts = "contexts:\n- name: it\n  context: {cluster: CLUSTER, user: plugin}\ncurrent-context: it\n";
        let name = clusters.lines().find_map(|line| line.trim_start_matches(['-', ' ']).strip_prefix("name: "));
        let contexts = contexts.replace("CLUSTER", name.unwrap());
        let head: String =
            clusters.lines().filter(|line| !line.starts_with("current-context")).map(|it| format!("{it}\n")).collect();
        let head = head.split("contexts:").next().unwrap().to_owned();
        fixture.host.write("kubeconfig", &format!("{head}{contexts}{users}"));

        // A program that sleeps, then one that cannot even be started: exec waits for its file system.
        let mut hung = None;
        for _ in ["sleeps", "cannot be read"] {
            fixture.still_works(fixture.ready(|| fixture.launch(&[])));
            hung.get_or_insert_with(|| Hung::over(&fixture.host.path("plugins")));
        }
        drop(hung);
    });
}

#[test]
fn credentials_that_cannot_be_read_stop_nothing() {
    sandbox::run("hangs::credentials_that_cannot_be_read_stop_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let api = Api::new();
        let directory = fixture.host.path("credentials");
        fs::create_dir(&directory).unwrap();
        let kubeconfig = api.objects.kubeconfig(&[&format!("https://{SERVER}")]).unwrap();
        fixture.host.write("credentials/kubeconfig", &kubeconfig);
        let path = directory.join("kubeconfig");
        cluster::configure(&fixture.host, &format!("kubeconfig = {path:?}\n{}", cluster::in_order(&[SERVER])));

        // The existing connection continues, and so do its reports.
        let daemon = fixture.ready(|| fixture.launch(&[]));
        reaches(API, "x");
        let hung = Hung::over(&directory);
        api.serve(Y);
        reaches(API, "y");
        fixture.still_works(daemon);

        // What files contain is served, and the last report of Kubernetes, until they can be read.
        let daemon = fixture.ready(|| fixture.launch(&[]));
        reaches(API, "y");
        fixture.still_works(daemon);
        drop(hung);
    });
}

#[test]
fn admin_clients_that_never_read_stop_nothing() {
    sandbox::run("hangs::admin_clients_that_never_read_stop_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let socket = fixture.host.path("nodelb.sock");
        fixture.host.configure(&format!("[admin]\nsocket = {socket:?}\n"));
        let daemon = fixture.ready(|| fixture.launch(&[]));
        let requests = ["/frontends?watch=true", "/history?watch=true", "/metrics", "/frontends", ""];
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut tcp = Vec::new();
        let mut unix = Vec::new();
        for path in requests.into_iter().cycle().take(150) {
            let mut stream = TcpStream::connect("127.0.0.1:9890").unwrap();
            stream.write_all(request(path).as_bytes()).unwrap();
            tcp.push(stream);
            let mut stream = UnixStream::connect(&socket).unwrap();
            // One that had to give up its slot is closed by now.
            drop(stream.write_all(request(path).as_bytes()));
            unix.push(stream);
        }
        fixture.still_works(daemon);
        tcp.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        drop(unix);
    });
}

#[test]
fn a_notify_socket_that_is_not_read_stops_nothing() {
    sandbox::run("hangs::a_notify_socket_that_is_not_read_stops_nothing", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let fill_notify = || {
            let client = UnixDatagram::unbound().unwrap();
            client.set_nonblocking(true).unwrap();
            fill(|| client.send_to(b"STATUS=full\n", fixture.host.path("notify")));
        };
        let daemon = fixture.launch(&[]);
        fill_notify();
        reaches(WEB, "a");
        fixture.serve(B);
        reaches(WEB, "b");
        fill_notify();
        daemon.signal(Signal::SIGHUP);
        fixture.serve(C);
        reaches(WEB, "c");
        ends(daemon);
    });
}

#[test]
fn a_configuration_that_cannot_be_read_delays_no_signal() {
    sandbox::run("hangs::a_configuration_that_cannot_be_read_delays_no_signal", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let mut daemon = fixture.ready(|| fixture.launch(&[]));
        let config = fixture.host.path("nodelb.toml");
        let good = fs::read_to_string(&config).unwrap();
        let freeze = || {
            fs::remove_file(&config).unwrap();
            assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
        };
        freeze();
        daemon.signal(Signal::SIGHUP);
        assert!(daemon.wait_for("STATUS=reloading the configuration"));
        fixture.serve(B);
        reaches(WEB, "b");
        // systemd is not kept waiting, and a reload works when the file can be read, whatever became of the one before.
        assert!(daemon.wait_for(
            "STATUS=reload is waiting for the file system; the previous configuration stays \
             active"
        ));
        fixture.host.assert_logged("timed out after 10 s");
        fs::remove_file(&config).unwrap();
        fixture.host.write("nodelb.toml", &format!("[log]\nlevel = \"debug\"\n{good}"));
        daemon.signal(Signal::SIGHUP);
        assert!(daemon.wait_for("STATUS=configuration reloaded"));
        // Reloads that hang are bounded; further ones are refused, and so is none of what else a signal does.
        freeze();
        for _ in 0..7 {
            daemon.signal(Signal::SIGHUP);
            assert!(daemon.wait_for("STATUS=reloading the configuration"));
        }
        daemon.signal(Signal::SIGHUP);
        assert!(daemon.wait_for("STATUS=reload failed, see the journal; the previous configuration stays active"));
        fixture.host.assert_logged("8 earlier attempts are still blocked");
        fixture.still_works(daemon);
    });
}
