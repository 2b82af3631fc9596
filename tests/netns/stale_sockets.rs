//! Sockets that have lost their backend are closed so that clients reconnect: on the host and in pods, and
//! no other sockets.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use socket2::{Domain, Socket, Type};

use crate::host::{Daemon, Host, answer, assert_within, backend, eventually, is_served_by, say, service, socket};
use crate::pod::Pod;
use crate::sandbox::{self, Sandbox};

const DNS: &str = "198.51.100.10:53";
const OTHER: &str = "198.51.100.11:53";
const ONE: &str = "192.0.2.11:8080";
const TWO: &str = "192.0.2.12:8080";

/// The promised time. That the schedule keeps it: `a_socket_is_ended_within_a_second` in `daemon/src/sockets/tests/stale.rs`.
const WITHIN: Duration = Duration::from_secs(1);

pub(crate) fn assert_in_time(what: &str, took: Duration) {
    assert_within(what, WITHIN, took);
}

/// A pod with an unprivileged process, as in every real pod: nodelb finds the namespace through it.
pub(crate) struct PodWithProcess {
    pub(crate) pod: Pod,
    pause: Child,
}

impl PodWithProcess {
    pub(crate) fn new(number: u8) -> Self {
        let pod = Pod::new(number);
        let pause = pod.run(|| Command::new("sleep").arg("infinity").uid(65534).spawn().unwrap());
        Self { pod, pause }
    }
}

impl Drop for PodWithProcess {
    fn drop(&mut self) {
        drop(self.pause.kill());
        drop(self.pause.wait());
    }
}

fn unconnected() -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Ended sockets do not wait for it.
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

pub(crate) fn connected(to: &str) -> UdpSocket {
    let socket = unconnected();
    socket.connect(self::socket(to)).unwrap();
    socket
}

/// The backend that answers a connected socket. Skips answers to earlier questions, which came too late.
pub(crate) fn ask(socket: &UdpSocket) -> io::Result<String> {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let question = format!("?{}", ASKED.fetch_add(1, Ordering::Relaxed));
    socket.send(question.as_bytes())?;
    let mut buffer = [0; 64];
    loop {
        let length = socket.recv(&mut buffer)?;
        let answer = String::from_utf8_lossy(&buffer[..length]);
        if let Some(name) = answer.strip_suffix(&question) {
            return Ok(name.trim_end().to_owned());
        }
    }
}

/// The backend that answers an unconnected socket.
fn ask_at(socket: &UdpSocket, to: &str) -> String {
    let mut buffer = [0; 64];
    socket.send_to(b"?", to).unwrap();
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from.to_string(), to);
    String::from_utf8_lossy(&buffer[..length]).trim_end_matches(" ?").to_owned()
}

/// A socket that reached this backend through the address.
pub(crate) fn connected_to(name: &str, through: &str) -> UdpSocket {
    for _ in 0..200 {
        let socket = connected(through);
        match ask(&socket) {
            Ok(answer) if answer == name => return socket,
            // A pod's first packets may be lost.
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            _ => {}
        }
    }
    panic!("{through} never leads to {name}");
}

