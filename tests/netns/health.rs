//! Health checks through the real daemon: backends that die and recover, a restart while one is
//! dead, a thousand that flap at once, and backends that are drained.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nodelb_prober::{Backend, Plan, Probe, Transport};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::host::{
    Daemon, Host, answering, backend, connect, errno, eventually, get, is_served_by, say, service, socket,
};
use crate::sandbox;

const SERVICE: &str = "198.51.100.10:80";
const BACKENDS: [&str; 2] = ["192.0.2.11:8080", "192.0.2.12:8080"];
const BOTH: [&str; 2] = ["192.0.2.11:8080/TCP", "192.0.2.12:8080/TCP"];

/// A check every 100 ms where a single result counts.
const QUICK: &str = "interval = \"100ms\"\ntimeout = \"100ms\"\nrise = 1\nfall = 1\n";

/// A node whose state directory is deleted with the sandbox.
fn node(sandbox: &sandbox::Sandbox) -> Host {
    let host = Host::new(sandbox);
    host.configure("[state]\ndirectory = \"/run/nodelb-test/state\"");
    host
}

/// The service file with a health check of these lines.
fn checked(name: &str, backends: &[&str], check: &str) -> String {
    format!("{}[service.health-check]\n{check}", service(name, &[SERVICE], backends))
}

/// The row of `/backends` for an address such as `192.0.2.11:8080/TCP`.
fn row(address: &str) -> Option<Value> {
    let answer = get("/backends")?;
    answer["backends"].as_array().unwrap().iter().find(|row| row["address"] == address).cloned()
}

fn is_quarantined(address: &str, error: &str) -> bool {
    let is_so = |row: Value| row["choice"] == "Quarantined" && row["reason"] == error;
    row(address).is_some_and(is_so)
}

/// Answers every HTTP request on one port of every IPv4 address: those of the first kind with 200,
/// the others with the configured status.
struct Answers {
    is_well: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
    at: SocketAddr,
}

impl Answers {
    fn start(at: &str, is_always_well: fn(Ipv4Addr) -> bool) -> Self {
        let address = socket(at);
        let listener = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        listener.bind(&address.into()).unwrap();
        // On a busy machine, a full queue would make healthy backends time out.
        listener.listen(4096).unwrap();
        let listener = TcpListener::from(listener);
        let (is_well, stop): (Arc<AtomicBool>, Arc<AtomicBool>) = (Arc::new(true.into()), Arc::default());
        let (well, stopped) = (Arc::clone(&is_well), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let Ok(SocketAddr::V4(own)) = stream.local_addr() else { continue };
                drop(stream.read(&mut [0; 1024]));
                let is_good = is_always_well(*own.ip()) || well.load(Ordering::Relaxed);
                let status = if is_good { "200 OK" } else { "503 Service Unavailable" };
                drop(write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"));
            }
        });
        let at = SocketAddr::from(([127, 0, 0, 1], address.port()));
        Self { is_well, stop, thread: Some(thread), at }
    }

    fn set_well(&self, is_well: bool) {
        self.is_well.store(is_well, Ordering::Relaxed);
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.at));
        drop(self.thread.take().map(thread::JoinHandle::join));
    }
}

#[test]
fn a_backend_that_dies_gets_nothing_until_it_is_back() {
    sandbox::run("health::a_backend_that_dies_gets_nothing_until_it_is_back", |sandbox| {
        let host = node(sandbox);
        let _one = backend("1", BACKENDS[0]);
        let two = backend("2", BACKENDS[1]);
        host.serve("a.toml", &checked("shop/web", &BACKENDS, &format!("type = \"tcp\"\n{QUICK}")));
        let daemon = host.start();
        eventually("both in use", || is_served_by("198.51.100.10:80/TCP", &BOTH));
        assert_eq!(answering(SERVICE), ["1", "2"]);
        drop(two);
        eventually("the second is quarantined", || is_quarantined(BOTH[1], "connection refused"));
        assert!(is_served_by("198.51.100.10:80/TCP", &BOTH[..1]));
        assert_eq!(connect(SERVICE, Transport::Tcp, 100).answered.get("1"), Some(&100));
        let _two = backend("2", BACKENDS[1]);
        eventually("the second is back", || is_served_by("198.51.100.10:80/TCP", &BOTH));
        assert_eq!(answering(SERVICE), ["1", "2"]);
        daemon.stop();
        host.cleanup();
    });
}

