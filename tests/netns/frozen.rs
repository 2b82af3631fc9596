//! No external dependency blocks the reconcile path: each one hangs in turn, at the start of the
//! daemon or later, and each time an endpoint change reaches the kernel, the watchdog is fed, and
//! SIGTERM stops the daemon in time. ARCHITECTURE.md, "What can block, and where it runs", lists
//! the dependencies.

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
use nodelb_prober::{Backend, Transport};

use crate::cluster::{self, apply, serve};
use crate::host::{self, Daemon, Host, answer, dial, eventually};
use crate::sandbox::{self, Sandbox};

const WEB: &str = "198.51.100.10:80";
const A: &str = "192.0.2.11:80";
const B: &str = "192.0.2.12:80";
const C: &str = "192.0.2.13:80";

/// Less than `TimeoutStopSec=` of nodelb.service.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

/// The socket of journald.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// A node with one service in a file, and backends that answer with their names.
struct Scene {
    host: Host,
    _backends: [Backend; 3],
}

impl Scene {
    fn new(sandbox: &Sandbox) -> Self {
        let host = Host::new(sandbox);
        fs::create_dir_all(host.path("state")).unwrap();
        let backends = [("a", A), ("b", B), ("c", C)].map(|(name, address)| host::backend(name, address));
        let scene = Self { host, _backends: backends };
        scene.serve(A);
        scene
    }

    /// Sets the backend of the service.
    fn serve(&self, backend: &str) {
        self.host.serve("web.toml", &host::service("shop/web", &[WEB], &[backend]));
    }

    /// Starts the daemon with a watchdog and these environment variables; does not wait.
    fn launch(&self, variables: &[String]) -> Daemon {
        let mut command = Command::new("env");
        command.arg("WATCHDOG_USEC=4000000").args(variables).arg(env!("CARGO_BIN_EXE_nodelb"));
        self.host.launch(command, &[])
    }

    /// While a dependency hangs: a change reaches the kernel, the watchdog is fed, the daemon
    /// stops.
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

/// Waits until connections to the address reach this backend.
fn reaches(address: &str, backend: &str) {
    eventually(&format!("{address} reaches {backend}"), || {
        let tally = dial(address, Transport::Tcp, 3);
        tally.failures() == 0 && tally.answered.keys().eq([backend])
    });
}

/// Waits for new messages, not only buffered ones: the watchdog is fed every two seconds.
fn feeds_the_watchdog(daemon: &mut Daemon) {
    for _ in 0..3 {
        assert!(daemon.wait_for("WATCHDOG=1"), "nodelb ended");
    }
}

/// The runtime has two workers: with one blocked it seems to work until the other blocks, too.
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

/// A mounted file system that does not respond. When dropped, pending operations fail.
struct Hung {
    at: PathBuf,
    device: Option<File>,
}

impl Hung {
    /// FUSE without a server that reads requests, which behaves like a network file system whose
    /// server is down.
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

/// journald, which can stop reading.
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

    /// Fills its socket.
    fn freeze(&self) {
        let client = UnixDatagram::unbound().unwrap();
        client.set_nonblocking(true).unwrap();
        fill(|| client.send_to(b"MESSAGE=full\n", JOURNAL));
    }

