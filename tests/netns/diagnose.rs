//! Breaks a service in every way, with the real daemon and a cluster: `nodelb diagnose` must name
//! the true cause first, and `/diff` and `/history` must agree. `nodelb watch` must show the events
//! that led to it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use libbpf_rs::{Link, MapCore, MapHandle};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodelb_apiserver::{Cluster, Patch, Replica, Role};
use nodelb_prober::Backend;
use serde_json::{Value, json};

use crate::cluster::{apply, cluster_at, configure, in_order, join, serve, service, slice};
use crate::host::{Daemon, Host, backend, eventually, frontend, get, history, is_served_by};
use crate::sandbox;

const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");
const SERVER: &str = "192.0.2.21:6443";
const BACKEND: &str = "192.0.2.80:8080";
const WEB: &str = "198.51.100.80:443/TCP";

/// A node in a cluster that serves `default/web` with one pod, and a kubeconfig of a user with all
/// read permissions.
struct Fixture {
    host: Host,
    cluster: Cluster,
    server: Option<Replica>,
    daemon: Daemon,
    _backend: Backend,
}

impl Fixture {
    fn new(sandbox: &sandbox::Sandbox) -> Self {
        Self::with(sandbox, "")
    }

    /// The same with more lines in `[kubernetes]`.
    fn with(sandbox: &sandbox::Sandbox, kubernetes: &str) -> Self {
        let host = Host::new(sandbox);
        // As on every node of a cluster.
        for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{family}"), "1").unwrap();
        }
        let cluster = cluster_at(&[SERVER]);
        let node = nix::unistd::gethostname().unwrap().into_string().unwrap().to_lowercase();
        apply(&cluster, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}));
        let server = Some(serve(&cluster, SERVER));
        let web_backend = backend("web", BACKEND);
        join(&host, &cluster, &[SERVER]);
        let kubeconfig = format!("{kubernetes}\nkubeconfig = {:?}\n", host.path("kubeconfig"));
        configure(&host, &format!("{kubeconfig}{}", in_order(&[SERVER])));
        cluster.allow("admin", Role::admin());
        let admin = cluster.certificate("admin", &["system:masters"]).unwrap();
        let admin = nodelb_apiserver::Credentials::Certificate(admin);
        host.write("admin", &cluster.kubeconfig_for(&admin, &[&format!("https://{SERVER}")]));
        apply(&cluster, web());
        apply(&cluster, pod("web-abc", &json!({"app": "web"}), true));
        apply(&cluster, filled());
        let daemon = host.start();
        let fixture = Self { host, cluster, server, daemon, _backend: web_backend };
        fixture.is_sound();
        fixture
    }

    /// Panics unless the service works and `diagnose` finds nothing.
    fn is_sound(&self) {
        eventually("the service", || is_served_by(WEB, &["192.0.2.80:8080/TCP"]));
        assert_eq!(verdict(), ("Forwarded".into(), String::new()));
        let report = self.diagnose("default/web", 0);
        assert!(report["severity"] == "info" || report["severity"] == "ok", "{report:#}");
    }

    /// Patches an object (resource, name) and waits until the daemon shows the result.
    fn change(&self, (resource, name): (&str, &str), patch: Value, what: &str, done: impl FnMut() -> bool) {
        self.cluster.patch(resource, "default", name, &Patch::Merge(patch)).unwrap();
        eventually(what, done);
    }

    /// The findings of the command, which must have this exit code.
    fn diagnose(&self, service: &str, code: i32) -> Value {
        let mut command = Command::new(NODELB);
        command.args(["diagnose", service, "--output", "json", "--config"]).arg(self.host.path("nodelb.toml"));
        let output = command.arg("--kubeconfig").arg(self.host.path("admin")).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{report}{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&report).unwrap()
    }

    /// Panics unless the first finding is of this kind and contains all of `words`.
    fn blames(&self, service: &str, code: i32, kind: &str, words: &[&str]) {
        let report = self.diagnose(service, code);
        let first = &report["findings"][0];
        assert_eq!(first["kind"], kind, "{report:#}");
        let text = first.to_string();
        assert!(words.iter().all(|part| text.contains(part)), "{words:?}: {report:#}");
    }
}