/// There is no route to 203.0.113.7. If no backend has one, the host's own network is down, which
/// proves nothing.
#[test]
fn a_backend_without_a_route_is_quarantined() {
    sandbox::run("health::a_backend_without_a_route_is_quarantined", |sandbox| {
        let host = node(sandbox);
        let check = format!("type = \"tcp\"\n{QUICK}");
        let (near, far) = (BACKENDS[0], "203.0.113.7:8080");
        let _near = backend("1", near);
        host.serve("a.toml", &checked("shop/web", &["203.0.113.8:8080", far], &check));
        let daemon = host.start();
        eventually("that no check can be made", || host.log().contains("health checks could not be sent"));
        assert!(is_served_by("198.51.100.10:80/TCP", &["203.0.113.7:8080/TCP", "203.0.113.8:8080/TCP"]));

        host.serve("a.toml", &checked("shop/web", &[near, far], &check));
        let is_out = || is_quarantined("203.0.113.7:8080/TCP", "network is unreachable");
        eventually("the one without a route is quarantined", is_out);
        assert!(is_served_by("198.51.100.10:80/TCP", &BOTH[..1]));
        assert_eq!(connect(SERVICE, Transport::Tcp, 100).answered.get("1"), Some(&100));
        daemon.stop();
        host.cleanup();
    });
}

/// The check detects what a client of an HTTP service cannot; it never uses the address of the
/// service.
#[test]
fn an_http_status_decides_and_the_last_resort_is_a_choice() {
    sandbox::run("health::an_http_status_decides_and_the_last_resort_is_a_choice", |sandbox| {
        let host = node(sandbox);
        let _backends = [backend("1", BACKENDS[0]), backend("2", BACKENDS[1])];
        let health = Answers::start("0.0.0.0:7000", |own| own == Ipv4Addr::new(192, 0, 2, 11));
        let check = format!("type = \"http\"\npath = \"/healthz\"\nport = 7000\n{QUICK}");
        host.serve("a.toml", &checked("shop/web", &BACKENDS, &check));
        // A service at the very address of the check: the check must not be translated.
        let elsewhere = service("shop/trap", &["192.0.2.12:7000"], &["192.0.2.11:7000"]);
        host.serve("trap.toml", &elsewhere);
        let daemon = host.start();
        eventually("both in use", || is_served_by("198.51.100.10:80/TCP", &BOTH));
        health.set_well(false);
        eventually("the second is quarantined", || is_quarantined(BOTH[1], "status 503, expected 200-399"));
        assert_eq!(answering(SERVICE), ["1"]);

        host.serve("a.toml", &checked("shop/web", &BACKENDS[1..], &check));
        eventually("the last resort", || is_served_by("198.51.100.10:80/TCP", &BOTH[1..]));
        assert_eq!(answering(SERVICE), ["2"]);
        health.set_well(true);
        host.serve("a.toml", &checked("shop/web", &BACKENDS[1..], &format!("{check}last-resort = false\n")));
        eventually("well again", || row(BOTH[1]).is_some_and(|row| row["state"] == "Active"));
        health.set_well(false);
        eventually("no last resort", || is_served_by("198.51.100.10:80/TCP", &[]));
        assert_eq!(errno(SERVICE, Transport::Tcp), "ECONNREFUSED");
        let blamed =
            "has no usable backend: health checks (192.0.2.12:8080: status 503, expected 200-399) removed the last one";
        // Another thread writes the log.
        eventually(blamed, || host.log().contains(blamed));
        daemon.stop();
    });
}