/// Whether this is one of the errors that the owner of a closed socket gets, once.
pub(crate) fn is_ended(error: &io::Error) -> bool {
    let ended = [Errno::ECONNABORTED, Errno::EDESTADDRREQ];
    ended.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// Sends until the kernel closes the socket; returns how long that took.
pub(crate) fn until_ended(socket: &UdpSocket, since: Instant) -> Duration {
    loop {
        match ask(socket) {
            Err(error) if is_ended(&error) => return since.elapsed(),
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            _ => assert!(since.elapsed() < Duration::from_secs(60), "the socket is never ended"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The value of a metric.
pub(crate) fn metric(name: &str) -> Option<f64> {
    let text = answer("/metrics", "*/*")?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

pub(crate) fn reaper_of(daemon: &Daemon) -> Option<PathBuf> {
    let children = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    children.into_iter().find(|process| {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let is_child = status.lines().any(|line| line == format!("PPid:\t{}", daemon.pid()));
        is_child && !status.contains("State:\tZ")
    })
}

pub(crate) fn status(process: &std::path::Path, field: &str) -> String {
    let status = fs::read_to_string(process.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

#[test]
fn sockets_reconnect_when_their_backend_is_removed() {
    sandbox::run("stale_sockets::sockets_reconnect_when_their_backend_is_removed", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", ONE), backend("2", TWO)];
        host.serve("a.toml", &service("shop/dns", &[DNS], &[ONE, TWO]));
        host.serve("b.toml", &service("shop/other", &[OTHER], &[ONE, TWO]));
        let daemon = host.start();
        let pod = PodWithProcess::new(1);
        let here = connected_to("1", DNS);
        let there = pod.pod.run(|| connected_to("1", DNS));
        let through_another = connected_to("1", OTHER);
        let at_the_other = connected_to("2", DNS);
        let direct = connected(ONE);
        let roaming = unconnected();
        ask_at(&roaming, DNS);
        let tcp = TcpStream::connect(DNS).unwrap();

        let start = Instant::now();
        host.serve("a.toml", &service("shop/dns", &[DNS], &[TWO]));
        let (took, took_there) = thread::scope(|scope| {
            let there = scope.spawn(|| until_ended(&there, start));
            (until_ended(&here, start), there.join().unwrap())
        });
        assert_in_time("a socket of the host is ended", took);
        assert_in_time("a socket of a pod is ended", took_there);
        here.connect(DNS).unwrap();
        // Takes the error, which a receive would have reported if a send had not come first.
        drop(here.take_error());
        assert_eq!(ask(&here).unwrap(), "2", "the same socket reconnects");
        assert_eq!(pod.pod.run(|| ask(&connected(DNS))).unwrap(), "2");
        assert_eq!(ask_at(&roaming, DNS), "2", "an unconnected socket is sent elsewhere");

        // The follow-up pass and the one after it.
        thread::sleep(Duration::from_millis(600));
        for (socket, name, why) in [
            (&through_another, "1", "another service still has the backend"),
            (&at_the_other, "2", "its backend is still there"),
            (&direct, "1", "it connected to the backend directly"),
        ] {
            assert_eq!(ask(socket).unwrap(), name, "{why}");
        }
        let mut answer = String::new();
        (&tcp).read_to_string(&mut answer).unwrap();
        assert!(["1\n", "2\n"].contains(&answer.as_str()), "TCP is left alone: {answer}");
        eventually("the figures", || metric("nodelb_sockets_destroyed_total{protocol=\"udp\"}") == Some(2.0));
        assert!(
            host.log()
                .contains("closed 2 UDP sockets that have lost their backend, so that they reconnect: shop/dns 2")
        );

        let start = Instant::now();
        host.withdraw("a.toml");
        assert_in_time("a socket of a deleted service is ended", until_ended(&at_the_other, start));
        assert_eq!(ask(&through_another).unwrap(), "1");
        daemon.stop();
    });
}

fn has_error(socket: &UdpSocket) -> bool {
    socket.take_error().unwrap().is_some_and(|error| is_ended(&error))
}

/// Two sockets with the same local address, connected to the same address: the kernel finds only
/// one by addresses.
fn twins(to: &str) -> [UdpSocket; 2] {
    let twin = |port: u16| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into()).unwrap();
        UdpSocket::from(socket)
    };
    let first = twin(0);
    let second = twin(first.local_addr().unwrap().port());
    [&first, &second].into_iter().for_each(|socket| socket.connect(self::socket(to)).unwrap());
    [first, second]
}

/// A socket in a namespace that is kept only by a mount.
fn in_a_mounted_namespace(to: &str) -> UdpSocket {
    for words in ["netns add blue", "-n blue link set lo up", "-n blue address add 192.0.2.0/24 dev lo"] {
        assert!(sandbox::program("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
    }
    let inside = || {
        setns(fs::File::open("/run/netns/blue").unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        connected(to)
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

#[test]
fn sockets_of_every_kind_reconnect() {
    sandbox::run("stale_sockets::sockets_of_every_kind_reconnect", |sandbox| {
        const DNS6: &str = "[2001:db8:f::10]:53";
        let v6 = ["[2001:db8:b::11]:8080", "[2001:db8:b::12]:8080"];
        let host = Host::new(sandbox);
        host.serve("a.toml", &service("shop/dns", &[DNS], &[ONE]));
        host.serve("b.toml", &service("shop/six", &[DNS6], &[v6[0]]));
        // A daemon that starts its reaper itself, with only the capabilities that the two need.
        let mut command = sandbox::program("setpriv");
        let least = "--bounding-set=-all,+bpf,+net_admin,+perfmon,+sys_admin,+sys_ptrace";
        command.args([least, "--inh-caps=-all", "--no-new-privs", env!("CARGO_BIN_EXE_nodelb")]);
        let mut daemon = host.launch(command, &[]);
        assert!(daemon.wait_ready(), "{}", host.log());
        let pod = PodWithProcess::new(1);
        let each = || {
            let any = || UdpSocket::bind("[::]:0").unwrap();
            let (six, mapped) = (any(), any());
            six.connect(socket(DNS6)).unwrap();
            mapped.connect(socket("[::ffff:198.51.100.10]:53")).unwrap();
            twins(DNS).into_iter().chain([connected(DNS), six, mapped]).collect::<Vec<_>>()
        };
        let mut sockets = each();
        sockets.extend(pod.pod.run(each));
        sockets.push(in_a_mounted_namespace(DNS));
        let start = Instant::now();
        host.serve("a.toml", &service("shop/dns", &[DNS], &[TWO]));
        host.serve("b.toml", &service("shop/six", &[DNS6], &[v6[1]]));
        let mut ended = vec![false; sockets.len()];
        while ended.contains(&false) && start.elapsed() < WITHIN * 60 {
            sockets.iter().zip(&mut ended).for_each(|(socket, ended)| *ended |= has_error(socket));
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!ended.contains(&false), "twin, twin, IPv4, IPv6, IPv4-mapped; in a pod; mounted: {ended:?}");
        assert_in_time("sockets of every kind are ended", start.elapsed());
    });
}

/// A file where the first backend has this state.
fn with_state(state: &str, transport: &str) -> String {
    format!(
        "[[service]]\nname = \"shop/dns\"\nfrontends = [\"{DNS}/{transport}\"]\nbackends = [\n  {{ address = \"{ONE}\", \
         state = \"{state}\" }},\n  \"{TWO}\",\n]\n"
    )
}

#[test]
fn a_drained_backend_keeps_its_sockets() {
    sandbox::run("stale_sockets::a_drained_backend_keeps_its_sockets", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", ONE), backend("2", TWO)];
        host.serve("a.toml", &with_state("active", "UDP"));
        let _daemon = host.start();
        let socket = connected_to("1", DNS);
        host.serve("a.toml", &with_state("maintenance", "UDP"));
        eventually("it gets no new ones", || is_served_by(&format!("{DNS}/UDP"), &[&format!("{TWO}/UDP")]));
        thread::sleep(WITHIN);
        assert_eq!(ask(&socket).unwrap(), "1");
        let start = Instant::now();
        host.serve("a.toml", &service("shop/dns", &[DNS], &[TWO]));
        assert_in_time("a drained backend that goes", until_ended(&socket, start));
    });
}

/// Accepts connections and keeps them open.
fn listen(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || listener.incoming().collect::<Vec<_>>());
}

/// Whether the connection is still open.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::ECONNABORTED as i32));
            false
        }
        Ok(count) => panic!("{count} bytes"),
    }
}

#[test]
fn tcp_connections_end_where_that_is_asked_for() {
    sandbox::run("stale_sockets::tcp_connections_end_where_that_is_asked_for", |sandbox| {
        let host = Host::new(sandbox);
        host.configure("disconnect = \"all\"");
        [ONE, TWO].into_iter().for_each(listen);
        host.serve("a.toml", &with_state("active", "TCP"));
        let _daemon = host.start();
        let pod = PodWithProcess::new(1);
        let mut streams: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(DNS).unwrap()).collect();
        streams.extend((0..20).map(|_| pod.pod.run(|| TcpStream::connect(DNS).unwrap())));
        let direct = TcpStream::connect(ONE).unwrap();
        host.serve("a.toml", &with_state("maintenance", "TCP"));
        eventually("it gets no new ones", || is_served_by(&format!("{DNS}/TCP"), &[&format!("{TWO}/TCP")]));
        thread::sleep(WITHIN);
        assert!(streams.iter().all(is_open), "drained is not gone");
        let start = Instant::now();
        host.serve("a.toml", &service("shop/dns", &[DNS], &[TWO]));
        eventually("connections end", || metric("nodelb_sockets_destroyed_total{protocol=\"tcp\"}") > Some(0.0));
        say(&format!("TCP connections are ended: after {:.1?}", start.elapsed()));
        let ended = streams.iter().filter(|stream| !is_open(stream)).count();
        assert!((5..=35).contains(&ended), "{ended} of 40");
        assert!(is_open(&direct));
        assert_eq!(metric("nodelb_sockets_destroyed_total{protocol=\"tcp\"}"), Some(ended as f64));
    });
}

/// Connections to a machine that had lost its power hung for as long as their programs waited.
#[test]
fn tcp_connections_to_a_backend_that_is_not_ready_end_when_that_lasts() {
    const TEST: &str = "stale_sockets::tcp_connections_to_a_backend_that_is_not_ready_end_when_that_lasts";
    sandbox::run(TEST, |sandbox| {
        let host = Host::new(sandbox);
        host.configure("disconnect = \"all\"\ndisconnect-after = \"5s\"");
        [ONE, TWO].into_iter().for_each(listen);
        let over_tcp = |objects: String| objects.replace("UDP", "TCP");
        let (address, all) = (format!("{DNS}/TCP"), [ONE, TWO]);
        host.serve("a.yaml", &over_tcp(cluster_ip(DNS, &all)));
        let _daemon = host.start();
        let pod = PodWithProcess::new(1);
        let mut streams: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(DNS).unwrap()).collect();
        streams.extend((0..20).map(|_| pod.pod.run(|| TcpStream::connect(DNS).unwrap())));
        host.serve("a.yaml", &over_tcp(unready(DNS, &all, &all)));
        eventually("all are not ready", || is_served_by(&address, &[]));
        thread::sleep(Duration::from_secs(7));
        host.serve("a.yaml", &over_tcp(unready(DNS, &all, &[ONE])));
        eventually("one is better", || is_served_by(&address, &[&format!("{TWO}/TCP")]));
        thread::sleep(Duration::from_secs(3));
        assert!(streams.iter().all(is_open), "it may be ready again soon");
        eventually("connections end", || metric("nodelb_sockets_destroyed_total{protocol=\"tcp\"}") > Some(0.0));
        let ended = streams.iter().filter(|stream| !is_open(stream)).count();
        assert!((5..=35).contains(&ended), "{ended} of 40");
        assert_eq!(metric("nodelb_sockets_destroyed_total{protocol=\"tcp\"}"), Some(ended as f64));
    });
}

/// Runs `work` as a member of the cgroup.
pub(crate) fn within<T>(cgroup: &std::path::Path, sandbox: &Sandbox, work: impl FnOnce() -> T) -> T {
    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    let result = work();
    fs::write(sandbox.cgroup.join("cgroup.procs"), "0").unwrap();
    result
}

/// A ClusterIP with these endpoints, as Kubernetes objects.
pub(crate) fn cluster_ip(address: &str, endpoints: &[&str]) -> String {
    let (ip, port) = address.rsplit_once(':').unwrap();
    let endpoints: Vec<String> =
        endpoints.iter().map(|at| format!("{{addresses: [{}]}}", at.rsplit_once(':').unwrap().0)).collect();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: dns, namespace: shop}}\nspec: {{clusterIP: {ip}, clusterIPs: \
         [{ip}], ports: [{{protocol: UDP, port: {port}}}]}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: dns, namespace: shop, labels: {{kubernetes.io/service-name: dns}}}}\naddressType: IPv4\nports: \
         [{{protocol: UDP, port: 8080}}]\nendpoints: [{}]\n",
        endpoints.join(", ")
    )
}