fn web() -> Value {
    let mut web = service("web", "198.51.100.80");
    web["spec"]["selector"] = json!({"app": "web"});
    web["spec"]["ports"][0]["targetPort"] = "https".into();
    web
}

/// A pod at the backend's address, on another node, in its current state for a while.
fn pod(name: &str, labels: &Value, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": "n2", "containers": [{"name": "c", "ports": [{"name": "https", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": "192.0.2.80", "conditions": [{
            "type": "Ready", "status": status, "lastTransitionTime": "2020-01-01T00:00:00Z",
            "message": "containers with unready status: [c]",
        }]},
    })
}

/// The slice as a controller writes it.
fn filled() -> Value {
    let mut slice = slice("web", &[BACKEND]);
    slice["endpoints"][0]["nodeName"] = "n2".into();
    slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": "web-abc", "namespace": "default"});
    slice
}

fn is_empty() -> bool {
    is_served_by(WEB, &[])
}

fn differences() -> Vec<Value> {
    get("/diff").map(|answer| answer["differences"].as_array().unwrap().clone()).unwrap_or_default()
}

#[test]
fn pods_selectors_ports_and_conditions() {
    sandbox::run("diagnose::pods_selectors_ports_and_conditions", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let Fixture { cluster, .. } = &fixture;
        let refill = || {
            apply(cluster, web());
            apply(cluster, pod("web-abc", &json!({"app": "web"}), true));
            apply(cluster, filled());
            fixture.is_sound();
        };

        // The controller would also have emptied the slice.
        cluster
            .patch("services", "default", "web", &Patch::Merge(json!({"spec": {"selector": {"app": "wbe"}}})))
            .unwrap();
        fixture.change(("endpointslices", "web"), json!({"endpoints": null, "ports": null}), "no backend", is_empty);
        assert_eq!(verdict(), ("Refused".into(), "ECONNREFUSED".into()));
        fixture.blames("default/web", 2, "selector-matches-nothing", &["app=web where the selector wants wbe"]);
        refill();

        // The controller omits a port whose name no container has.
        let renamed =
            json!({"spec": {"ports": [{"name": "https", "port": 443, "targetPort": "tls", "protocol": "TCP"}]}});
        cluster.patch("services", "default", "web", &Patch::Merge(renamed)).unwrap();
        fixture.change(("endpointslices", "web"), json!({"ports": null}), "no port", is_empty);
        assert_eq!(verdict(), ("Refused".into(), "ECONNREFUSED".into()));
        fixture.blames("default/web", 2, "port-mismatch", &["named tls", "none at all", "https=8080/TCP"]);
        refill();

        apply(cluster, pod("web-abc", &json!({"app": "web"}), false));
        let unready = json!({"endpoints": [{
            "addresses": ["192.0.2.80"], "conditions": {"ready": false, "serving": false, "terminating": false},
            "nodeName": "n2", "targetRef": {"kind": "Pod", "name": "web-abc"},
        }]});
        fixture.change(("endpointslices", "web"), unready, "no pod is ready", is_empty);
        assert_eq!(verdict(), ("Refused".into(), "ECONNREFUSED".into()));
        fixture.blames("default/web", 2, "not-ready", &["web-abc", "containers with unready status"]);
        refill();

        let local = json!({"spec": {"internalTrafficPolicy": "Local"}});
        let is_local = || frontend(WEB).is_some_and(|row| row["flags"].to_string().contains("Local"));
        fixture.change(("services", "web"), local, "policy Local", is_local);
        assert_eq!(verdict(), ("Refused".into(), "EHOSTUNREACH".into()));
        fixture.blames("default/web", 2, "no-local-backend", &["internalTrafficPolicy is Local", "n2", "EHOSTUNREACH"]);

        fixture.blames("default/wep", 2, "no-such-service", &["did you mean default/web?"]);
    });
}

#[test]
fn the_dead_one_of_two_backends_is_no_outage() {
    sandbox::run("diagnose::the_dead_one_of_two_backends_is_no_outage", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let dead = "192.0.2.80:8081";
        let mut second = slice("web", &[dead]);
        second["metadata"]["name"] = "web-2".into();
        apply(&fixture.cluster, second);
        eventually("both are served", || is_served_by(WEB, &["192.0.2.80:8080/TCP", "192.0.2.80:8081/TCP"]));
        // Each time, a connection to the service reaches one or the other.
        for _ in 0..8 {
            fixture.blames("default/web", 1, "backend-unreachable", &["1 of 2 backends", dead, "ECONNREFUSED"]);
        }
    });
}