/// Killed and restarted while a backend is dead: no connection reaches it.
#[test]
fn a_restart_does_not_put_back_what_is_dead() {
    sandbox::run("health::a_restart_does_not_put_back_what_is_dead", |sandbox| {
        let host = node(sandbox);
        let _one = backend("1", BACKENDS[0]);
        // With this interval, only the stored state can exclude the dead backend.
        let check = "type = \"tcp\"\ninterval = \"1h\"\n";
        host.serve("a.toml", &checked("shop/web", &BACKENDS, check));
        let mut daemon = host.start();
        eventually("the second is quarantined", || is_quarantined(BOTH[1], "connection refused"));
        let state = host.path("state/health.json");
        let is_kept = || fs::read_to_string(&state).is_ok_and(|text| text.contains("192.0.2.12:8080"));
        eventually("it is remembered", is_kept);
        let probe = Probe::start(Plan::new(socket(SERVICE), Transport::Tcp));
        for _ in 0..3 {
            daemon.kill();
            daemon = host.start();
            assert!(is_served_by("198.51.100.10:80/TCP", &BOTH[..1]), "from the first moment on");
        }
        daemon.stop();
        let tally = probe.finish();
        assert_eq!(tally.failures(), 0, "{tally}, {:?}", tally.first_failure);
        // A reboot empties the maps; the stored state remains.
        host.cleanup();
        let daemon = host.start();
        assert!(is_served_by("198.51.100.10:80/TCP", &BOTH[..1]));
        assert_eq!(connect(SERVICE, Transport::Tcp, 100).answered.get("1"), Some(&100));
        daemon.stop();
    });
}

const SERVICES: u8 = 100;
const FLAPPING: u8 = 10;

/// A hundred services with one stable and ten flapping backends each.
fn flapping_services(interval: &str) -> String {
    let mut text = String::new();
    for number in 0..SERVICES {
        let flapping =
            (0..FLAPPING).map(|index| format!("\"127.1.{number}.{index}:8080\"")).collect::<Vec<_>>().join(", ");
        text += &format!(
            "[[service]]\nname = \"flap/s{number}\"\nfrontends = [\"198.51.100.{number}:80\"]\n\
             backends = [\"192.0.2.{}:8080\", {flapping}]\n\
             [service.health-check]\ntype = \"http\"\nport = 7000\ninterval = \"{interval}\"\ntimeout = \"{interval}\"\n\
             rise = 1\nfall = 2\nlast-resort = false\n",
            number + 1
        );
    }
    text
}

/// Number of frontends with this many backends.
fn with_backends(count: usize) -> usize {
    let answer = get("/frontends").unwrap();
    let rows = answer["frontends"].as_array().unwrap();
    rows.iter().filter(|row| row["backends"].as_array().unwrap().len() == count).count()
}

/// The open descriptors of the idle daemon.
fn least_descriptors(daemon: &Daemon) -> Vec<String> {
    let looks = (0..40).map(|_| {
        thread::sleep(Duration::from_millis(50));
        descriptors(daemon)
    });
    looks.min_by_key(Vec::len).unwrap_or_default()
}

/// The open descriptors of the daemon, without numbers that differ each time.
fn descriptors(daemon: &Daemon) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let kinds = links.map(|link| link.to_string_lossy().split('[').next().unwrap_or_default().to_owned());
    let mut kinds: Vec<String> = kinds.collect();
    kinds.sort();
    kinds
}

