//! Breaks a service in every way, with the real daemon and a cluster: `nodelb diagnose` must name the true cause first,
//! and `nodelb status`, `/diff` and `/history` must agree. `nodelb watch` must show the events before it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use libbpf_rs::Link;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodelb_apiserver::{Cluster, Patch, Role};
use serde_json::{Value, json};

use crate::cluster::{apply, serve, service, slice};
use crate::host::{eventually, get, history, is_served_by};
use crate::sandbox;
use crate::ways::{BACKEND, Fixture, NODELB, SERVER, Seen, WAYS, WEB, Way, differences, filled, pod, verdict, way};

/// The last parts of the addresses of the 200 services that work, next to the broken one.
fn others() -> impl Iterator<Item = u32> {
    (2..=254).filter(|number| ![80, 81, 90].contains(number)).take(200)
}

/// One of 200 services is broken, each time in another way: a stranger reads which one and why in the first line of
/// `nodelb status`, on the web page, and of `nodelb diagnose`.
#[test]
fn a_stranger_finds_the_broken_one_of_200_services() {
    sandbox::run("diagnose::a_stranger_finds_the_broken_one_of_200_services", |sandbox| {
        let fixture = Fixture::new(sandbox);
        for number in others() {
            let name = format!("other-{number}");
            apply(&fixture.cluster, service(&name, &format!("198.51.100.{number}")));
            apply(&fixture.cluster, slice(&name, &[BACKEND]));
        }
        eventually("the last one", || is_served_by("198.51.100.204:443/TCP", &["192.0.2.80:8080/TCP"]));
        assert_eq!(problems(), Vec::<Value>::new());
        for way in &WAYS {
            finds(&fixture, way);
        }
    });
}

/// Breaks a service, and panics unless all three outputs show it. Then repairs it.
fn finds(fixture: &Fixture, way: &Way) {
    crate::host::say(way.name);
    (way.breaks)(fixture);
    assert_eq!(verdict(), (way.verdict.0.into(), way.verdict.1.into()), "{}", way.name);
    fixture.blames(way.service, way.finding.1, way.finding.0, way.finding.2);
    match &way.problem {
        Seen::As(reason, words) => shows(way.service, reason, words),
        Seen::Unseen(why) => assert_eq!(problems(), Vec::<Value>::new(), "{}: not known before: {why}", way.name),
    }
    (way.repairs)(fixture);
    fixture.is_sound();
    eventually("no problem is left", || problems().is_empty());
}

/// The problems of `/status`, without those about earlier changes of other programs.
pub(crate) fn problems() -> Vec<Value> {
    let mut problems = get("/status").unwrap()["problems"].as_array().unwrap().clone();
    problems.retain(|problem| problem["reason"] != "ExternalChanges");
    problems
}