    /// Reads messages until one contains this text; returns all of them.
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

/// The value that systemd sets for a stderr connected to the journal, here for the file that the
/// test uses.
fn journal_stream(host: &Host) -> String {
    fs::write(host.path("log"), "").unwrap();
    let file = fs::metadata(host.path("log")).unwrap();
    format!("JOURNAL_STREAM={}:{}", file.dev(), file.ino())
}

#[test]
fn journald_that_does_not_read_stops_nothing() {
    sandbox::run("frozen::journald_that_does_not_read_stops_nothing", |sandbox| {
        let scene = Scene::new(sandbox);
        let journald = Journald::start();
        let stream = journal_stream(&scene.host);
        let mut daemon = scene.launch(std::slice::from_ref(&stream));
        assert!(daemon.wait_ready());
        let output = journald.read_until("every source is synced");
        for field in ["PRIORITY\u{a}", "SYSLOG_IDENTIFIER", "MESSAGE_ID", "nodelb starts", "CODE_FILE"] {
            assert!(output.contains(field.trim_end()), "{field}: {output}");
        }
        journald.freeze();
        scene.still_works(daemon);

        // From the start: the journal library sends a message first.
        scene.serve(A);
        let mut daemon = scene.launch(&[stream]);
        assert!(daemon.wait_ready());
        reaches(WEB, "a");
        feeds_the_watchdog(&mut daemon);
        scene.serve(B);
        reaches(WEB, "b");
        // Buffered messages are written in order once journald reads again.
        let output = journald.read_until("applied: shop/web");
        let (starts, applied) = (output.find("nodelb starts").unwrap(), output.rfind("applied: shop/web").unwrap());
        assert!(starts < applied, "{output}");
        journald.freeze();
        ends(daemon);
        assert_eq!(scene.host.log(), "", "nothing goes to stderr while there is a journal");
    });
}

#[test]
fn a_stderr_that_is_not_read_stops_nothing() {
    sandbox::run("frozen::a_stderr_that_is_not_read_stops_nothing", |sandbox| {
        let scene = Scene::new(sandbox);
        let path = scene.host.path("stderr");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut reader =
            File::options().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(&path).unwrap();
        let launch = || {
            let mut command = Command::new("sh");
            let script = format!("exec env WATCHDOG_USEC=4000000 \"$0\" \"$@\" 2>{}", path.display());
            command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_nodelb"));
            scene.host.launch(command, &[])
        };
        let mut daemon = launch();
        assert!(daemon.wait_ready());
        let mut text = [0; 1 << 16];
        let length = reader.read(&mut text).unwrap();
        assert!(String::from_utf8_lossy(&text[..length]).contains("nodelb starts"));
        fill(|| reader.write(&[b'.'; 512]));
        scene.still_works(daemon);

        scene.serve(A);
        let mut daemon = launch();
        assert!(daemon.wait_ready());
        scene.still_works({
            reaches(WEB, "a");
            daemon
        });
        // Error messages of a failed start have a time limit, too.
        scene.host.write("nodelb.toml", "what = ");
        let began = Instant::now();
        let status = launch().wait();
        assert_eq!(status.code(), Some(78));
        assert!(began.elapsed() < STOPS_WITHIN);
    });
}

#[test]
fn a_state_directory_that_hangs_stops_nothing() {
    sandbox::run("frozen::a_state_directory_that_hangs_stops_nothing", |sandbox| {
        let scene = Scene::new(sandbox);
        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        let hung = Hung::over(&scene.host.path("state"));
        scene.still_works(daemon);
        scene.serve(A);
        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        reaches(WEB, "a");
        scene.still_works(daemon);
        drop(hung);
    });
}

#[test]
fn fifos_in_place_of_files_stop_nothing() {
    sandbox::run("frozen::fifos_in_place_of_files_stop_nothing", |sandbox| {
        let scene = Scene::new(sandbox);
        let fifo = |path: PathBuf| {
            drop(fs::remove_file(&path));
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        };
        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        for round in ["later", "from the start"] {
            let state = fs::read_dir(scene.host.path("state")).unwrap();
            let files: Vec<PathBuf> = state.map(|entry| entry.unwrap().path()).collect();
            assert!(!files.is_empty(), "{round}");
            files.into_iter().for_each(fifo);
            fifo(scene.host.path("services.d/fifo.toml"));
            scene.still_works(daemon);
            scene.serve(A);
            daemon = scene.launch(&[]);
            assert!(daemon.wait_ready(), "{round}");
            reaches(WEB, "a");
        }
        daemon.stop();
    });
}

#[test]
fn a_services_directory_that_hangs_stops_nothing_else() {
    sandbox::run("frozen::a_services_directory_that_hangs_stops_nothing_else", |sandbox| {
        const SERVER: &str = "192.0.2.21:6443";
        const API: &str = "198.51.100.80";
        let scene = Scene::new(sandbox);
        let backends = [("x", "192.0.2.31:443"), ("y", "192.0.2.32:443"), ("z", "192.0.2.33:443")];
        let _backends = backends.map(|(name, address)| host::backend(name, address));
        let [x, y, z] = backends.map(|(_, address)| cluster::slice("api", &[address]));
        let objects = cluster::cluster_at(&[SERVER]);
        apply(&objects, cluster::service("api", API));
        apply(&objects, x.clone());
        let _server = serve(&objects, SERVER);
        cluster::join(&scene.host, &objects, &[SERVER]);
        let api = format!("{API}:443");

        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        reaches(&api, "x");
        reaches(WEB, "a");
        let mut hung = Hung::over(&scene.host.path("services.d"));
        for round in ["later", "from the start"] {
            apply(&objects, y.clone());
            reaches(&api, "y");
            feeds_the_watchdog(&mut daemon);
            no_worker_is_blocked(&daemon);
            // The previous content of the directory is still served, and status shows that it does
            // not respond.
            reaches(WEB, "a");
            eventually("/sources says so", || answer("/sources", "text/plain").unwrap().contains("does not answer"));
            daemon.signal(Signal::SIGHUP);
            apply(&objects, z.clone());
            reaches(&api, "z");
            ends(daemon);
            apply(&objects, x.clone());
            daemon = scene.launch(&[]);
            // After ten seconds: units ordered after nodelb have to start.
            assert!(daemon.wait_ready(), "{round}");
            reaches(&api, "x");
        }
        // It responds again: nodelb reads what has changed meanwhile.
        hung.device = None;
        drop(hung);
        scene.serve(B);
        reaches(WEB, "b");
        daemon.stop();
    });
}

#[test]
fn an_exec_plugin_that_never_ends_stops_nothing() {
    sandbox::run("frozen::an_exec_plugin_that_never_ends_stops_nothing", |sandbox| {
        const SERVER: &str = "192.0.2.21:6443";
        let scene = Scene::new(sandbox);
        let objects = cluster::cluster_at(&[SERVER]);
        cluster::join(&scene.host, &objects, &[SERVER]);
        let kubeconfig = fs::read_to_string(scene.host.path("kubeconfig")).unwrap();
        let (clusters, _) = kubeconfig.split_once("users:").unwrap();
        fs::create_dir(scene.host.path("plugins")).unwrap();
        let plugin = scene.host.path("plugins/plugin");
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
        scene.host.write("kubeconfig", &format!("{head}{contexts}{users}"));

        // First a plugin that sleeps, then one that cannot be started because exec waits for its
        // file system.
        let mut hung = None;
        for round in ["sleeps", "cannot be read"] {
            let mut daemon = scene.launch(&[]);
            assert!(daemon.wait_ready(), "{round}");
            reaches(WEB, "a");
            scene.still_works(daemon);
            scene.serve(A);
            hung.get_or_insert_with(|| Hung::over(&scene.host.path("plugins")));
        }
        drop(hung);
    });
}

#[test]
fn credentials_that_cannot_be_read_stop_nothing() {
    sandbox::run("frozen::credentials_that_cannot_be_read_stop_nothing", |sandbox| {
        const SERVER: &str = "192.0.2.21:6443";
        const API: &str = "198.51.100.80";
        let scene = Scene::new(sandbox);
        let backends = [("x", "192.0.2.31:443"), ("y", "192.0.2.32:443")];
        let _backends = backends.map(|(name, address)| host::backend(name, address));
        let [x, y] = backends.map(|(_, address)| cluster::slice("api", &[address]));
        let objects = cluster::cluster_at(&[SERVER]);
        apply(&objects, cluster::service("api", API));
        apply(&objects, x);
        let _server = serve(&objects, SERVER);
        let directory = scene.host.path("credentials");
        fs::create_dir(&directory).unwrap();
        let kubeconfig = objects.kubeconfig(&[&format!("https://{SERVER}")]).unwrap();
        scene.host.write("credentials/kubeconfig", &kubeconfig);
        let path = directory.join("kubeconfig");
        cluster::configure(&scene.host, &format!("kubeconfig = {path:?}\n{}", cluster::in_order(&[SERVER])));

        // The existing connection continues to deliver changes.
        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        reaches(&format!("{API}:443"), "x");
        let hung = Hung::over(&directory);
        apply(&objects, y);
        reaches(&format!("{API}:443"), "y");
        scene.still_works(daemon);

        // Until they can be read, the files and the stored state of Kubernetes are served.
        scene.serve(A);
        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        reaches(WEB, "a");
        reaches(&format!("{API}:443"), "y");
        scene.still_works(daemon);
        drop(hung);
    });
}

#[test]
fn admin_clients_that_never_read_stop_nothing() {
    sandbox::run("frozen::admin_clients_that_never_read_stop_nothing", |sandbox| {
        let scene = Scene::new(sandbox);
        let socket = scene.host.path("nodelb.sock");
        scene.host.configure(&format!("[admin]\nsocket = {socket:?}\n"));
        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        let requests = ["/frontends?watch=true", "/history?watch=true", "/metrics", "/frontends", ""];
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut tcp = Vec::new();
        let mut unix = Vec::new();
        for path in requests.into_iter().cycle().take(150) {
            let mut stream = TcpStream::connect("127.0.0.1:9890").unwrap();
            stream.write_all(request(path).as_bytes()).unwrap();
            tcp.push(stream);
            let mut stream = UnixStream::connect(&socket).unwrap();
            // The server may have closed a connection to make room.
            drop(stream.write_all(request(path).as_bytes()));
            unix.push(stream);
        }
        scene.still_works(daemon);
        tcp.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        drop(unix);
    });
}

#[test]
fn a_notify_socket_that_is_not_read_stops_nothing() {
    sandbox::run("frozen::a_notify_socket_that_is_not_read_stops_nothing", |sandbox| {
        let scene = Scene::new(sandbox);
        let fill_notify = || {
            let client = UnixDatagram::unbound().unwrap();
            client.set_nonblocking(true).unwrap();
            fill(|| client.send_to(b"STATUS=full\n", scene.host.path("notify")));
        };
        let daemon = scene.launch(&[]);
        fill_notify();
        reaches(WEB, "a");
        scene.serve(B);
        reaches(WEB, "b");
        fill_notify();
        daemon.signal(Signal::SIGHUP);
        scene.serve(C);
        reaches(WEB, "c");
        ends(daemon);
    });
}

#[test]
fn a_configuration_that_cannot_be_read_delays_no_signal() {
    sandbox::run("frozen::a_configuration_that_cannot_be_read_delays_no_signal", |sandbox| {
        let scene = Scene::new(sandbox);
        let mut daemon = scene.launch(&[]);
        assert!(daemon.wait_ready());
        let config = scene.host.path("nodelb.toml");
        let good = fs::read_to_string(&config).unwrap();
        let freeze = || {
            fs::remove_file(&config).unwrap();
            assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
        };
        freeze();
        daemon.signal(Signal::SIGHUP);
        assert!(daemon.wait_for("STATUS=reloading the configuration"));
        scene.serve(B);
        reaches(WEB, "b");
        // systemd does not wait, and a later reload works once the file can be read, independent of
        // the previous one.
        assert!(daemon.wait_for("STATUS=reload waits for the file system; the old configuration stays in force"));
        assert!(scene.host.log().contains("is not read within 10 s"), "{}", scene.host.log());
        fs::remove_file(&config).unwrap();
        scene.host.write("nodelb.toml", &format!("[log]\nlevel = \"debug\"\n{good}"));
        daemon.signal(Signal::SIGHUP);
        assert!(daemon.wait_for("STATUS=configuration reloaded"));
        // The number of hanging reloads is bounded; further ones are refused, and all other signals
        // keep working.
        freeze();
        for _ in 0..7 {
            daemon.signal(Signal::SIGHUP);
            assert!(daemon.wait_for("STATUS=reloading the configuration"));
        }
        daemon.signal(Signal::SIGHUP);
        assert!(daemon.wait_for("STATUS=reload refused, see the journal; the old configuration stays in force"));
        assert!(scene.host.log().contains("8 earlier attempts have not come back"), "{}", scene.host.log());
        scene.still_works(daemon);
    });
}
