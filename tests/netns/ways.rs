//! The ways to break a service that `nodelb diagnose` and `nodelb status` must name: a node in a cluster, and a table of
//! ways, each with the change that breaks the service, the first finding, and the first problem.

use std::process::Command;
use std::time::SystemTime;

use libbpf_rs::{MapCore, MapHandle};
use nix::sys::signal::Signal;
use nodelb_apiserver::{Cluster, Patch, Replica, Role};
use nodelb_prober::Backend;
use serde_json::{Value, json};

use crate::cluster::{apply, cluster_at, configure, in_order, join, serve, service, slice};
use crate::host::{Daemon, Host, backend, eventually, frontend, get, is_served_by};
use crate::sandbox;

pub(crate) const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");
pub(crate) const SERVER: &str = "192.0.2.21:6443";
pub(crate) const BACKEND: &str = "192.0.2.80:8080";
pub(crate) const WEB: &str = "198.51.100.80:443/TCP";

/// A node in a cluster that serves `default/web` with one pod, and a kubeconfig of a user with all
/// read permissions.
pub(crate) struct Fixture {
    pub(crate) host: Host,
    pub(crate) cluster: Cluster,
    pub(crate) server: Option<Replica>,
    pub(crate) daemon: Daemon,
    _backend: Backend,
}

impl Fixture {
    pub(crate) fn new(sandbox: &sandbox::Sandbox) -> Self {
        Self::with(sandbox, "")
    }