#[test]
fn slices_that_were_emptied_or_not_updated() {
    sandbox::run("diagnose::slices_that_were_emptied_or_not_updated", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let shutting_down = fixture.cluster.writing_as("kube-apiserver");
        let empty = Patch::Merge(json!({"endpoints": null, "ports": null}));
        shutting_down.patch("endpointslices", "default", "web", &empty).unwrap();
        eventually("it is empty", is_empty);
        let words =
            ["web has been emptied", "kube-apiserver", "/history", "192.0.2.80:8080/TCP", "1 pod would be ready"];
        assert_eq!(verdict(), ("Refused".into(), "ECONNREFUSED".into()));
        fixture.blames("default/web", 2, "slice-emptied", &words);
        let rows = history("default/web");
        assert!(rows.iter().any(|row| row["removed"].to_string().contains("192.0.2.80:8080/TCP")), "{rows:#?}");
        eventually("memory and kernel have what the source says", || differences().is_empty());

        // The same for a service that must not be emptied: default/kubernetes leads to the
        // apiserver.
        shutting_down.patch("endpointslices", "default", "kubernetes", &empty).unwrap();
        eventually("it is held", || crate::cluster::is_held("198.51.100.1:443/TCP", &["kube-apiserver"]));
        let words = ["kubernetes has been emptied", "kube-apiserver", "nodelb holds the last known backends"];
        fixture.blames("default/kubernetes", 1, "slice-emptied", &words);

        // A pod became ready after the last write of the slice, and the controller has not updated
        // it.
        let mut late = pod("web-abc", &json!({"app": "web"}), true);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        late["status"]["conditions"][0]["lastTransitionTime"] = nodelb_core::model::calendar::utc(now + 1).into();
        apply(&fixture.cluster, late);
        // The controller gets some time first, so that work in progress is not blamed.
        eventually("it is blamed", || {
            let report = fixture.diagnose("default/web", 2);
            report["findings"][0]["kind"] == "slice-not-updated"
        });
        fixture.blames("default/web", 2, "slice-not-updated", &["1 ready pod missing", "web-abc (192.0.2.80)"]);
    });
}

#[test]
fn load_balancers_conflicts_and_refusals() {
    sandbox::run("diagnose::load_balancers_conflicts_and_refusals", |sandbox| {
        let fixture = Fixture::new(sandbox);
        let cluster = &fixture.cluster;
        let mut balanced = service("balanced", "198.51.100.81");
        balanced["spec"]["type"] = "LoadBalancer".into();
        balanced["spec"]["selector"] = json!({"app": "web"});
        apply(cluster, balanced);
        let mut of_balanced = filled();
        of_balanced["metadata"]["name"] = "balanced".into();
        of_balanced["metadata"]["labels"]["kubernetes.io/service-name"] = "balanced".into();
        apply(cluster, of_balanced);
        apply(
            cluster,
            json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": "balanced.1", "namespace": "default"},
                "involvedObject": {"kind": "Service", "namespace": "default", "name": "balanced"},
                "type": "Warning", "reason": "SyncLoadBalancerFailed", "count": 7,
                "message": "Error syncing load balancer: RequestLimitExceeded", "source": {"component": "service-controller"},
            }),
        );
        eventually("its clusterIP", || is_served_by("198.51.100.81:443/TCP", &["192.0.2.80:8080/TCP"]));
        fixture.blames(
            "default/balanced",
            1,
            "load-balancer-pending",
            &["has been pending", "SyncLoadBalancerFailed", "7 times"],
        );
        let report = fixture.diagnose("default/balanced", 1);
        assert!(report.to_string().contains("the cloud limits the rate of API calls"), "{report:#}");

        // An address that the configuration does not allow.
        let outside = json!({"spec": {"externalIPs": ["203.0.113.9"]}});
        let is_refused = || frontend("203.0.113.9:443/TCP").is_some_and(|row| row["status"] == "Refused");
        fixture.change(("services", "web"), outside, "the refusal", is_refused);
        fixture.blames("default/web", 1, "address-refused", &["203.0.113.9:443/TCP", "external-ips"]);
        fixture.change(("services", "web"), json!({"spec": {"externalIPs": null}}), "no refusal", || {
            frontend("203.0.113.9:443/TCP").is_none()
        });

        // A file already has the address.
        fixture
            .host
            .serve("mine.toml", &crate::host::service("mine/first", &["198.51.100.90:443"], &["192.0.2.80:8080"]));
        eventually("the file's", || is_served_by("198.51.100.90:443/TCP", &["192.0.2.80:8080/TCP"]));
        apply(cluster, service("late", "198.51.100.90"));
        let mut of_late = filled();
        of_late["metadata"]["name"] = "late".into();
        of_late["metadata"]["labels"]["kubernetes.io/service-name"] = "late".into();
        apply(cluster, of_late);
        eventually("the conflict", || {
            let answer = get("/frontends?service=default/late");
            answer.is_some_and(|answer| answer["frontends"][0]["status"] == "Conflict")
        });
        fixture.blames("default/late", 2, "address-conflict", &["mine/first"]);
    });
}