/// Number of sockets of this namespace, in any state, whose peer has the port of the checks.
fn sockets_of_checks() -> usize {
    let output = sandbox::program("ss").args(["-Htan", "dport", "=", ":7000"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

#[test]
fn a_thousand_flapping_backends_affect_no_other_and_leak_nothing() {
    sandbox::run("health::a_thousand_flapping_backends_affect_no_other_and_leak_nothing", |sandbox| {
        let host = node(sandbox);
        let everywhere = [(Transport::Tcp, socket("0.0.0.0:8080"))];
        let _backends = Backend::start("any", &everywhere).unwrap();
        let health = Answers::start("0.0.0.0:7000", |own| own.octets()[0] == 192);
        let daemon = host.start();
        let (empty, descriptors_before) = (get("/maps").unwrap(), least_descriptors(&daemon));
        host.serve("flap.toml", &flapping_services("1s"));
        let all = usize::from(SERVICES);
        eventually("every backend is in use", || with_backends(usize::from(FLAPPING) + 1) == all);
        let probes = [0, 42, 99].map(|number| {
            let to = socket(&format!("198.51.100.{number}:80"));
            Probe::start(Plan { rate: 200, ..Plan::new(to, Transport::Tcp) })
        });
        for _ in 0..3 {
            health.set_well(false);
            eventually("only the steady ones are in use", || with_backends(1) == all);
            health.set_well(true);
            eventually("all are in use again", || with_backends(usize::from(FLAPPING) + 1) == all);
        }
        for probe in probes {
            let tally = probe.finish();
            assert!(tally.ok() > 100, "{tally}");
            assert_eq!(tally.failures(), 0, "{tally}, {:?}", tally.first_failure);
        }
        host.assert_logged(" more backends quarantined");
        let log = host.log();
        let lines = log.lines().filter(|line| line.contains("flap/") || line.contains("health checks")).count();
        say(&format!("{lines} lines in the journal"));
        assert!(lines < 400, "{lines} lines in the journal:\n{log}");

        host.withdraw("flap.toml");
        // Slots rest for a second before they are free.
        eventually("the maps are empty again", || get("/maps").is_some_and(|maps| maps == empty));
        eventually("no socket is left", || sockets_of_checks() == 0);
        assert_eq!(least_descriptors(&daemon), descriptors_before);
        let backends = get("/backends").unwrap();
        assert_eq!(backends["backends"], Value::Array(Vec::new()));
        let state = host.path("state/health.json");
        eventually("nothing is remembered", || fs::read_to_string(&state).is_ok_and(|text| !text.contains("flap/")));
        daemon.stop();
        host.cleanup();
    });
}

/// Echoes each line with this name in front, until the client disconnects.
fn echo(name: &'static str, address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut writer = stream.try_clone().unwrap();
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    drop(writeln!(writer, "{name} {line}"));
                }
            });
        }
    });
}

/// A client that keeps its connection.
struct Client {
    tcp: BufReader<TcpStream>,
    udp: UdpSocket,
}

impl Client {
    fn connect() -> Self {
        let tcp = TcpStream::connect(SERVICE).unwrap();
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        udp.connect(SERVICE).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        udp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { tcp: BufReader::new(tcp), udp }
    }

    /// The backends that answer over TCP and UDP.
    fn ask(&mut self) -> [String; 2] {
        writeln!(self.tcp.get_mut(), "hello").unwrap();
        let mut line = String::new();
        self.tcp.read_line(&mut line).unwrap();
        self.udp.send(b"hello").unwrap();
        let mut buffer = [0; 64];
        let length = self.udp.recv(&mut buffer).unwrap();
        let name = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        [name(&line), name(&String::from_utf8_lossy(&buffer[..length]))]
    }
}

#[test]
fn a_backend_in_maintenance_keeps_what_it_has_and_gets_nothing_new() {
    sandbox::run("health::a_backend_in_maintenance_keeps_what_it_has_and_gets_nothing_new", |sandbox| {
        let host = node(sandbox);
        let names = ["1", "2"];
        let mut datagrams = Vec::new();
        for (name, address) in names.into_iter().zip(BACKENDS) {
            echo(name, address);
            datagrams.push(Backend::start(name, &[(Transport::Udp, socket(address))]).unwrap());
        }
        host.serve("a.toml", &service("shop/web", &[SERVICE], &BACKENDS[..1]));
        let daemon = host.start();
        let mut old = Client::connect();
        assert_eq!(old.ask(), ["1", "1"]);

        let drained = service("shop/web", &[SERVICE], &BACKENDS).replace(
            &format!("{:?}", BACKENDS[0]),
            &format!("{{ address = {:?}, state = \"maintenance\" }}", BACKENDS[0]),
        );
        host.serve("a.toml", &drained);
        for protocol in ["TCP", "UDP"] {
            let (frontend, second) = (format!("{SERVICE}/{protocol}"), format!("{}/{protocol}", BACKENDS[1]));
            eventually("drained", || is_served_by(&frontend, &[&second]));
        }
        for _ in 0..50 {
            assert_eq!(Client::connect().ask(), ["2", "2"], "no new connection");
        }
        // Longer than any action of nodelb on removed backends.
        thread::sleep(Duration::from_secs(3));
        assert_eq!(old.ask(), ["1", "1"], "the old ones stay");
        assert_eq!(row(BOTH[0]).map(|row| row["choice"].clone()), Some("Maintenance".into()));
        daemon.stop();
    });
}