/// [`cluster_ip`] with endpoints that are not ready.
fn unready(address: &str, endpoints: &[&str], unready: &[&str]) -> String {
    let text = cluster_ip(address, endpoints);
    unready.iter().fold(text, |text, at| {
        let ip = at.rsplit_once(':').unwrap().0;
        text.replace(&format!("{{addresses: [{ip}]}}"), &format!("{{addresses: [{ip}], conditions: {{ready: false}}}}"))
    })
}

/// After an outage of the control plane, every endpoint is not ready for some seconds. A program with a connected socket,
/// such as a resolver or a sender of metrics, does not expect that its socket ends.
#[test]
fn a_backend_that_is_not_ready_keeps_its_sockets_while_there_is_nothing_better() {
    const TEST: &str = "stale_sockets::a_backend_that_is_not_ready_keeps_its_sockets_while_there_is_nothing_better";
    sandbox::run(TEST, |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", ONE), backend("2", TWO)];
        let (address, all) = (format!("{DNS}/UDP"), [ONE, TWO]);
        host.serve("a.yaml", &cluster_ip(DNS, &all));
        let _daemon = host.start();
        let sockets = [connected_to("1", DNS), connected_to("2", DNS)];
        let stay = |sockets: &[UdpSocket], seconds: u64| {
            for _ in 0..seconds * 10 {
                sockets.iter().for_each(|socket| drop(ask(socket).unwrap()));
                thread::sleep(Duration::from_millis(100));
            }
        };
        host.serve("a.yaml", &unready(DNS, &all, &all));
        eventually("all are not ready", || is_served_by(&address, &[]));
        stay(&sockets, 7);
        host.serve("a.yaml", &cluster_ip(DNS, &all));
        eventually("all are ready", || is_served_by(&address, &[&format!("{ONE}/UDP"), &format!("{TWO}/UDP")]));
        stay(&sockets, 1);
        // A flap of one, while the other one is there.
        host.serve("a.yaml", &unready(DNS, &all, &[ONE]));
        stay(&sockets, 3);
        host.serve("a.yaml", &cluster_ip(DNS, &all));
        stay(&sockets, 4);
        // For good: the socket moves to the better one.
        host.serve("a.yaml", &unready(DNS, &all, &[ONE]));
        let start = Instant::now();
        let took = until_ended(&sockets[0], start);
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(12), "{took:?}");
        assert_eq!(ask(&connected(DNS)).unwrap(), "2");
        stay(&sockets[1..], 1);
        // A removed one goes at once.
        host.serve("a.yaml", &unready(DNS, &[ONE], &[]));
        assert_in_time("a removed backend", until_ended(&sockets[1], Instant::now()));
    });
}