    /// [`Self::new`] with more lines in `[kubernetes]`.
    pub(crate) fn with(sandbox: &sandbox::Sandbox, kubernetes: &str) -> Self {
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
    pub(crate) fn is_sound(&self) {
        eventually("the service", || is_served_by(WEB, &["192.0.2.80:8080/TCP"]));
        assert_eq!(verdict(), ("Forwarded".into(), String::new()));
        let report = self.diagnose("default/web", 0);
        assert!(report["severity"] == "info" || report["severity"] == "ok", "{report:#}");
    }

    /// Patches an object (resource, name) and waits until the daemon shows the result.
    pub(crate) fn change(&self, (resource, name): (&str, &str), patch: Value, what: &str, done: impl FnMut() -> bool) {
        self.cluster.patch(resource, "default", name, &Patch::Merge(patch)).unwrap();
        eventually(what, done);
    }

    /// The findings of the command, which must have this exit code.
    pub(crate) fn diagnose(&self, service: &str, code: i32) -> Value {
        let (found, report) = self.report(service);
        assert_eq!(found, Some(code), "{report:#}");
        report
    }

    /// The exit code and the findings of the command.
    pub(crate) fn report(&self, service: &str) -> (Option<i32>, Value) {
        let mut command = Command::new(NODELB);
        command.args(["diagnose", service, "-o", "json", "--config"]).arg(self.host.path("nodelb.toml"));
        let output = command.arg("--kubeconfig").arg(self.host.path("admin")).output().unwrap();
        let report = serde_json::from_slice(&output.stdout);
        (output.status.code(), report.unwrap_or_else(|_| panic!("{output:?}")))
    }

    /// Panics unless the first finding is of this kind and contains all of `words`.
    pub(crate) fn blames(&self, service: &str, code: i32, kind: &str, words: &[&str]) {
        let report = self.diagnose(service, code);
        let first = &report["findings"][0];
        assert_eq!(first["kind"], kind, "{report:#}");
        let text = first.to_string();
        assert!(words.iter().all(|part| text.contains(part)), "{words:?}: {report:#}");
    }
}

pub(crate) fn web() -> Value {
    let mut web = service("web", "198.51.100.80");
    web["spec"]["selector"] = json!({"app": "web"});
    web["spec"]["ports"][0]["targetPort"] = "https".into();
    web
}

/// A pod at the backend's address, on another node, in its current state for a while.
pub(crate) fn pod(name: &str, labels: &Value, ready: bool) -> Value {
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
pub(crate) fn filled() -> Value {
    let mut slice = slice("web", &[BACKEND]);
    slice["endpoints"][0]["nodeName"] = "n2".into();
    slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": "web-abc", "namespace": "default"});
    slice
}

fn is_empty() -> bool {
    is_served_by(WEB, &[])
}

pub(crate) fn differences() -> Vec<Value> {
    get("/diff").map(|answer| answer["differences"].as_array().unwrap().clone()).unwrap_or_default()
}

/// The daemon's trace of a connection to the service: verdict and backend.
pub(crate) fn verdict() -> (String, String) {
    let answer = get(&format!("/trace?to={WEB}")).unwrap();
    let row = &answer["verdict"];
    let text = |column: &str| row[column].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("errno"))
}

/// A map of the current generation.
fn map(host: &Host, name: &str) -> MapHandle {
    let names = std::fs::read_dir(host.pins.join("v1")).unwrap().map(|entry| entry.unwrap().path());
    let generation = names.filter(|path| path.join("frontends").exists()).max().unwrap();
    MapHandle::from_pinned_path(generation.join(name)).unwrap()
}

/// A way to break a service.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// The service that is broken.
    pub(crate) service: &'static str,
    /// Breaks it, and returns when the daemon has the change.
    pub(crate) breaks: fn(&Fixture),
    /// Makes it work again.
    pub(crate) repairs: fn(&Fixture),
    /// The verdict of a connection to `default/web` meanwhile, and its error.
    pub(crate) verdict: (&'static str, &'static str),
    /// The kind of the first finding, the exit code, and what the finding contains.
    pub(crate) finding: (&'static str, i32, &'static [&'static str]),
    /// The first problem of `/status`.
    pub(crate) problem: Seen,
}

/// What `/status` shows about a broken service.
pub(crate) enum Seen {
    /// The first problem names the service, has this reason, and its cause contains this.
    As(&'static str, &'static [&'static str]),
    /// Nothing, because the daemon cannot know it: why.
    Unseen(&'static str),
}

const REFUSED: (&str, &str) = ("Refused", "ECONNREFUSED");
const FORWARDED: (&str, &str) = ("Forwarded", "");

fn patch(fixture: &Fixture, (resource, name): (&str, &str), change: Value) {
    fixture.cluster.patch(resource, "default", name, &Patch::Merge(change)).unwrap();
}

fn empties(fixture: &Fixture, name: &str) {
    let shutting_down = fixture.cluster.writing_as("kube-apiserver");
    let empty = Patch::Merge(json!({"endpoints": null, "ports": null}));
    shutting_down.patch("endpointslices", "default", name, &empty).unwrap();
}

fn refills(fixture: &Fixture) {
    apply(&fixture.cluster, web());
    apply(&fixture.cluster, pod("web-abc", &json!({"app": "web"}), true));
    apply(&fixture.cluster, filled());
}

fn deletes(fixture: &Fixture, names: &[(&str, &str)]) {
    for (resource, name) in names {
        fixture.cluster.delete(resource, "default", name).unwrap();
    }
}

/// A service with the address, and the backends of `default/web`.
fn another(fixture: &Fixture, name: &str, mut object: Value) {
    object["spec"]["selector"] = json!({"app": "web"});
    apply(&fixture.cluster, object);
    let mut slice = filled();
    slice["metadata"]["name"] = name.into();
    slice["metadata"]["labels"]["kubernetes.io/service-name"] = name.into();
    apply(&fixture.cluster, slice);
}

/// The ways. A detached hook, which the daemon attaches again while a test looks, has a test of its own. The last one leaves a problem for 15 minutes: that another program changed the kernel.
pub(crate) static WAYS: [Way; 14] = [
    Way {
        name: "the selector matches no pod",
        service: "default/web",
        breaks: |fixture| {
            patch(fixture, ("services", "web"), json!({"spec": {"selector": {"app": "wbe"}}}));
            // As the controller does.
            fixture.change(
                ("endpointslices", "web"),
                json!({"endpoints": null, "ports": null}),
                "no backend",
                is_empty,
            );
        },
        repairs: refills,
        verdict: REFUSED,
        finding: ("selector-matches-nothing", 2, &["app=web where the selector wants wbe", "kubectl patch service"]),
        // The daemon does not watch Pods: it knows which object was emptied, and `diagnose` knows why.
        problem: Seen::As("NoBackends", &["EndpointSlice default/web emptied"]),
    },
    Way {
        name: "the service names a port that no container has",
        service: "default/web",
        breaks: |fixture| {
            let ports = json!([{"name": "https", "port": 443, "targetPort": "tls", "protocol": "TCP"}]);
            patch(fixture, ("services", "web"), json!({"spec": {"ports": ports}}));
            // The controller omits a port if no container has its name.
            fixture.change(("endpointslices", "web"), json!({"ports": null}), "no port", is_empty);
        },
        repairs: refills,
        verdict: REFUSED,
        finding: ("port-mismatch", 2, &["named tls", "none at all", "https=8080/TCP"]),
        // Without its ports the slice has no backends for the daemon.
        problem: Seen::As("NoBackends", &["EndpointSlice default/web emptied"]),
    },
    Way {
        name: "no pod is ready",
        service: "default/web",
        breaks: |fixture| {
            apply(&fixture.cluster, pod("web-abc", &json!({"app": "web"}), false));
            let unready = json!({"endpoints": [{
                "addresses": ["192.0.2.80"], "conditions": {"ready": false, "serving": false, "terminating": false},
                "nodeName": "n2", "targetRef": {"kind": "Pod", "name": "web-abc"},
            }]});
            fixture.change(("endpointslices", "web"), unready, "no pod is ready", is_empty);
        },
        repairs: refills,
        verdict: REFUSED,
        finding: ("not-ready", 2, &["web-abc", "containers with unready status"]),
        problem: Seen::As("NoBackends", &["its backend is not ready, since EndpointSlice default/web was changed"]),
    },
    Way {
        name: "the internal policy is Local, and the pods are elsewhere",
        service: "default/web",
        breaks: |fixture| {
            let is_local = || frontend(WEB).is_some_and(|row| row["flags"].to_string().contains("Local"));
            let local = json!({"spec": {"internalTrafficPolicy": "Local"}});
            fixture.change(("services", "web"), local, "policy Local", is_local);
        },
        repairs: |fixture| patch(fixture, ("services", "web"), json!({"spec": {"internalTrafficPolicy": "Cluster"}})),
        verdict: ("Refused", "EHOSTUNREACH"),
        finding: ("no-local-backend", 2, &["internalTrafficPolicy: Local", "n2", "EHOSTUNREACH"]),
        problem: Seen::As("NoLocalBackend", &["internalTrafficPolicy: Local"]),
    },
    Way {
        name: "one of two backends refuses connections",
        service: "default/web",
        breaks: |fixture| {
            let mut second = slice("web", &["192.0.2.80:8081"]);
            second["metadata"]["name"] = "web-2".into();
            apply(&fixture.cluster, second);
            eventually("both are served", || is_served_by(WEB, &["192.0.2.80:8080/TCP", "192.0.2.80:8081/TCP"]));
        },
        repairs: |fixture| deletes(fixture, &[("endpointslices", "web-2")]),
        verdict: FORWARDED,
        finding: ("backend-unreachable", 1, &["1 of 2 backends", "192.0.2.80:8081", "ECONNREFUSED"]),
        problem: Seen::Unseen("the daemon connects to backends only for the health checks of service files"),
    },
    Way {
        name: "a writer empties the EndpointSlice",
        service: "default/web",
        breaks: |fixture| {
            empties(fixture, "web");
            eventually("it is empty", is_empty);
        },
        repairs: refills,
        verdict: REFUSED,
        finding: (
            "slice-emptied",
            2,
            &[
                "web has been emptied",
                "kube-apiserver",
                "nodelb history",
                "192.0.2.80:8080/TCP",
                "1 pod would be ready",
            ],
        ),
        problem: Seen::As("NoBackends", &["EndpointSlice default/web emptied by kube-apiserver (resourceVersion "]),
    },
    Way {
        name: "a writer empties the EndpointSlice of default/kubernetes",
        service: "default/kubernetes",
        breaks: |fixture| {
            empties(fixture, "kubernetes");
            eventually("it is held", || crate::cluster::is_held("198.51.100.1:443/TCP", &["kube-apiserver"]));
        },
        repairs: |fixture| apply(&fixture.cluster, slice("kubernetes", &[SERVER])),
        verdict: FORWARDED,
        finding: (
            "slice-emptied",
            1,
            &["kubernetes has been emptied", "kube-apiserver", "nodelb holds the last known backends"],
        ),
        problem: Seen::As(
            "Held",
            &["held: EndpointSlice default/kubernetes emptied by kube-apiserver", "192.0.2.21:6443"],
        ),
    },
    Way {
        name: "a pod is ready, and the EndpointSlice does not follow",
        service: "default/web",
        breaks: |fixture| {
            empties(fixture, "web");
            eventually("it is empty", is_empty);
            let mut late = pod("web-abc", &json!({"app": "web"}), true);
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            late["status"]["conditions"][0]["lastTransitionTime"] = nodelb_core::model::calendar::utc(now + 1).into();
            apply(&fixture.cluster, late);
            // The controller gets some time first, so that work in progress is not blamed.
            eventually("it is blamed", || {
                fixture.diagnose("default/web", 2)["findings"][0]["kind"] == "slice-not-updated"
            });
        },
        repairs: refills,
        verdict: REFUSED,
        finding: ("slice-not-updated", 2, &["1 ready pod missing", "web-abc (192.0.2.80)"]),
        // The daemon does not watch Pods.
        problem: Seen::As("NoBackends", &["EndpointSlice default/web emptied by kube-apiserver"]),
    },
    Way {
        name: "the EndpointSlice has the label of headless services",
        service: "default/web",
        breaks: |fixture| {
            let label = json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}});
            fixture.change(("endpointslices", "web"), label, "no backend", is_empty);
        },
        repairs: |fixture| {
            let label = json!({"metadata": {"labels": {"service.kubernetes.io/headless": null}}});
            patch(fixture, ("endpointslices", "web"), label);
        },
        verdict: REFUSED,
        finding: (
            "slice-left-out",
            2,
            &["EndpointSlice web: label service.kubernetes.io/headless", "1 ready endpoint", "kubectl label"],
        ),
        // The API server leaves it out of the watch, too.
        problem: Seen::As("NoBackends", &["EndpointSlice default/web"]),
    },
    Way {
        name: "no controller creates the load balancer",
        service: "default/balanced",
        breaks: |fixture| {
            let mut balanced = service("balanced", "198.51.100.81");
            balanced["spec"]["type"] = "LoadBalancer".into();
            another(fixture, "balanced", balanced);
            apply(
                &fixture.cluster,
                json!({
                    "apiVersion": "v1", "kind": "Event", "metadata": {"name": "balanced.1", "namespace": "default"},
                    "involvedObject": {"kind": "Service", "namespace": "default", "name": "balanced"},
                    "type": "Warning", "reason": "SyncLoadBalancerFailed", "count": 7,
                    "message": "Error syncing load balancer: RequestLimitExceeded",
                    "source": {"component": "service-controller"},
                }),
            );
            eventually("its clusterIP", || is_served_by("198.51.100.81:443/TCP", &["192.0.2.80:8080/TCP"]));
        },
        repairs: |fixture| deletes(fixture, &[("services", "balanced"), ("endpointslices", "balanced")]),
        verdict: FORWARDED,
        finding: ("load-balancer-pending", 1, &["has been pending", "SyncLoadBalancerFailed", "7 times"]),
        problem: Seen::Unseen("up to 10 minutes are normal; a unit test of core::problems has the time after that"),
    },
    Way {
        name: "the configuration does not allow an external address",
        service: "default/web",
        breaks: |fixture| {
            let outside = json!({"spec": {"externalIPs": ["203.0.113.9"]}});
            let is_refused = || frontend("203.0.113.9:443/TCP").is_some_and(|row| row["status"] == "Refused");
            fixture.change(("services", "web"), outside, "the refusal", is_refused);
        },
        repairs: |fixture| patch(fixture, ("services", "web"), json!({"spec": {"externalIPs": null}})),
        verdict: FORWARDED,
        finding: ("address-refused", 1, &["203.0.113.9:443/TCP", "external-ips"]),
        problem: Seen::As("Refused", &["203.0.113.9:443/TCP", "external-ips"]),
    },
    Way {
        name: "a service file already has the address",
        service: "default/late",
        breaks: |fixture| {
            let mine = crate::host::service("mine/first", &["198.51.100.90:443"], &["192.0.2.80:8080"]);
            fixture.host.serve("mine.toml", &mine);
            eventually("the file's", || is_served_by("198.51.100.90:443/TCP", &["192.0.2.80:8080/TCP"]));
            another(fixture, "late", service("late", "198.51.100.90"));
            eventually("the conflict", || {
                let answer = get("/frontends?service=default/late");
                answer.is_some_and(|answer| answer["frontends"][0]["status"] == "Conflict")
            });
        },
        repairs: |fixture| {
            deletes(fixture, &[("services", "late"), ("endpointslices", "late")]);
            fixture.host.withdraw("mine.toml");
            eventually("the address is free", || frontend("198.51.100.90:443/TCP").is_none());
        },
        verdict: FORWARDED,
        finding: ("address-conflict", 2, &["mine/first"]),
        problem: Seen::As("Conflict", &["198.51.100.90:443/TCP is owned by mine/first"]),
    },
    Way {
        name: "a service file describes a service of the same name",
        service: "default/twin",
        breaks: |fixture| {
            another(fixture, "twin", service("twin", "198.51.100.90"));
            eventually("the cluster's", || is_served_by("198.51.100.90:443/TCP", &["192.0.2.80:8080/TCP"]));
            let twin = crate::host::service("default/twin", &["198.51.100.90:443"], &["192.0.2.80:8080"]);
            fixture.host.serve("twin.toml", &twin);
            eventually("both", || {
                let rows = get("/services?service=default/twin").map(|answer| answer["services"].clone());
                rows.is_some_and(|rows| rows[1]["status"] == "Conflict" && rows[0]["source"] == "files")
            });
        },
        repairs: |fixture| {
            fixture.host.withdraw("twin.toml");
            deletes(fixture, &[("services", "twin"), ("endpointslices", "twin")]);
        },
        verdict: FORWARDED,
        finding: ("defined-twice", 1, &["a local file takes precedence over Kubernetes", "Service default/twin"]),
        problem: Seen::As("Conflict", &["a local file takes precedence over Kubernetes"]),
    },
    Way {
        name: "another program deletes an entry of a kernel map",
        service: "default/web",
        breaks: |fixture| {
            // `struct frontend_key` of bpf/shared.h: 16 bytes of address, the port, TCP.
            let key = [[0; 10].as_slice(), &[0xff; 2], &[198, 51, 100, 80], &443_u16.to_be_bytes(), &[6, 0]].concat();
            map(&fixture.host, "frontends").delete(&key).unwrap();
            let is_absent = |row: &Value| row["what"] == WEB && row["kernel"] == "absent";
            eventually("the difference", || differences().iter().any(is_absent));
        },
        repairs: |fixture| {
            fixture.daemon.signal(Signal::SIGHUP);
            eventually("it is put back", || differences().is_empty());
        },
        verdict: FORWARDED,
        finding: ("kernel-differs", 2, &["198.51.100.80:443/TCP is not in the kernel", "nodelb diff"]),
        problem: Seen::Unseen("the daemon compares the maps every 2 minutes, and after SIGHUP; then it repairs them"),
    },
];

/// The way with this name.
pub(crate) fn way(name: &str) -> &'static Way {
    WAYS.iter().find(|way| way.name == name).unwrap()
}