/// A map of the current generation.
fn map(host: &Host, name: &str) -> MapHandle {
    let names = std::fs::read_dir(host.pins.join("v1")).unwrap().map(|entry| entry.unwrap().path());
    let generation = names.filter(|path| path.join("frontends").exists()).max().unwrap();
    MapHandle::from_pinned_path(generation.join(name)).unwrap()
}

#[test]
fn the_kernel_changed_by_hand() {
    sandbox::run("diagnose::the_kernel_changed_by_hand", |sandbox| {
        let fixture = Fixture::new(sandbox);
        // `struct frontend_key` of bpf/shared.h: 16 bytes of address, the port, TCP.
        let key = [[0; 10].as_slice(), &[0xff; 2], &[198, 51, 100, 80], &443_u16.to_be_bytes(), &[6, 0]].concat();
        map(&fixture.host, "frontends").delete(&key).unwrap();
        let rows = differences();
        assert!(rows.iter().any(|row| row["what"] == WEB && row["kernel"] == "absent"), "{rows:#?}");
        fixture.blames("default/web", 2, "kernel-differs", &["198.51.100.80:443/TCP is not in the kernel", "/diff"]);
        fixture.daemon.signal(Signal::SIGHUP);
        eventually("it is put back", || differences().is_empty());
        fixture.is_sound();

        let link = fixture.host.pins.join("v1/links/connect4");
        // The daemon attaches it again within seconds, perhaps before the command runs.
        eventually("the detached hook is blamed", || {
            if let Ok(link) = Link::open(&link) {
                drop(link.detach());
            }
            let mut command = Command::new(NODELB);
            command
                .args(["diagnose", "default/web", "--output", "json", "--config"])
                .arg(fixture.host.path("nodelb.toml"));
            let output = command.output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let first = &report["findings"][0];
            first["kind"] == "hooks-not-in-effect" && first.to_string().contains("hook connect4")
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
        fixture.blames("default/web", 1, "apiserver-away", &[SERVER, "cannot reach one either"]);

        // Without a daemon traffic continues, and Kubernetes can still be queried.
        fixture.server = Some(serve(&fixture.cluster, SERVER));
        fixture.daemon.terminate();
        fixture.blames("default/web", 1, "daemon-silent", &["systemctl start nodelb"]);
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
        assert!(
            fixture.host.log().contains("kubernetes is no longer configured as a source"),
            "{}",
            fixture.host.log()
        );
        fixture.blames(
            "default/web",
            1,
            "source-absent",
            &["kubernetes is no longer configured", "check-config", "/diff: "],
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

/// The daemon's trace of a connection to the service: verdict and backend.
fn verdict() -> (String, String) {
    let answer = get(&format!("/trace?to={WEB}")).unwrap();
    let row = &answer["verdict"];
    let text = |column: &str| row[column].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("errno"))
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
        assert!(
            fixture.host.log().contains("kubectl auth can-i create events --namespace default"),
            "{}",
            fixture.host.log()
        );
        std::thread::sleep(Duration::from_secs(12));
        assert_eq!(said(), 1);
        assert!(events(&fixture.cluster, "web").is_empty());
        apply(&fixture.cluster, filled());
        eventually("changes go on", || is_served_by(WEB, &["192.0.2.80:8080/TCP"]));
    });
}