/// Panics unless the first problem is this one: in JSON, in text, and on the page.
fn shows(service: &str, reason: &str, words: &[&str]) {
    let is_it = |problem: &Value| {
        let text = problem["cause"].as_str().unwrap_or_default();
        problem["object"] == service && problem["reason"] == reason && words.iter().all(|part| text.contains(part))
    };
    let status = get("/status").unwrap();
    assert!(is_it(&status["problems"][0]), "{service}, {words:?}: {:#}", status["problems"]);
    let page = on_page();
    assert!(is_it(&page["problems"][0]), "{service}, {words:?}: {:#}", page["problems"]);
    let output = Command::new(NODELB).arg("status").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().nth(2).unwrap_or_default();
    assert!(first.contains(service) && words.iter().all(|part| first.contains(part)), "{text}");
    // A notice is no reason for a script to act.
    let code = if status["problems"][0]["severity"] == "notice" { 0 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{text}");
}

/// The status as the page receives it.
fn on_page() -> Value {
    let mut stream = BufReader::new(TcpStream::connect("127.0.0.1:9890").unwrap());
    stream.get_mut().write_all(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut lines = stream.lines().map_while(Result::ok).skip_while(|line| line != "event: status");
    let data = lines.find_map(|line| line.strip_prefix("data:").map(str::to_owned));
    serde_json::from_str(&data.expect("a status")).unwrap()
}

/// What else is reported about a broken service: the history, and the exit code of one that does not exist.
#[test]
fn a_service_that_was_emptied_and_one_that_does_not_exist() {
    sandbox::run("diagnose::a_service_that_was_emptied_and_one_that_does_not_exist", |sandbox| {
        let fixture = Fixture::new(sandbox);
        fixture.blames("default/wep", 4, "no-such-service", &["did you mean default/web?"]);
        let emptied = way("a writer empties the EndpointSlice");
        (emptied.breaks)(&fixture);
        let rows = history("default/web");
        assert!(rows.iter().any(|row| row["removed"].to_string().contains("192.0.2.80:8080/TCP")), "{rows:#?}");
        eventually("memory and kernel have what the source says", || differences().is_empty());
        (emptied.repairs)(&fixture);
        fixture.is_sound();
        // Each time, a connection to the service reaches one backend or the other.
        let dead = way("one of two backends refuses connections");
        (dead.breaks)(&fixture);
        for _ in 0..8 {
            fixture.blames(dead.service, dead.finding.1, dead.finding.0, dead.finding.2);
        }
    });
}

/// The daemon attaches a hook again within seconds, perhaps before the command runs.
#[test]
fn a_detached_hook_is_blamed() {
    sandbox::run("diagnose::a_detached_hook_is_blamed", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let link = fixture.host.pins.join("v1/links/connect4");
        eventually("the detached hook is blamed", || {
            if let Ok(link) = Link::open(&link) {
                drop(link.detach());
            }
            let report = fixture.report("default/web").1;
            let first = &report["findings"][0];
            first["kind"] == "hooks-not-in-effect" && first.to_string().contains("connect4")
        });
        // `/status` names a hook that stays detached, and one that was repaired for 15 minutes after that.
        eventually("the status names it", || {
            let problem = get("/status").unwrap()["problems"][0].clone();
            let cause = problem["cause"].as_str().unwrap_or_default().to_owned();
            let is = |reason: &str, part: &str| problem["reason"] == reason && cause.contains(part);
            is("HooksNotInEffect", "connect4") || is("ExternalChanges", "connect4")
        });
        eventually("the hooks are attached again", || differences().is_empty());
        fixture.is_sound();
    });
}

#[test]
fn apiservers_permissions_and_daemons_that_are_missing() {
    sandbox::run("diagnose::apiservers_permissions_and_daemons_that_are_missing", |sandbox| {
        let mut fixture = Fixture::new(sandbox);
        fixture.cluster.allow("nodelb", Role::node_proxier().without("endpointslices"));
        fixture.server.as_ref().unwrap().faults().end_watches();
        eventually("the refusal", || {
            get("/sources").is_some_and(|answer| answer.to_string().contains("kubectl auth can-i"))
        });
        fixture.blames("default/web", 2, "permission-missing", &["endpointslices", "system:node-proxier"]);
        fixture.cluster.allow("nodelb", Role::node_proxier());
        eventually("the permission", || {
            get("/sources").is_some_and(|answer| !answer.to_string().contains("kubectl auth can-i"))
        });
        fixture.is_sound();

        // Slices that no proxy accepts, including nodelb: with host names, and of a headless
        // service.
        let mut by_name = slice("web", &[]);
        by_name["metadata"]["name"] = "web-by-name".into();
        by_name["addressType"] = "FQDN".into();
        by_name["endpoints"] = json!([{"addresses": ["foo.example.com"], "conditions": {"ready": true}}]);
        apply(&fixture.cluster, by_name);
        let mut headless = slice("web", &["192.0.2.98:80"]);
        headless["metadata"]["name"] = "web-headless".into();
        headless["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
        apply(&fixture.cluster, headless);
        fixture.is_sound();
        for name in ["web-by-name", "web-headless"] {
            fixture.cluster.delete("endpointslices", "default", name).unwrap();
        }

        drop(fixture.server.take());
        eventually("the loss", || get("/apiservers").is_some_and(|answer| answer["session"]["apiserver"].is_null()));
        fixture.blames(
            "default/web",
            1,
            "apiserver-away",
            &["no API server in use", SERVER, "cannot reach one either"],
        );

        // Without a daemon traffic continues, and Kubernetes can still be queried.
        fixture.server = Some(serve(&fixture.cluster, SERVER));
        fixture.daemon.terminate();
        fixture.blames("default/web", 1, "daemon-silent", &["systemctl restart nodelb"]);
        let report = fixture.diagnose("default/web", 1);
        assert!(report.to_string().contains("1 frontend and 1 backend answer from here"), "{report:#}");
    });
}

/// The configuration was reset, as by a package or a power loss: everything works, and nothing that changes arrives.
#[test]
fn a_source_that_was_there_before_and_is_not_configured() {
    sandbox::run("diagnose::a_source_that_was_there_before_and_is_not_configured", |sandbox| {
        let mut fixture = Fixture::new(sandbox);
        let remembered = fixture.host.path("state/kubernetes.jsonl");
        eventually("the service is remembered", || {
            std::fs::read_to_string(&remembered).is_ok_and(|text| text.contains("192.0.2.80"))
        });
        assert!(fixture.daemon.terminate().success());
        fixture.host.configure(&format!("[state]\ndirectory = {:?}\n", fixture.host.path("state")));
        fixture.daemon = fixture.host.start();
        eventually("the service as last known", || is_served_by(WEB, &["192.0.2.80:8080/TCP"]));
        fixture.host.assert_logged("kubernetes is no longer configured as a source");
        fixture.blames(
            "default/web",
            1,
            "source-absent",
            &["kubernetes is no longer configured", "check-config", "nodelb diff"],
        );
        apply(&fixture.cluster, service("new", "198.51.100.81"));
        fixture.blames("default/new", 2, "source-absent", &["configure [kubernetes]", "systemctl restart nodelb"]);

        // One of a file has nothing to do with it.
        fixture.host.serve("a.toml", &crate::host::service("mine/own", &["198.51.100.90:80"], &[BACKEND]));
        eventually("the file's service", || is_served_by("198.51.100.90:80/TCP", &["192.0.2.80:8080/TCP"]));
        let report = fixture.diagnose("mine/own", 0);
        assert!(!report.to_string().contains("source-absent"), "{report:#}");
    });
}

/// A running `nodelb watch` and its output.
struct Watching {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Watching {
    fn start(fixture: &Fixture, arguments: &[&str]) -> Self {
        let mut command = Command::new(NODELB);
        command.arg("watch").args(arguments).arg("--config").arg(fixture.host.path("nodelb.toml"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line that contains all of these.
    fn prints(&mut self, parts: &[&str]) {
        eventually(&format!("a line with {parts:?} after {:#?}", self.seen), || {
            self.seen.extend(self.lines.try_iter());
            self.seen.iter().any(|line| parts.iter().all(|part| line.contains(part)))
        });
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn watch_shows_events_also_without_a_daemon() {
    sandbox::run("diagnose::watch_shows_events_also_without_a_daemon", |sandbox| {
        let mut fixture = Fixture::new(sandbox);
        let mut watching = Watching::start(&fixture, &["default/kubernetes"]);
        watching.prints(&["# watching 192.0.2.21:6443 (reported by the daemon)"]);
        watching.prints(&["EndpointSlice default/kubernetes ADDED", "backends +192.0.2.21 (ready)"]);
        fixture.daemon.terminate();
        let shutting_down = fixture.cluster.writing_as("kube-apiserver");
        let empty = Patch::Merge(json!({"endpoints": null, "ports": null}));
        shutting_down.patch("endpointslices", "default", "kubernetes", &empty).unwrap();
        watching.prints(&[
            "EndpointSlice default/kubernetes MODIFIED",
            "by=kube-apiserver",
            "backends -192.0.2.21",
            "endpoints: null",
        ]);
        let synced = Patch::Merge(json!({"metadata": {"annotations": {"synced": "now"}}}));
        fixture.cluster.patch("services", "default", "kubernetes", &synced).unwrap();
        watching.prints(&["Service default/kubernetes MODIFIED", "only annotations: annotations +synced"]);

        drop(fixture.server.take());
        watching.prints(&["# lost 192.0.2.21:6443", "reconnecting"]);
        apply(&fixture.cluster, slice("kubernetes", &[SERVER]));
        fixture.cluster.compact();
        fixture.server = Some(serve(&fixture.cluster, SERVER));
        watching.prints(&["# watching 192.0.2.21:6443 (configured)"]);
        watching.prints(&["EndpointSlice default/kubernetes MODIFIED", "(listed)", "backends +192.0.2.21"]);
        fixture.cluster.delete("endpointslices", "default", "kubernetes").unwrap();
        watching.prints(&["EndpointSlice default/kubernetes DELETED", "backends -192.0.2.21"]);

        kill(Pid::from_raw(watching.child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        assert_eq!(watching.child.wait().unwrap().code(), Some(0), "interrupted is done");
        assert!(!watching.seen.iter().any(|line| line.contains("default/web")), "{:#?}", watching.seen);

        // A reader that closes the pipe is not an error, even while nothing changes.
        let mut json = Watching::start(&fixture, &["--output", "json"]);
        json.prints(&["\"notice\":\"listed 2 objects of kind Service; watching\""]);
        apply(&fixture.cluster, pod("other", &json!({}), true));
        apply(&fixture.cluster, service("new", "198.51.100.95"));
        json.prints(&["\"kind\":\"Service\"", "\"event\":\"ADDED\"", "\"name\":\"new\""]);
        for line in &json.seen {
            assert!(serde_json::from_str::<Value>(line).is_ok_and(|line| line["at"].is_string()), "{line}");
        }
        let mut head = Command::new("sh");
        head.args(["-c", &format!("{NODELB} watch --config {} | head -1", fixture.host.path("nodelb.toml").display())]);
        let output = head.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    });
}

/// A service that never had backends has not lost any: waits until the daemon has seen them.
fn seen_with_backends() {
    std::thread::sleep(Duration::from_secs(5));
}

/// The Events that nodelb has written about a service.
fn events(cluster: &Cluster, service: &str) -> Vec<Value> {
    let mut events = cluster.list("events");
    events.retain(|event| event["involvedObject"]["name"] == service);
    events
}

/// Like [`eventually`], for actions that a node may delay by up to a minute, depending on its name.
fn eventually_slowly(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..75 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    eventually(what, done);
}

#[test]
fn events_are_written_where_they_are_asked_for() {
    sandbox::run("diagnose::events_are_written_where_they_are_asked_for", |sandbox| {
        let fixture = Fixture::with(sandbox, "events = true");
        seen_with_backends();
        let empty = Patch::Merge(json!({"endpoints": null}));
        for name in ["web", "kubernetes"] {
            fixture.cluster.patch("endpointslices", "default", name, &empty).unwrap();
        }
        eventually_slowly("the Events", || {
            !events(&fixture.cluster, "web").is_empty() && !events(&fixture.cluster, "kubernetes").is_empty()
        });
        let [lost, held] = ["web", "kubernetes"].map(|service| {
            let mut events = events(&fixture.cluster, service);
            assert_eq!(events.len(), 1, "{events:#?}");
            events.remove(0)
        });
        let uid = fixture.cluster.get("services", "default", "web").unwrap()["metadata"]["uid"].clone();
        assert_eq!((&lost["reason"], &lost["involvedObject"]["uid"]), (&json!("NoBackends"), &uid));
        assert_eq!((&held["reason"], &held["type"]), (&json!("BackendsHeld"), &json!("Warning")));
        assert!(held["message"].as_str().unwrap().contains("198.51.100.1:443/TCP"), "{held:#}");
        let report = fixture.diagnose("default/web", 2);
        assert!(report.to_string().contains("Kubernetes warns: NoBackends"), "{report:#}");
    });
}

#[test]
fn a_refused_event_is_one_line() {
    sandbox::run("diagnose::a_refused_event_is_one_line", |sandbox| {
        let fixture = Fixture::with(sandbox, "events = true");
        seen_with_backends();
        fixture.cluster.allow("nodelb", Role::node_proxier().without("events"));
        fixture.cluster.patch("endpointslices", "default", "web", &Patch::Merge(json!({"endpoints": null}))).unwrap();
        let said =
            || fixture.host.log().lines().filter(|line| line.contains("Kubernetes Events are not written")).count();
        eventually_slowly("the refusal", || said() == 1);
        fixture.host.assert_logged("kubectl auth can-i create events --namespace default");
        std::thread::sleep(Duration::from_secs(12));
        assert_eq!(said(), 1);
        assert!(events(&fixture.cluster, "web").is_empty());
        apply(&fixture.cluster, filled());
        eventually("changes go on", || is_served_by(WEB, &["192.0.2.80:8080/TCP"]));
    });
}
