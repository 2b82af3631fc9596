//! `nodelb drain` during a thousand connections per second: none fails, none is new at the drained backend after the
//! answer of the command, existing ones go on. It survives kill -9, and ends on time.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use nodelb_prober::{Backend, Plan, Probe, Transport};
use serde_json::Value;

use crate::host::{Host, NODELB, eventually, get, history, say, service, socket};
use crate::sandbox;

const SERVICE: &str = "198.51.100.10:80";
const BACKENDS: [&str; 2] = ["192.0.2.11:8080", "192.0.2.12:8080"];
const SOCKET: &str = "/run/nodelb-test/nodelb.sock";
/// The exit codes of nodelb(8).
const NOT_FOUND: i32 = 4;
const USAGE: i32 = 64;
const REFUSED: i32 = 75;
const PERMISSION: i32 = 77;
/// The login user of the commands, if the kernel knows login users.
const LOGIN: &str = "1";

/// A connection and a connected UDP socket, and the backends that they reached first.
struct Client {
    tcp: BufReader<TcpStream>,
    udp: UdpSocket,
    first: [String; 2],
}

impl Client {
    fn connect() -> Self {
        let tcp = TcpStream::connect(SERVICE).unwrap();
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        udp.connect(SERVICE).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        udp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Self { tcp: BufReader::new(tcp), udp, first: Default::default() };
        client.first = client.ask();
        client
    }

    fn ask(&mut self) -> [String; 2] {
        writeln!(self.tcp.get_mut(), "hello").unwrap();
        let mut line = String::new();
        self.tcp.read_line(&mut line).unwrap();
        self.udp.send(b"hello").unwrap();
        let mut buffer = [0; 64];
        let length = self.udp.recv(&mut buffer).unwrap();
        let name = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
        [name(&line), name(&String::from_utf8_lossy(&buffer[..length]))]
    }

    fn assert_stays(&mut self, when: &str) {
        let first = self.first.clone();
        assert_eq!(self.ask(), first, "{when}");
    }
}

/// Runs nodelb as a command of a user who has logged in.
fn nodelb(words: &[&str]) -> Output {
    let login = format!("echo {LOGIN} 2>/dev/null >/proc/self/loginuid; exec \"$0\" --admin {SOCKET} \"$@\"");
    Command::new("sh").args(["-c", &login, NODELB]).args(words).output().unwrap()
}