/// The socket exists before the daemon starts: after a reboot with empty maps the daemon closes it.
/// On a first start it does not, because kube-proxy may have translated the connection.
#[test]
fn after_a_reboot_sockets_older_than_the_daemon_reconnect() {
    sandbox::run("stale_sockets::after_a_reboot_sockets_older_than_the_daemon_reconnect", |sandbox| {
        const EARLY: &str = "192.0.2.99:53";
        let host = Host::new(sandbox);
        let _backends = [backend("1", ONE)];
        let is_left = |socket: &UdpSocket| {
            thread::sleep(WITHIN * 3);
            let sent = (0..20).map(|_| socket.send(b"?"));
            sent.filter_map(Result::err).all(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        fs::create_dir_all(host.path("state")).unwrap();
        host.serve("a.yaml", &cluster_ip(EARLY, &[ONE]));
        let early = connected(EARLY);
        let daemon = host.start();
        assert!(is_left(&early), "at a first start something else may have answered");
        daemon.stop();
        host.cleanup();
        let daemon = host.start();
        assert!(is_left(&early), "at a restart with empty maps too");
        daemon.stop();
        host.cleanup();

        let remembered = host.path("state/boot-id");
        assert!(remembered.exists(), "the boot is remembered");
        fs::write(remembered, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
        let _daemon = host.start();
        let start = Instant::now();
        while !early.send(b"?").is_err_and(|error| is_ended(&error)) {
            assert!(start.elapsed() < Duration::from_secs(20), "the socket is never ended");
            thread::sleep(Duration::from_millis(5));
        }
        assert_in_time("a socket that was faster than nodelb after a reboot", start.elapsed());
        assert_eq!(ask(&connected(EARLY)).unwrap(), "1");
    });
}

#[test]
fn sockets_older_than_their_service_reconnect() {
    sandbox::run("stale_sockets::sockets_older_than_their_service_reconnect", |sandbox| {
        // Reachable without a service, too, but nothing listens there.
        const EARLY: &str = "192.0.2.99:53";
        let served = sandbox.cgroup.join("served");
        fs::create_dir_all(served.join("below")).unwrap();
        let host = Host::new(&Sandbox { cgroup: served.clone(), bpffs: sandbox.bpffs.clone() });
        let _backends = [backend("1", ONE)];
        let _daemon = within(&served, sandbox, || host.start());
        let pod = PodWithProcess::new(1);
        let (here, elsewhere) = within(&served, sandbox, || (connected(EARLY), connected("192.0.2.98:53")));
        let there = within(&served.join("below"), sandbox, || pod.pod.run(|| connected(EARLY)));
        let outside = connected(EARLY);

        host.serve("a.yaml", &cluster_ip(EARLY, &[]));
        eventually("it is refused", || crate::host::frontend(&format!("{EARLY}/UDP")).is_some());
        thread::sleep(Duration::from_millis(600));
        here.send(b"?").unwrap();
        let start = Instant::now();
        host.serve("a.yaml", &cluster_ip(EARLY, &[ONE]));
        let ended = |socket: &UdpSocket| loop {
            match socket.send(b"?") {
                Err(error) if is_ended(&error) => return start.elapsed(),
                // Nothing listens there, which the next send reports.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                other => drop(other.unwrap()),
            }
            assert!(start.elapsed() < Duration::from_secs(20), "the socket is never ended");
            thread::sleep(Duration::from_millis(5));
        };
        assert_in_time("a socket of the host that came too early", ended(&here));
        assert_in_time("a socket of a pod that came too early", ended(&there));
        for socket in [&outside, &elsewhere] {
            let refused = |result: io::Result<usize>| match result {
                Ok(_) => true,
                Err(error) => error.kind() == ErrorKind::ConnectionRefused,
            };
            assert!((0..20).all(|_| refused(socket.send(b"?"))), "not in the cgroup, or another address");
        }
        // A socket that connected before a file gave the address to a service may stay.
        let _before = backend("before", "192.0.2.97:53");
        let direct = within(&served, sandbox, || connected_to("before", "192.0.2.97:53"));
        host.serve("b.toml", &service("shop/other", &["192.0.2.97:53"], &[ONE]));
        eventually("it is served", || within(&served, sandbox, || ask(&connected("192.0.2.97:53")).unwrap() == "1"));
        thread::sleep(WITHIN);
        assert_eq!(ask(&direct).unwrap(), "before");
        within(&served, sandbox, || assert_eq!(ask(&connected(EARLY)).unwrap(), "1"));
    });
}

#[test]
fn a_thousand_sockets_in_twenty_pods() {
    sandbox::run("stale_sockets::a_thousand_sockets_in_twenty_pods", |sandbox| {
        const PODS: u8 = 20;
        const EACH: usize = 50;
        const BYSTANDERS: usize = 10_000;
        let most = (BYSTANDERS + 5_000) as u64;
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let host = Host::new(sandbox);
        host.serve("a.toml", &service("shop/dns", &[DNS], &[ONE]));
        host.serve("b.toml", &service("shop/other", &[OTHER], &[ONE]));
        let daemon = host.start();
        let pods: Vec<PodWithProcess> = (0..PODS).map(PodWithProcess::new).collect();
        let sockets: Vec<UdpSocket> =
            pods.iter().flat_map(|pod| pod.pod.run(|| (0..EACH).map(|_| connected(DNS)).collect::<Vec<_>>())).collect();
        let bystanders: Vec<UdpSocket> = (0..BYSTANDERS).map(|_| connected(OTHER)).collect();
        assert!(!sockets.iter().any(has_error));

        let start = Instant::now();
        host.serve("a.toml", &service("shop/dns", &[DNS], &[TWO]));
        let total = sockets.len();
        let mut left: Vec<&UdpSocket> = sockets.iter().collect();
        while !left.is_empty() && start.elapsed() < Duration::from_secs(20) {
            left.retain(|socket| !has_error(socket));
            thread::sleep(Duration::from_millis(5));
        }
        assert!(left.is_empty(), "{} are never ended", left.len());
        assert_in_time(
            &format!("{total} sockets in {PODS} pods, next to {BYSTANDERS} others, are ended"),
            start.elapsed(),
        );
        assert!(!bystanders.iter().any(has_error));
        measure_passes(&host, &daemon);
    });
}

/// CPU time of the daemon and its reaper for passes that find nothing.
fn measure_passes(host: &Host, daemon: &Daemon) {
    let passes = || metric("nodelb_socket_passes_total").unwrap();
    let (before, ticks) = (passes(), ticks_of(daemon));
    for round in 0..10 {
        host.serve("a.toml", &service("shop/dns", &[DNS], if round % 2 == 0 { &[ONE, TWO] } else { &[TWO] }));
        thread::sleep(Duration::from_millis(600));
    }
    let (passes, millis) = (passes() - before, (ticks_of(daemon) - ticks) as f64 * 10.0);
    say(&format!("{passes} passes over 10,000 UDP sockets and what led to them: {millis} ms of CPU time"));
}

/// CPU time of the process, in hundredths of a second.
fn ticks_of(daemon: &Daemon) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn the_reaper_has_three_capabilities_and_ends_with_the_daemon() {
    sandbox::run("stale_sockets::the_reaper_has_three_capabilities_and_ends_with_the_daemon", |sandbox| {
        let host = Host::new(sandbox);
        host.serve("a.toml", &service("shop/dns", &[DNS], &[ONE]));
        let daemon = host.start();
        let reaper = reaper_of(&daemon).expect("a reaper");
        // CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
        let kept = format!("{:016x}", 1 << 12 | 1 << 19 | 1 << 21);
        // The daemon does not wait until the reaper has started.
        eventually("a reaper without other capabilities", || {
            ["CapPrm", "CapEff"].iter().all(|field| status(&reaper, field) == kept)
        });
        for (field, expected) in [
            ("Name", "nodelb-reaper"),
            ("CapInh", "0000000000000000"),
            ("CapPrm", &kept),
            ("CapEff", &kept),
            ("CapBnd", &kept),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Threads", "1"),
        ] {
            assert_eq!(status(&reaper, field), expected, "{field}");
        }
        let daemon_status = PathBuf::from(format!("/proc/{}", daemon.pid()));
        assert_eq!(status(&daemon_status, "CapPrm"), "0000000000000000");
        let open: Vec<PathBuf> =
            fs::read_dir(reaper.join("fd")).unwrap().map(|fd| fs::read_link(fd.unwrap().path()).unwrap()).collect();
        let is_known = |target: &PathBuf| {
            let text = target.display().to_string();
            ["socket:", "net:", "/dev/null"].iter().any(|known| text.starts_with(known)) || text.ends_with("/log")
        };
        assert!(open.len() <= 5 && open.iter().all(is_known), "{open:?}");
        daemon.kill();
        // No process in a sandbox reaps orphans.
        let is_over = || fs::read_to_string(reaper.join("status")).is_ok_and(|status| status.contains("State:\tZ"));
        eventually("it ends with the daemon", || !reaper.exists() || is_over());

        let daemon = host.start();
        let reaper = reaper_of(&daemon).expect("a reaper");
        let pid = reaper.file_name().unwrap().to_str().unwrap().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        eventually("it is missed", || metric("nodelb_socket_reaper_up") == Some(0.0));
        host.assert_logged("the reaper has ended");
        assert!(answer("/readyz", "text/plain").is_some(), "all else works");
        daemon.stop();
    });
}

#[test]
fn says_what_it_cannot_end() {
    sandbox::run("stale_sockets::says_what_it_cannot_end", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", ONE), backend("2", TWO)];
        host.serve("a.toml", &service("shop/dns", &[DNS], &[ONE]));
        let mut command = sandbox::program("setpriv");
        command.args(["--bounding-set=-sys_admin,-sys_ptrace", "--inh-caps=-all", env!("CARGO_BIN_EXE_nodelb")]);
        let mut daemon = host.launch(command, &[]);
        assert!(daemon.wait_ready(), "{}", host.log());
        eventually("it says so", || host.log().contains("CAP_SYS_ADMIN or CAP_SYS_PTRACE is missing"));
        let pod = PodWithProcess::new(1);
        let (here, there) = (connected(DNS), pod.pod.run(|| connected(DNS)));
        let start = Instant::now();
        host.serve("a.toml", &service("shop/dns", &[DNS], &[TWO]));
        assert_in_time("a socket of the host, without CAP_SYS_ADMIN", until_ended(&here, start));
        thread::sleep(WITHIN);
        // A busy machine may answer late.
        let answer = (0..5).find_map(|_| ask(&there).ok());
        assert_eq!(answer.as_deref(), Some("1"), "out of reach");
        daemon.stop();

        host.configure("disconnect = \"none\"");
        let daemon = host.start();
        assert_eq!(reaper_of(&daemon), None);
        assert_eq!(metric("nodelb_socket_reaper_up"), None);
    });
}