/// The output of a command that succeeds.
fn done(words: &[&str]) -> String {
    let output = nodelb(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and the message of a command that fails.
fn fails(output: &Output) -> (Option<i32>, String) {
    assert!(!output.status.success(), "{output:?}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).trim_end().to_owned())
}

fn probes() -> [Probe; 2] {
    [Transport::TcpLines, Transport::Udp].map(|transport| Probe::start(Plan::new(socket(SERVICE), transport)))
}

/// Stops the probes, and returns the number of exchanges with each backend; panics if any has failed.
fn finish(probes: [Probe; 2], when: &str) -> [u64; 2] {
    let mut sum = [0, 0];
    for probe in probes {
        let tally = probe.finish();
        assert_eq!(tally.failures(), 0, "{when}: {tally}, {:?}", tally.first_failure);
        for (name, number) in ["1", "2"].into_iter().zip(&mut sum) {
            *number += tally.answered.get(name).copied().unwrap_or_default();
        }
    }
    sum
}

/// New connections for this time; panics unless all reach the second backend.
fn assert_none_new(when: &str) -> u64 {
    let probes = probes();
    thread::sleep(Duration::from_secs(2));
    let [drained, other] = finish(probes, when);
    assert_eq!(drained, 0, "{when}: new at the drained backend, and {other} at the other one");
    assert!(other > 0, "{when}: no traffic");
    other
}

/// How long until a new connection reaches the first backend.
fn until_back(start: Instant) -> Duration {
    let plan = Plan { rate: 0, ..Plan::new(socket(SERVICE), Transport::TcpLines) };
    eventually("the drain ends", || nodelb_prober::probe::connect_times(plan, 8).answered.contains_key("1"));
    start.elapsed()
}

fn row(of: &str) -> Value {
    let answer = get("/backends").unwrap();
    let mut rows = answer["backends"].as_array().unwrap().iter();
    rows.find(|row| row["address"] == of).cloned().unwrap()
}

/// The last event of the service.
fn last() -> (String, String) {
    let event = history("shop/web").pop().unwrap();
    (event["what"].as_str().unwrap().into(), event["object"].as_str().unwrap_or_default().into())
}

/// Who runs the commands according to the kernel.
fn author() -> &'static str {
    let read = format!("echo {LOGIN} 2>/dev/null >/proc/self/loginuid; cat /proc/self/loginuid");
    let output = Command::new("sh").args(["-c", &read]).output().unwrap();
    if output.stdout.trim_ascii() == LOGIN.as_bytes() { "root (login daemon)" } else { "root" }
}

/// The answer over TCP to a request that would drain the backend.
fn over_tcp(more: &str) -> String {
    let mut stream = TcpStream::connect("127.0.0.1:9890").unwrap();
    let backend = BACKENDS[0];
    let request = format!(
        "POST /drains?service=shop/web&backend={backend} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{more}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn node(sandbox: &sandbox::Sandbox) -> (Host, [Backend; 2]) {
    let host = Host::new(sandbox);
    host.configure(&format!("[admin]\nsocket = {SOCKET:?}"));
    host.serve("a.toml", &service("shop/web", &[SERVICE], &BACKENDS));
    let start = |(name, address)| {
        let at = socket(address);
        Backend::start(name, &[(Transport::TcpLines, at), (Transport::Udp, at)]).unwrap()
    };
    (host, [("1", BACKENDS[0]), ("2", BACKENDS[1])].map(start))
}

#[test]
fn a_drain_under_load_loses_nothing_survives_and_ends_on_time() {
    sandbox::run("drain::a_drain_under_load_loses_nothing_survives_and_ends_on_time", |sandbox| {
        let (host, _backends) = node(sandbox);
        let mut daemon = host.start();
        let mut clients: Vec<Client> = (0..20).map(|_| Client::connect()).collect();
        let kept = clients.iter().flat_map(|client| &client.first).filter(|name| *name == "1").count();
        assert!(kept > 0, "some clients are at the backend");
        let mut stay = |when: &str| clients.iter_mut().for_each(|client| client.assert_stays(when));
        let load = probes();
        thread::sleep(Duration::from_millis(500));

        let start = Instant::now();
        let text = done(&["drain", "shop/web", BACKENDS[0], "--for", "1h"]);
        let took = start.elapsed();
        let others = assert_none_new("after the answer");
        stay("drained");
        let author = author();
        assert!(text.starts_with(&format!("192.0.2.11:8080 of shop/web is drained by {author} until ")), "{text}");

        // Every tool shows it.
        let drained = format!("drained by {author} until ");
        let shown = row("192.0.2.11:8080/TCP");
        assert_eq!((&shown["state"], &shown["choice"]), (&"Maintenance".into(), &"Maintenance".into()));
        assert!(shown["reason"].as_str().unwrap().starts_with(&drained), "{shown}");
        let status = nodelb(&["status"]);
        let said = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(said.contains(&format!("192.0.2.11:8080 is {drained}")), "{said}");
        assert!(status.status.success(), "a notice changes no exit code: {said}");
        for (words, expected) in [
            (&["frontends", "-o", "json"][..], "Drained=1"),
            (&["backends", "shop/web"], "drained by root"),
            (&["trace", SERVICE], "is drained by root"),
            (&["diagnose", "shop/web"], "drained by root"),
            (&["history", "shop/web", "-o", "json"], "\"Drained\""),
            (&["metrics"], "\nnodelb_drains 1\n"),
        ] {
            let output = nodelb(words);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains(expected), "{words:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(last(), ("Drained".into(), format!("drain of 192.0.2.11:8080 by {author} for 1h")));
        host.assert_logged("new connections avoid the backend");

        // kill -9 keeps it, and so does a service file that removes the backend and adds it again.
        daemon.kill();
        assert_none_new("without the daemon");
        daemon = host.start();
        let after = assert_none_new("after kill -9 and a restart");
        stay("after a restart");
        assert!(row("192.0.2.11:8080/TCP")["reason"].as_str().unwrap().starts_with(&drained));
        done(&["undrain", "shop/web", BACKENDS[0]]);
        let back = until_back(Instant::now());
        assert_eq!(last(), ("Undrained".into(), format!("undrain of 192.0.2.11:8080 by {author}")));

        // It ends on its own.
        let start = Instant::now();
        done(&["drain", "shop/web", "192.0.2.11", "--for", "2s"]);
        let ended = until_back(start);
        assert!((Duration::from_secs(2)..Duration::from_secs(6)).contains(&ended), "{ended:?}");
        assert_eq!(last(), ("Undrained".into(), format!("end of the drain of 192.0.2.11 by {author} after 2s")));

        // Also while the daemon is down.
        done(&["drain", "shop/web", BACKENDS[0], "--for", "1s"]);
        daemon.kill();
        thread::sleep(Duration::from_secs(2));
        daemon = host.start();
        until_back(Instant::now());
        assert_eq!(last().0, "Undrained");
        stay("at the end");
        let [one, two] = finish(load, "all the time");
        daemon.stop();
        say(&format!(
            "drain: {} exchanges, 0 failed; the command took {took:.1?}; new after its answer: 0 of {others}, after kill -9 \
             and a restart 0 of {after}; {kept} connections and UDP sockets at the backend went on; back {back:.1?} after \
             undrain; a drain of 2 s ended after {ended:.1?}",
            one + two
        ));
    });
}

#[test]
fn only_root_at_the_socket_drains_and_the_last_backend_stays() {
    sandbox::run("drain::only_root_at_the_socket_drains_and_the_last_backend_stays", |sandbox| {
        let (host, _backends) = node(sandbox);
        let daemon = host.start();
        for more in ["", "Sec-Fetch-Site: same-origin\r\n", "Origin: http://localhost:9890\r\n"] {
            let answer = over_tcp(more);
            assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        }
        assert!(over_tcp("").contains("only over the Unix socket admin.socket"));
        // A user of the daemon's group may read.
        let copy = host.path("nodelb");
        fs::copy(NODELB, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        let as_user = |words: &[&str]| {
            Command::new(&copy).args(["--admin", SOCKET]).args(words).uid(65_534).gid(0).output().unwrap()
        };
        assert!(as_user(&["backends"]).status.success());
        let (code, text) = fails(&as_user(&["drain", "shop/web", BACKENDS[0]]));
        assert_eq!(code, Some(PERMISSION), "{text}");
        assert!(text.contains("only root may drain backends, and this is user 65534: use sudo"), "{text}");

        let (code, text) = fails(&nodelb(&["drain", "shop/web", "192.0.2.13:8080"]));
        assert_eq!((code, text.contains("did you mean 192.0.2.1")), (Some(NOT_FOUND), true), "{text}");
        let (code, text) = fails(&nodelb(&["drain", "shop/wbe", BACKENDS[0]]));
        assert_eq!((code, text.contains("did you mean shop/web?")), (Some(NOT_FOUND), true), "{text}");
        let (code, text) = fails(&nodelb(&["undrain", "shop/web", BACKENDS[0]]));
        assert_eq!((code, text.contains("is not drained")), (Some(NOT_FOUND), true), "{text}");
        assert_eq!(fails(&nodelb(&["drain", "shop/web", "nonsense"])).0, Some(USAGE));
        done(&["drain", "shop/web", BACKENDS[0]]);
        let (code, text) = fails(&nodelb(&["drain", "shop/web", BACKENDS[1]]));
        assert_eq!(
            (code, text.contains("--force") && text.contains("is the last healthy backend of shop/web")),
            (Some(REFUSED), true),
            "{text}"
        );
        assert_none_new("after refusals");
        done(&["drain", "shop/web", BACKENDS[1], "--force"]);
        let status = nodelb(&["status"]);
        let text = String::from_utf8_lossy(&status.stdout);
        assert!(
            text.contains("no usable backend: 4 backends not used: 192.0.2.11:8080/TCP is drained by root"),
            "{text}"
        );
        assert_eq!(last().0, "Emptied");
        assert!(row("192.0.2.12:8080/TCP")["reason"].as_str().unwrap().ends_with("until nodelb undrain"));
        done(&["undrain", "shop/web", BACKENDS[1]]);
        assert_none_new("one is back");

        // A damaged file is put aside, and drains nothing.
        daemon.stop();
        fs::write(host.path("state/drains.json"), "{").unwrap();
        let daemon = host.start();
        until_back(Instant::now());
        assert!(host.path("state/drains.json.corrupt").exists());
        daemon.stop();
    });
}
