//! For each way to break a service: the facts as the witnesses report them, and the true cause as the first finding.

use std::time::Duration;

use nodelb_core::compile::select::Choice;
use nodelb_core::model::cause::HOLD_ENDED;
use nodelb_core::model::service::ServiceName;
use nodelb_core::state::status::Status;
use nodelb_report::problems::Problem;
use nodelb_report::rows::{FindingKind as Kind, FindingSeverity as Severity};
use serde_json::{Value, json};

use super::*;
use crate::diagnose::catalogue;
use crate::diagnose::facts::{
    Cluster, ConnectTest, Daemon, Denial, FrontendRow, KernelSettings, Maps, Outcome, Probe, Stored,
};
use crate::without_daemon::Pins;

const NOW: u64 = 1_800_000_000;

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns the time this number of seconds ago.
fn ago(seconds: u64) -> String {
    nodelb_core::model::calendar::utc(NOW - seconds).unwrap()
}

fn service() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": ago(86_400), "resourceVersion": "5"},
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.7.7", "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"}],
        },
    })
}

fn slice(endpoints: &Value, written: u64) -> Value {
    json!({
        "metadata": {
            "name": "web-1", "namespace": "shop", "resourceVersion": "9",
            "managedFields": [{"manager": "endpointslice-controller", "time": ago(written)}],
        },
        "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// A slice with the label of slices that no proxy uses.
fn labelled(endpoints: &Value) -> Value {
    let mut slice = slice(endpoints, 50);
    slice["metadata"]["labels"] = json!({"service.kubernetes.io/headless": ""});
    slice["addressType"] = "IPv4".into();
    slice
}

fn endpoint(ready: bool) -> Value {
    json!({
        "addresses": ["10.1.0.1"], "conditions": {"ready": ready, "serving": ready}, "nodeName": "n2",
        "targetRef": {"kind": "Pod", "name": "web-abc"},
    })
}

fn pod(labels: &Value, ready: bool, since: u64) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({
        "metadata": {"name": "web-abc", "namespace": "shop", "labels": labels},
        "spec": {"nodeName": "n2", "containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": "10.1.0.1", "conditions": [{
            "type": "Ready", "status": status, "lastTransitionTime": ago(since), "message": "containers with unready status: [web]",
        }]},
    })
}

/// Returns the facts of a service that works according to all three witnesses.
fn sound() -> Facts {
    let frontend = json!({
        "address": "10.96.7.7:80/TCP", "type": "ClusterIP", "service": "shop/web", "backends": ["10.1.0.1:8080/TCP"],
        "flags": [], "status": "OK", "since": 100,
    });
    let backend = json!({"address": "10.1.0.1:8080/TCP", "state": "Active", "node": "n2", "choice": "Selected"});
    let key = "shop/web:http/TCP/IPv4".to_owned();
    let maps = Maps {
        frontends: [("10.96.7.7:80/TCP".to_owned(), key.clone())].into(),
        slots: [((key, "cluster".to_owned()), vec!["10.1.0.1:8080/TCP".to_owned()])].into(),
        node_addresses: Vec::new(),
    };
    let daemon = Daemon {
        checks: vec![from(json!({"check": "canary", "passed": true, "detail": ""}))],
        services: vec![from(json!({"service": "shop/web", "source": "kubernetes", "status": "OK"}))],
        frontends: vec![from(frontend)],
        backends: vec![from(backend)],
        maps: Some(maps),
        apiservers: vec![from(json!({"address": "192.0.2.1:6443", "state": "Healthy", "in_use": true}))],
        session: Some(from(json!({"apiserver": "192.0.2.1:6443", "last_response": 1}))),
        ..Daemon::default()
    };
    let cluster = Cluster {
        via: "192.0.2.1:6443 (reported by the daemon)".into(),
        identity: "a client".into(),
        is_balanced: false,
        failed: Vec::new(),
        service: Ok(Some(from(service()))),
        names: Vec::new(),
        slices: Ok(vec![from(slice(&json!([endpoint(true)]), 50))]),
        left_out: Vec::new(),
        pods: Some(Ok(vec![from(pod(&json!({"app": "web"}), true, 60))])),
        others: Vec::new(),
        events: Ok(Vec::new()),
        has_node: Ok(true),
    };
    let accepted = |to: &str, is_backend| ConnectTest {
        to: to.into(),
        is_backend,
        outcome: Outcome::Accepted(Duration::from_millis(1)),
        peer: None,
    };
    Facts {
        service: ServiceName::new("shop", "web"),
        now: NOW,
        node: "n1".into(),
        stored: None,
        daemon: Probe::Ok(daemon),
        cluster: Probe::Ok(cluster),
        connect_tests: vec![accepted("10.1.0.1:8080/TCP", true), accepted("10.96.7.7:80/TCP", false)],
        dns: None,
        kernel: KernelSettings::default(),
        outside_cgroup: None,
    }
}

/// Changes the facts to those of a service without backends, including the result of a connection.
fn emptied(facts: &mut Facts, choice: Option<Choice>) {
    let Probe::Ok(daemon) = &mut facts.daemon else { panic!("no daemon") };
    daemon.frontends[0].backends.clear();
    daemon.maps.as_mut().unwrap().slots.clear();
    match choice {
        Some(choice) => daemon.backends[0].choice = Some(choice),
        None => daemon.backends.clear(),
    }
    refused(facts);
}

fn refused(facts: &mut Facts) {
    facts.connect_tests.retain(|connect| !connect.is_backend);
    facts.connect_tests[0].outcome = Outcome::Failed("ECONNREFUSED".into(), Duration::from_millis(1));
}

fn cluster(facts: &mut Facts) -> &mut Cluster {
    let Probe::Ok(cluster) = &mut facts.cluster else { panic!("no cluster") };
    cluster
}

fn daemon(facts: &mut Facts) -> &mut Daemon {
    let Probe::Ok(daemon) = &mut facts.daemon else { panic!("no daemon") };
    daemon
}

fn denial(question: &'static str) -> Denial {
    Denial { question, why: "403 Forbidden: no".into(), is_forbidden: true }
}

/// The row of `/diff` of a source that existed before.
fn not_configured() -> Value {
    json!({
        "between": "source/memory", "what": "source kubernetes", "source": "not configured", "memory": "as last known",
        "likely_cause": "it was a source before, and the configuration does not name it",
        "what_happens": "its services stay; configure [kubernetes], or set kubernetes.enabled to false and restart",
    })
}

/// The row of `/diff` of a source that has not synced.
fn not_reported() -> Value {
    json!({
        "between": "source/memory", "what": "source kubernetes", "source": "not reported completely",
        "memory": "the state reported so far",
        "likely_cause": "it has not reported everything since nodelb started; see `nodelb apiservers`",
        "what_happens": "existing entries in the kernel stay unchanged; new services are added immediately",
    })
}

/// Changes that break a service, each with the expected first finding.
type Case = (&'static str, fn(&mut Facts), Kind, Severity, &'static [&'static str]);

static CASES: &[Case] = &[
    ("sound", |_| {}, Kind::Endpoints, Severity::Info, &["1 endpoint in 1 slice: 1 ready"]),
    (
        "wrong selector",
        |facts| {
            cluster(facts).service = Ok(Some(from({
                let mut service = service();
                service["spec"]["selector"]["app"] = "wbe".into();
                service
            })));
            cluster(facts).slices = Ok(vec![from(slice(&Value::Null, 50))]);
            cluster(facts).pods = Some(Ok(Vec::new()));
            cluster(facts).others = vec![from(pod(&json!({"app": "web"}), true, 60))];
            emptied(facts, None);
        },
        Kind::SelectorMatchesNothing,
        Severity::Critical,
        &["app=wbe", "pod web-abc has app=web where the selector wants wbe", r#"{"app":"web"}"#],
    ),
    (
        "named port mismatch",
        |facts| {
            let mut slice = slice(&json!([endpoint(true)]), 50);
            slice["ports"] = Value::Null;
            cluster(facts).slices = Ok(vec![from(slice)]);
            let mut other = service();
            other["spec"]["ports"][0]["targetPort"] = "http-api".into();
            cluster(facts).service = Ok(Some(from(other)));
            emptied(facts, None);
        },
        Kind::PortMismatch,
        Severity::Critical,
        &["named http-api", "ports of the slices: none at all", "web=8080/TCP"],
    ),
    (
        "not ready",
        |facts| {
            cluster(facts).slices = Ok(vec![from(slice(&json!([endpoint(false)]), 50))]);
            cluster(facts).pods = Some(Ok(vec![from(pod(&json!({"app": "web"}), false, 60))]));
            emptied(facts, Some(Choice::NotReady));
        },
        Kind::NotReady,
        Severity::Critical,
        &[
            "none of its 1 pod is ready",
            "containers with unready status: [web]",
            "kubectl describe pod -n shop web-abc",
        ],
    ),
    (
        "internal policy Local",
        |facts| {
            let mut local = service();
            local["spec"]["internalTrafficPolicy"] = "Local".into();
            cluster(facts).service = Ok(Some(from(local)));
            emptied(facts, Some(Choice::Selected));
            daemon(facts).frontends[0].flags = vec!["Local".into()];
        },
        Kind::NoLocalBackend,
        Severity::Critical,
        &["internalTrafficPolicy: Local", "this node is n1; the backends are on n2", "EHOSTUNREACH"],
    ),
    (
        "external policy Local",
        |facts| {
            let mut local = service();
            local["spec"]["type"] = "NodePort".into();
            local["spec"]["externalTrafficPolicy"] = "Local".into();
            cluster(facts).service = Ok(Some(from(local)));
        },
        Kind::NoLocalBackend,
        Severity::Warning,
        &["externalTrafficPolicy is Local"],
    ),
    (
        "an address that is not in the kernel",
        |facts| {
            let row = &mut daemon(facts).frontends[0];
            (row.status, row.since) = (Some(Status::Pending), 60.0);
        },
        Kind::Pending,
        Severity::Critical,
        &["not in the kernel yet"],
    ),
    (
        "an address that stays as it was before the start",
        |facts| {
            let row = &mut daemon(facts).frontends[0];
            (row.status, row.since) = (Some(Status::Pending), 60.0);
            row.error =
                Some("it stays as it was before nodelb started: kubernetes has not reported everything yet".into());
        },
        Kind::Pending,
        Severity::Warning,
        &["10.96.7.7:80/TCP: it stays as it was before nodelb started", "are not translated"],
    ),
    (
        "load balancer pending",
        |facts| {
            let mut balanced = service();
            balanced["spec"]["type"] = "LoadBalancer".into();
            cluster(facts).service = Ok(Some(from(balanced)));
            cluster(facts).events = Ok(vec![from(json!({
                "reason": "SyncLoadBalancerFailed", "type": "Warning", "lastTimestamp": ago(30), "count": 7,
                "message": "failed to ensure load balancer: RequestLimitExceeded", "source": {"component": "service-controller"},
            }))]);
        },
        Kind::LoadBalancerPending,
        Severity::Warning,
        &["pending for 24h", "SyncLoadBalancerFailed from service-controller, 7 times"],
    ),
    (
        "slice emptied",
        |facts| {
            cluster(facts).slices = Ok(vec![from(slice(&Value::Null, 5))]);
            emptied(facts, None);
            daemon(facts).history = vec![json!({
                "time": "2027-01-15T08:00:00Z", "what": "emptied", "object": "EndpointSlice shop/web-1", "resource_version": "9",
                "writer": "endpointslice-controller", "removed": ["10.1.0.1:8080/TCP"], "added": [],
            })];
        },
        Kind::SliceEmptied,
        Severity::Critical,
        &[
            "web-1 has been emptied",
            "endpointslice-controller 5s ago (resourceVersion 9)",
            "nodelb history: 2027",
            "1 pod would be ready",
        ],
    ),
    (
        "slice emptied, and held",
        |facts| {
            let mut alone = service();
            alone["spec"]["selector"] = Value::Null;
            cluster(facts).service = Ok(Some(from(alone)));
            cluster(facts).slices = Ok(vec![from(slice(&Value::Null, 5))]);
            cluster(facts).pods = None;
            daemon(facts).frontends[0].status = Some(Status::Held);
            daemon(facts).backends[0].choice = Some(Choice::Held);
        },
        Kind::SliceEmptied,
        Severity::Warning,
        &["nodelb holds the last known backends"],
    ),
    (
        "slice not updated",
        |facts| {
            cluster(facts).slices = Ok(vec![from(slice(&Value::Null, 600))]);
            emptied(facts, None);
        },
        Kind::SliceNotUpdated,
        Severity::Critical,
        &["1 ready pod missing", "pod web-abc (10.1.0.1) is ready since 60s ago", "10m ago"],
    ),
    (
        "slice names a pod that is gone",
        |facts| {
            let mut old = endpoint(true);
            old["addresses"] = json!(["10.1.0.9"]);
            old["targetRef"]["name"] = "web-old".into();
            cluster(facts).slices = Ok(vec![from(slice(&json!([endpoint(true), old]), 50))]);
            daemon(facts).backends.push(from(json!({"address": "10.1.0.9:8080/TCP", "choice": "Selected"})));
        },
        Kind::SliceNotUpdated,
        Severity::Warning,
        &["1 pod too many", "web-old"],
    ),
    (
        "slice missing",
        |facts| {
            cluster(facts).slices = Ok(Vec::new());
            emptied(facts, None);
        },
        Kind::SliceMissing,
        Severity::Critical,
        &["it has a selector but no EndpointSlice", "1 pod ready"],
    ),
    (
        "a slice with the label of headless services",
        |facts| {
            cluster(facts).slices = Ok(Vec::new());
            cluster(facts).left_out = vec![from(labelled(&json!([endpoint(true)])))];
            emptied(facts, None);
        },
        Kind::SliceLeftOut,
        Severity::Critical,
        &[
            "no proxy uses its EndpointSlice web-1: label service.kubernetes.io/headless",
            "slice web-1: 1 ready endpoint, last written by endpointslice-controller 50s ago",
            "-n shop -l kubernetes.io/service-name=web service.kubernetes.io/headless-",
        ],
    ),
    (
        "one of two slices with the label of headless services",
        |facts| {
            let mut other = endpoint(true);
            other["addresses"] = json!(["10.1.0.2"]);
            other["targetRef"]["name"] = "web-def".into();
            cluster(facts).left_out = vec![from(labelled(&json!([other])))];
            let mut pods = [pod(&json!({"app": "web"}), true, 60), pod(&json!({"app": "web"}), true, 60)];
            pods[1]["metadata"]["name"] = "web-def".into();
            pods[1]["status"]["podIP"] = "10.1.0.2".into();
            cluster(facts).pods = Some(Ok(pods.map(from).into()));
        },
        Kind::SliceLeftOut,
        Severity::Warning,
        &["label service.kubernetes.io/headless"],
    ),
    (
        "a slice with host names only",
        |facts| {
            let mut named = slice(&json!([{"addresses": ["web.example"]}]), 50);
            named["addressType"] = "FQDN".into();
            let mut alone = service();
            alone["spec"]["selector"] = Value::Null;
            cluster(facts).service = Ok(Some(from(alone)));
            cluster(facts).slices = Ok(Vec::new());
            cluster(facts).left_out = vec![from(named)];
            cluster(facts).pods = None;
            emptied(facts, None);
        },
        Kind::SliceLeftOut,
        Severity::Critical,
        &["addressType `FQDN` has no addresses to connect to", "addressType IPv4 or IPv6"],
    ),
    (
        "a slice with the label, which is not updated either",
        |facts| {
            cluster(facts).slices = Ok(Vec::new());
            cluster(facts).left_out = vec![from(labelled(&Value::Null))];
            emptied(facts, None);
        },
        Kind::SliceNotUpdated,
        Severity::Critical,
        &["1 ready pod missing"],
    ),
    (
        "another slice with the label",
        |facts| {
            let mut other = endpoint(true);
            other["addresses"] = json!(["10.1.0.9"]);
            other["targetRef"] = Value::Null;
            cluster(facts).left_out = vec![from(labelled(&json!([other])))];
        },
        Kind::Endpoints,
        Severity::Info,
        &["1 endpoint in 1 slice"],
    ),
    (
        "no selector and no slice",
        |facts| {
            let mut alone = service();
            alone["spec"]["selector"] = Value::Null;
            cluster(facts).service = Ok(Some(from(alone)));
            cluster(facts).slices = Ok(Vec::new());
            cluster(facts).pods = None;
            emptied(facts, None);
        },
        Kind::NoSelector,
        Severity::Critical,
        &["no selector"],
    ),
    (
        "kernel entry deleted",
        |facts| {
            daemon(facts).maps.as_mut().unwrap().frontends.clear();
            daemon(facts).differences =
                vec![from(json!({"between": "memory/kernel", "likely_cause": "another client deleted it"}))];
            facts.connect_tests[1].outcome = Outcome::Failed("ENETUNREACH".into(), Duration::from_millis(1));
        },
        Kind::KernelDiffers,
        Severity::Critical,
        &["10.96.7.7:80/TCP is not in the kernel", "another client deleted it"],
    ),
    (
        "kernel backends changed",
        |facts| {
            daemon(facts).maps.as_mut().unwrap().slots.clear();
            daemon(facts).differences =
                vec![from(json!({"between": "memory/kernel", "what": "shop/web:http/TCP/IPv4"}))];
        },
        Kind::KernelDiffers,
        Severity::Critical,
        &["leads to no backend in the kernel, to 10.1.0.1:8080/TCP as the daemon has it"],
    ),
    (
        "link detached",
        |facts| {
            daemon(facts).checks[0] =
                from(json!({"check": "links", "passed": false, "detail": "connect4 is not attached"}));
            facts.connect_tests[1].outcome = Outcome::Failed("ENETUNREACH".into(), Duration::from_millis(1));
        },
        Kind::HooksNotInEffect,
        Severity::Critical,
        &["connect4 is not attached"],
    ),
    (
        "link detached a moment ago",
        |facts| {
            daemon(facts).differences =
                vec![from(json!({"what": "hooks", "service": null, "kernel": "hook connect4 is detached"}))];
        },
        Kind::HooksNotInEffect,
        Severity::Critical,
        &["nodelb diff: hooks", "hook connect4 is detached"],
    ),
    (
        "pins removed, and all connections work",
        |facts| {
            let fault = "hook connect4: its pin /sys/fs/bpf/nodelb/v1/links/connect4 cannot be opened: No such file";
            daemon(facts).differences = vec![from(json!({"what": "hooks", "service": null, "kernel": fault}))];
        },
        Kind::HooksNotInEffect,
        Severity::Warning,
        &["nodelb's programs lack 1 pin; they stay attached", "its pin"],
    ),
    (
        "address conflict",
        |facts| {
            let daemon = daemon(facts);
            daemon.frontends[0].status = Some(Status::Refused);
            daemon.frontends[0].error = Some("shop/older owns it".into());
            let mut owner = daemon.frontends[0].clone();
            (owner.service, owner.status) = ("shop/older".into(), Some(Status::Ok));
            daemon.rivals = vec![owner];
        },
        Kind::AddressConflict,
        Severity::Critical,
        &["10.96.7.7:80/TCP is owned by shop/older", "shop/older owns it"],
    ),
    (
        "refused address",
        |facts| {
            let daemon = daemon(facts);
            let mut outside = daemon.frontends[0].clone();
            (outside.address, outside.kind, outside.status) =
                ("203.0.113.9:80/TCP".into(), "ExternalIP".into(), Some(Status::Refused));
            outside.error = Some("not in datapath.external-ips".into());
            daemon.frontends.push(outside);
        },
        Kind::AddressRefused,
        Severity::Warning,
        &["nodelb does not serve 203.0.113.9:80/TCP", "not in datapath.external-ips"],
    ),
    (
        "apiserver away",
        |facts| {
            let daemon = daemon(facts);
            daemon.session = Some(from(json!({"apiserver": null, "last_response": 95})));
            daemon.apiservers[0] =
                from(json!({"address": "192.0.2.1:6443", "state": "Failed", "error": "connection refused"}));
            facts.cluster = Probe::Failed("no apiserver answers".into());
        },
        Kind::ApiserverAway,
        Severity::Warning,
        &[
            "no API server in use",
            "the last response was 95s ago",
            "192.0.2.1:6443: Failed: connection refused",
            "cannot reach one either",
        ],
    ),
    (
        "a source that is not configured",
        |facts| daemon(facts).differences = vec![from(not_configured())],
        Kind::SourceAbsent,
        Severity::Warning,
        &["kubernetes is no longer configured as a source", "served as last known", "nodelb check-config"],
    ),
    (
        "a source that is not configured, and nothing is left of the service",
        |facts| {
            daemon(facts).differences = vec![from(not_configured())];
            daemon(facts).services.clear();
            daemon(facts).frontends.clear();
            daemon(facts).backends.clear();
            facts.cluster = Probe::Skipped;
            facts.connect_tests.clear();
        },
        Kind::SourceAbsent,
        Severity::Critical,
        &["kubernetes is no longer configured", "[kubernetes]", "systemctl restart nodelb"],
    ),
    (
        "a source that has not sent all it has",
        |facts| daemon(facts).differences = vec![from(not_reported())],
        Kind::SourceAbsent,
        Severity::Warning,
        &["the initial sync of kubernetes is not complete", "see `nodelb apiservers`", "nodelb sources"],
    ),
    (
        "a directory of files that cannot be read since a start",
        |facts| {
            facts.cluster = Probe::Skipped;
            daemon(facts).services[0].source = "files".into();
            daemon(facts).frontends[0].status = from(json!("Kept"));
            daemon(facts).sources = vec![from(json!({
                "source": "files", "path": "/etc/nodelb/services.d", "state": "Error",
                "problems": ["cannot be read: No such file or directory"],
            }))];
        },
        Kind::SourceFailing,
        Severity::Warning,
        &["/etc/nodelb/services.d (files) has problems: its services are served as before the start", "No such file"],
    ),
    (
        "permission missing",
        |facts| {
            daemon(facts).sources = vec![from(json!({
                "source": "kubernetes", "path": "endpointslices", "state": "LastGood",
                "problems": ["403 Forbidden: 192.0.2.1:6443 knows nodelb, which may not do this"],
            }))];
            cluster(facts).slices = Err(denial("list endpointslices.discovery.k8s.io"));
        },
        Kind::PermissionMissing,
        Severity::Critical,
        &["the daemon, endpointslices: 403 Forbidden", "system:node-proxier"],
    ),
    (
        "a missing permission in the namespace of the service",
        |facts| daemon(facts).sources = ["pay", "shop"].map(|it| from(denied_in(it))).into(),
        Kind::PermissionMissing,
        Severity::Critical,
        &["cannot watch the services of namespace shop", "the RoleBinding of namespace shop", "rbac-namespaces.yaml"],
    ),
    (
        "a namespace that nodelb does not read",
        |facts| {
            forget(facts);
            daemon(facts).selection.namespaces = vec!["pay".into()];
        },
        Kind::NotForProxies,
        Severity::Info,
        &["kubernetes.namespaces does not name its namespace", "change that key in nodelb.toml(5)"],
    ),
    (
        "labels that nodelb does not select",
        |facts| {
            forget(facts);
            daemon(facts).selection.labels = "team=shop".into();
        },
        Kind::NotForProxies,
        Severity::Info,
        &["its labels do not match kubernetes.label-selector, team=shop"],
    ),
    (
        "no such service",
        |facts| {
            facts.service = ServiceName::new("shop", "wep");
            cluster(facts).service = Ok(None);
            cluster(facts).names = vec!["shop/web".into(), "shop/database".into()];
            daemon(facts).services.clear();
            daemon(facts).frontends.clear();
            daemon(facts).backends.clear();
            facts.connect_tests.clear();
        },
        Kind::NoSuchService,
        Severity::Critical,
        &["neither Kubernetes nor the daemon knows", "did you mean shop/web?"],
    ),
    (
        "a service that was removed",
        |facts| {
            cluster(facts).service = Ok(None);
            daemon(facts).services.clear();
            daemon(facts).frontends.clear();
            daemon(facts).backends.clear();
            facts.connect_tests.clear();
            let row = json!({
                "sequence": 7, "time": ago(3), "service": "shop/web", "port": "http/TCP/IPv4", "what": "Removed",
                "object": "/etc/nodelb/services.d/shop.toml (removed)", "resource_version": null, "generation": null,
                "writer": null, "written": null, "added": [], "removed": [], "held": [], "refused": [],
                "frontends": [], "withdrawn": ["198.51.100.70:80/TCP"], "to_nodelb": null, "to_kernel": null,
                "kernel": "done", "source": "files", "detail": null,
            });
            daemon(facts).history = vec![row];
        },
        Kind::NoSuchService,
        Severity::Critical,
        &["the service shop/web was removed 3s ago: its entry in /etc/nodelb/services.d/shop.toml was removed"],
    ),
    (
        "headless",
        |facts| {
            let mut headless = service();
            headless["spec"]["clusterIP"] = "None".into();
            cluster(facts).service = Ok(Some(from(headless)));
            daemon(facts).services.clear();
            daemon(facts).frontends.clear();
            daemon(facts).backends.clear();
            facts.connect_tests.clear();
        },
        Kind::NotForProxies,
        Severity::Info,
        &["headless"],
    ),
    (
        "no daemon",
        |facts| facts.daemon = Probe::Failed("127.0.0.1:9890: connection refused".into()),
        Kind::DaemonSilent,
        Severity::Warning,
        &["systemctl restart nodelb"],
    ),
    (
        "a backend does not answer",
        |facts| facts.connect_tests[0].outcome = Outcome::Failed("ECONNREFUSED".into(), Duration::from_millis(1)),
        Kind::BackendUnreachable,
        Severity::Critical,
        &["cannot connect to 1 of 1 backend", "10.1.0.1:8080/TCP: ECONNREFUSED"],
    ),
    (
        "all backends failed their checks",
        |facts| {
            emptied(facts, Some(Choice::Quarantined));
            daemon(facts).backends[0].reason = Some("no answer".into());
        },
        Kind::BackendsUnusable,
        Severity::Critical,
        &["they failed their health checks", "no answer"],
    ),
    (
        "all backends are drained",
        |facts| {
            emptied(facts, Some(Choice::Maintenance));
            daemon(facts).backends[0].reason = Some("drained by root until nodelb undrain".into());
        },
        Kind::BackendsUnusable,
        Severity::Critical,
        &["the operator drains them", "drained by root", "run nodelb undrain with shop/web"],
    ),
    (
        "health checks that the configuration turns off",
        |facts| {
            asks_for_health_checks(facts);
            daemon(facts).health_checks = "false".into();
        },
        Kind::HealthChecksOff,
        Severity::Warning,
        &["its annotations: nodelb.io/health-check: http:/healthz", "kubernetes.health-checks = true"],
    ),
    (
        "an invalid annotation",
        |facts| {
            asks_for_health_checks(facts);
            daemon(facts).health_checks = "true".into();
            let cause = "its backends are not checked: annotation nodelb.io/health-check-rise: `0` is not in 1..=100";
            daemon(facts).problems = vec![problem("HealthCheckInvalid", "shop/web", cause, "nodelb services shop/web")];
        },
        Kind::HealthCheckInvalid,
        Severity::Warning,
        &["nodelb.io/health-check-rise: `0` is not in 1..=100", "correct the annotations"],
    ),
    (
        "the daemon goes by something else",
        |facts| daemon(facts).backends[0].address = "10.1.0.7:8080/TCP".into(),
        Kind::MemoryDiffers,
        Severity::Warning,
        &["10.1.0.1: unknown to the daemon", "10.1.0.7: used by the daemon"],
    ),
];

/// The row of a watch that may not read a namespace.
fn denied_in(namespace: &str) -> Value {
    json!({
        "source": "kubernetes", "path": format!("services/{namespace}"), "state": "LastGood",
        "problems": [format!("services in namespace {namespace} may not be read: 403 Forbidden")],
    })
}

/// The daemon does not know the service.
fn forget(facts: &mut Facts) {
    daemon(facts).services.clear();
    daemon(facts).frontends.clear();
    daemon(facts).backends.clear();
    facts.connect_tests.clear();
}

#[test]
fn a_missing_permission_in_another_namespace_is_no_finding() {
    let mut facts = sound();
    daemon(&mut facts).sources = vec![from(denied_in("pay"))];
    let found = findings(&facts);
    assert!(!found.iter().any(|finding| finding.kind == Kind::PermissionMissing), "{found:?}");
}

fn asks_for_health_checks(facts: &mut Facts) {
    let mut checked = service();
    checked["metadata"]["annotations"] = json!({"nodelb.io/health-check": "http:/healthz"});
    cluster(facts).service = Ok(Some(from(checked)));
}

/// Nothing asks for health checks, or a file does, or it is not known whether they are made.
#[test]
fn health_checks_that_are_not_asked_for_or_made_are_no_finding() {
    type Change = fn(&mut Facts);
    let others: [Change; 4] = [
        |facts| daemon(facts).health_checks = "false".into(),
        |facts| {
            asks_for_health_checks(facts);
            daemon(facts).health_checks = "true".into();
        },
        asks_for_health_checks,
        |facts| {
            asks_for_health_checks(facts);
            daemon(facts).health_checks = "false".into();
            daemon(facts).services[0].source = "files".into();
        },
    ];
    for (number, change) in others.into_iter().enumerate() {
        let mut facts = sound();
        change(&mut facts);
        let found = findings(&facts);
        assert!(!found.iter().any(|finding| finding.kind == Kind::HealthChecksOff), "{number}: {found:?}");
    }
}

fn text(finding: &Finding) -> String {
    format!("{}\n{}\n{}", finding.what, finding.evidence.join("\n"), finding.remedy.as_deref().unwrap_or_default())
}

#[test]
fn the_true_cause_comes_first() {
    for (name, breaks, kind, severity, reported) in CASES {
        let mut facts = sound();
        breaks(&mut facts);
        let found = findings(&facts);
        let first = &found[0];
        assert_eq!((first.kind, first.severity), (*kind, *severity), "{name}: {found:#?}");
        for part in *reported {
            assert!(text(first).contains(part), "{name}: {part:?} is not in {}", text(first));
        }
        let worst = found.iter().map(|finding| finding.severity).max();
        assert_eq!(worst, Some(*severity), "{name}");
        // An Event explains a load balancer that is pending, and a reader needs both.
        let is_needed = |it: &&Finding| it.kind != Kind::Event && it.explained_by.is_none();
        let shown = found.iter().filter(is_needed).filter(|it| it.severity >= Severity::Warning).count();
        assert_eq!(shown, usize::from(*severity >= Severity::Warning), "{name}: {found:#?}");
        for finding in &found {
            let text = text(finding);
            let is_filled = !catalogue::PLACEHOLDERS.iter().any(|it| text.contains(&format!("{{{it}}}")));
            let is_prose = !finding.evidence.iter().any(|it| it.contains(['{', '[']) && !it.contains("status: ["));
            assert!(is_filled && is_prose && !text.contains("NAMESPACE/NAME"), "{name}: {text}");
        }
    }
}

#[test]
fn missing_answers_cause_no_panic_and_no_invented_finding() {
    for (name, breaks, ..) in CASES {
        let mut facts = sound();
        breaks(&mut facts);
        let silent = |mut facts: Facts| {
            facts.cluster = Probe::Skipped;
            facts
        };
        let mut alone = facts.clone();
        alone.daemon = Probe::Failed("unreachable".into());
        let mut denied = facts.clone();
        if let Probe::Ok(cluster) = &mut denied.cluster {
            cluster.service = Err(denial("list services"));
            cluster.pods = Some(Err(denial("list pods")));
            cluster.events = Err(denial("list events"));
            cluster.has_node = Err(denial("list nodes"));
        }
        for facts in [silent(facts.clone()), alone, denied] {
            let found = findings(&facts);
            assert!(!found.is_empty() && found.iter().all(|finding| !finding.what.is_empty()), "{name}");
        }
    }
    let mut unreachable = sound();
    unreachable.daemon = Probe::Failed("unreachable".into());
    unreachable.cluster = Probe::Failed("unreachable".into());
    unreachable.connect_tests.clear();
    let kinds: Vec<Kind> = findings(&unreachable).iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::DaemonSilent, Kind::ApiserverSilent]);
}

/// Once, "check the path", although the kernel of this node had said at once that there is none.
#[test]
fn a_backend_without_a_route_is_a_matter_of_this_node() {
    let mut facts = sound();
    let mut fails = |why: &str, after| {
        let outcome = Outcome::Failed(why.into(), Duration::from_micros(after));
        facts.connect_tests =
            vec![ConnectTest { to: "10.1.0.1:8080/TCP".into(), is_backend: true, outcome, peer: None }];
        let found = findings(&facts);
        found.into_iter().find(|it| it.kind == Kind::BackendUnreachable).unwrap().remedy.unwrap()
    };
    assert!(fails("EHOSTUNREACH: No route to host", 100).starts_with("this node has no route to the backend"));
    assert!(fails("ENETUNREACH: Network is unreachable", 100).starts_with("this node has no route to the backend"));
    assert!(fails("EHOSTUNREACH: No route to host", 3_000_000).starts_with("no response: check the path"));
    assert!(fails("no answer", 2_000_000).starts_with("no response: check the path"));
}

/// Once, another address was the advice, which finds the map as full.
#[test]
fn a_full_map_is_no_matter_of_the_address() {
    let mut facts = sound();
    let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
    daemon.frontends[0].status = Some(Status::Refused);
    daemon.frontends[0].error = Some("map services is full (4 of 4 entries)".into());
    let found = findings(&facts);
    let refused = found.iter().find(|it| it.kind == Kind::AddressRefused).unwrap();
    assert!(refused.remedy.as_deref().unwrap().starts_with("raise the limit that the reason names"), "{refused:?}");
}

#[test]
fn an_address_that_a_program_of_the_node_has_on_purpose_is_no_fault() {
    let mut facts = sound();
    let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
    daemon.frontends[0].status = Some(Status::Refused);
    daemon.frontends[0].error = Some("10.96.7.7 is an address of this node, such as that of a cache".into());
    let command = "nodelb diagnose shop/web";
    let refused =
        problem("Refused", "shop/web", "its address", command).severity(nodelb_report::problems::Severity::Notice);
    daemon.problems = vec![refused];
    let found = findings(&facts);
    let refused = found.iter().find(|it| it.kind == Kind::AddressRefused).unwrap();
    assert_eq!(refused.severity, Severity::Info);
    assert!(
        refused.remedy.as_deref().unwrap().starts_with("none if a program has the address on purpose"),
        "{refused:?}"
    );
}

/// A node-local DNS cache made every refused address of the node a notice.
#[test]
fn the_notice_of_another_service_excuses_no_refusal() {
    let mut facts = sound();
    let daemon = daemon(&mut facts);
    daemon.frontends[0].status = Some(Status::Refused);
    let of_cache = problem("Refused", "kube-system/kube-dns", "its address", "nodelb diagnose kube-system/kube-dns");
    daemon.problems = vec![of_cache.severity(nodelb_report::problems::Severity::Notice)];
    let found = findings(&facts);
    let refused = found.iter().find(|it| it.kind == Kind::AddressRefused).unwrap();
    assert_eq!(refused.severity, Severity::Critical);
}

/// The connections were left out, and the service was said to be fine.
#[test]
fn source_ranges_that_leave_this_host_out_are_said() {
    let mut facts = sound();
    facts.connect_tests[1].outcome = Outcome::Failed("EHOSTUNREACH: no route to host".into(), Duration::ZERO);
    daemon(&mut facts).frontends[0].flags = vec!["SourceRanges=1".into()];
    let kinds = |facts: &Facts| -> Vec<(Kind, Severity)> {
        let is_meant =
            |it: &Finding| [Kind::NotAdmitted, Kind::FrontendFails, Kind::FrontendRefused].contains(&it.kind);
        findings(facts).iter().filter(|it| is_meant(it)).map(|it| (it.kind, it.severity)).collect()
    };
    assert_eq!(kinds(&facts), [(Kind::NotAdmitted, Severity::Info)]);
    daemon(&mut facts).frontends[0].backends.clear();
    assert_eq!(kinds(&facts), [(Kind::FrontendRefused, Severity::Critical)], "every client is refused");
}

/// Once, traffic continued whatever was pinned.
#[test]
fn a_silent_daemon_without_maps_is_an_outage() {
    let mut facts = sound();
    facts.daemon = Probe::Failed("unreachable".into());
    facts.connect_tests.clear();
    let pinned = |pins| Some(Stored { pins, frontends: Vec::new(), node_addresses: Vec::new() });
    facts.stored = pinned(Pins::Absent("/sys/fs/bpf/nodelb".into()));
    let found = findings(&facts);
    assert_eq!((found[0].kind, found[0].severity), (Kind::DaemonSilent, Severity::Critical));
    let what = ", and no BPF maps of nodelb are pinned in /sys/fs/bpf/nodelb: service addresses do not work";
    assert!(found[0].what.ends_with(what), "{}", found[0].what);
    assert!(found[0].remedy.as_deref().unwrap().starts_with("start nodelb: systemctl start nodelb"));
    facts.stored = pinned(Pins::Present);
    let found = findings(&facts);
    assert_eq!((found[0].kind, found[0].severity), (Kind::DaemonSilent, Severity::Warning));
    assert!(found[0].what.ends_with("; connections continue with the last known backends"), "{}", found[0].what);
    facts.stored = None;
    assert!(findings(&facts)[0].what.ends_with("does not respond"));
}

#[test]
fn skipped_questions_are_no_failure() {
    let mut facts = sound();
    cluster(&mut facts).pods = Some(Err(denial("list pods")));
    cluster(&mut facts).events = Err(denial("list events"));
    let found = findings(&facts);
    assert!(found.iter().all(|finding| finding.severity <= Severity::Info));
    let skipped = crate::diagnose::skipped::skipped(&facts);
    let skipped: Vec<(&str, Option<&str>)> =
        skipped.iter().map(|row| (row.what.as_str(), row.option.as_deref())).collect();
    let by_kubeconfig = Some("--kubeconfig");
    assert_eq!(skipped, [("Events", by_kubeconfig), ("Pods", by_kubeconfig), ("cluster DNS", Some("--verbose"))]);
}

#[test]
fn an_empty_slice_whose_pods_cannot_be_listed_is_blamed_on_no_client() {
    let mut facts = sound();
    cluster(&mut facts).slices = Ok(vec![from(slice(&Value::Null, 5))]);
    cluster(&mut facts).pods = Some(Err(denial("list pods")));
    emptied(&mut facts, None);
    let found = findings(&facts);
    assert_eq!(found[0].kind, Kind::SliceEmptied);
    assert!(found[0].what.contains("use a kubeconfig that may list pods to find out"), "{}", found[0].what);
}

#[test]
fn events_are_explained_and_unknown_ones_shown_as_they_are() {
    let mut facts = sound();
    let event = |reason: &str, kind: &str, message: &str, at: u64| {
        from(json!({"reason": reason, "type": kind, "message": message, "lastTimestamp": ago(at), "count": 1}))
    };
    cluster(&mut facts).events = Ok(vec![
        event("FailedToUpdateEndpointSlice", "Warning", "the object has been modified", 20),
        event("FailedToUpdateEndpointSlice", "Warning", "older", 40),
        event("Unknown\u{1b}Reason", "Warning", "odd\nthing", 10),
        event("SyncLoadBalancerFailed", "Warning", "AuthFailure", 100_000),
        event("EnsuredLoadBalancer", "Normal", "Ensured load balancer", 30),
    ]);
    let found: Vec<Finding> = findings(&facts).into_iter().filter(|finding| finding.kind == Kind::Event).collect();
    let reported: Vec<(Severity, &str)> =
        found.iter().map(|finding| (finding.severity, finding.what.as_str())).collect();
    assert_eq!(reported[0].1, "Kubernetes warns: Unknown\u{fffd}Reason, last 10s ago: odd\u{fffd}thing");
    assert!(reported[1].1.contains("two writers changed it at the same time"), "{}", reported[1].1);
    assert_eq!([reported[0].0, reported[1].0], [Severity::Warning; 2]);
    assert!(
        reported[2].0 == Severity::Info && reported[2].1.contains("rejects the credentials of the controller"),
        "{reported:?}"
    );
    assert!(reported[3].1.contains("EnsuredLoadBalancer"), "{reported:?}");
    assert_eq!(reported.len(), 4);
}

#[test]
fn a_connection_that_meets_the_dead_one_of_two_backends_is_no_outage() {
    let mut facts = sound();
    let failed = |why: &str| Outcome::Failed(why.into(), Duration::from_millis(1));
    daemon(&mut facts).frontends[0].backends.push("10.1.0.2:8080/TCP".into());
    facts.connect_tests.push(ConnectTest {
        to: "10.1.0.2:8080/TCP".into(),
        is_backend: true,
        outcome: failed("ECONNREFUSED"),
        peer: None,
    });
    facts.connect_tests[1].outcome = failed("ECONNREFUSED");
    let graded = |facts: &Facts| {
        let found = findings(facts);
        let causes = found.iter().filter(|finding| finding.explained_by.is_none());
        let found = causes.filter(|finding| finding.severity >= Severity::Warning);
        found.map(|found| (found.severity, found.kind)).collect::<Vec<_>>()
    };
    let warned = [(Severity::Warning, Kind::BackendUnreachable)];
    assert_eq!(graded(&facts), warned);
    // The address that a connection to a NodePort uses.
    (daemon(&mut facts).frontends[0].kind, facts.connect_tests[1].to) =
        ("NodePort".into(), "192.0.2.1:30080/TCP".into());
    daemon(&mut facts).frontends[0].address = "0.0.0.0:30080/TCP".into();
    assert_eq!(graded(&facts), warned);
    facts.connect_tests[1].outcome = failed("ENETUNREACH");
    let fails = (Severity::Critical, Kind::FrontendFails);
    assert_eq!(graded(&facts), [fails, warned[0]], "no backend fails like that");
    facts.outside_cgroup = Some("/sys/fs/cgroup/machine.slice".into());
    assert_eq!(graded(&facts)[0], (Severity::Critical, Kind::OutsideCgroup), "the command is not concerned");
    facts.outside_cgroup = None;
    facts.connect_tests[1].outcome = failed("ECONNREFUSED");
    daemon(&mut facts).frontends[0].backends.remove(0);
    assert_eq!(graded(&facts), [(Severity::Critical, Kind::BackendUnreachable)], "all of its backends fail");
}

/// The evidence ended with `on`, and no name.
#[test]
fn a_backend_without_a_node_is_said_to_have_none() {
    let mut facts = sound();
    facts.cluster = Probe::Skipped;
    emptied(&mut facts, Some(Choice::Selected));
    let known = daemon(&mut facts);
    known.services[0].source = "files".into();
    known.frontends[0].flags = vec!["Local".into()];
    known.backends[0].node.clear();
    let found = findings(&facts).into_iter().find(|finding| finding.kind == Kind::NoLocalBackend).unwrap();
    assert_eq!(found.evidence[0], "the backends are 10.1.0.1:8080/TCP without a node");
}

#[test]
fn a_connection_that_others_translate_is_evidence_only_with_their_programs() {
    let mut facts = sound();
    let found = |facts: &Facts| {
        let found = findings(facts).into_iter().find(|finding| finding.kind == Kind::HooksShared);
        found.map(|finding| (finding.severity, finding.what, finding.evidence))
    };
    facts.connect_tests[1].peer = Some("10.1.0.9:8080/TCP".into());
    assert_eq!(found(&facts), None, "the backends may have changed a moment ago");
    let cause = "programs of other software run before nodelb's: a (1) at connect4";
    let shared = problem("HooksShared", "hooks", cause, "nodelb diff --probe")
        .severity(nodelb_report::problems::Severity::Notice);
    daemon(&mut facts).problems = vec![shared];
    let evidence = "a connection to 10.96.7.7:80/TCP reached 10.1.0.9:8080/TCP, which is no backend that nodelb uses";
    assert_eq!(found(&facts), Some((Severity::Warning, cause.into(), vec![evidence.into()])));
    for own in [Some("10.1.0.1:8080/TCP"), Some("10.96.7.7:80/TCP"), None] {
        facts.connect_tests[1].peer = own.map(Into::into);
        assert_eq!(found(&facts), Some((Severity::Info, cause.into(), Vec::new())), "{own:?}");
    }
}

#[test]
fn the_dns_name_is_compared_with_the_cluster_ip() {
    type Resolved = Result<Vec<String>, String>;
    let cases: [(Resolved, Option<&str>, Severity); 4] = [
        (Ok(vec!["10.96.7.7".into()]), None, Severity::Info),
        (Err("no such name".into()), None, Severity::Info),
        (Ok(vec!["192.0.2.66".into()]), None, Severity::Info),
        (Ok(vec!["10.96.7.8".into()]), Some("shop/other"), Severity::Warning),
    ];
    for (addresses, another, severity) in cases {
        let mut facts = sound();
        let (name, another) = ("web.shop.svc.cluster.local".into(), another.map(ToOwned::to_owned));
        facts.dns = Some(crate::diagnose::facts::Dns { name, addresses, another });
        let found = findings(&facts);
        let reported = found.iter().find(|finding| finding.kind == Kind::DnsName).unwrap();
        assert_eq!(reported.severity, severity, "{}", reported.what);
    }
}

#[test]
fn what_is_only_of_another_moment_is_no_difference() {
    let stages = [Vec::new(), vec![from(json!({"between": "source/memory", "what": "10.96.7.7:80/TCP"}))]];
    for differences in stages {
        let mut facts = sound();
        daemon(&mut facts).maps.as_mut().unwrap().slots.clear();
        daemon(&mut facts).differences = differences;
        assert!(findings(&facts).iter().all(|finding| finding.kind != Kind::KernelDiffers));
    }
}

#[test]
fn an_absent_source_is_no_cause_of_what_it_does_not_describe() {
    let is_blamed = |facts: &Facts| findings(facts).iter().any(|finding| finding.kind == Kind::SourceAbsent);
    let mut facts = sound();
    daemon(&mut facts).differences = vec![from(not_configured())];
    assert!(is_blamed(&facts));
    daemon(&mut facts).services[0].source = "files".into();
    assert!(!is_blamed(&facts), "a file describes the service");
    let mut facts = sound();
    daemon(&mut facts).differences = vec![from(not_reported())];
    let explained = |facts: &Facts| {
        let found = findings(facts);
        found.into_iter().find(|finding| finding.kind == Kind::SourceAbsent).and_then(|finding| finding.explained_by)
    };
    assert_eq!(explained(&facts), None);
    daemon(&mut facts).session = Some(from(json!({"apiserver": null, "last_response": 95})));
    assert_eq!(explained(&facts), Some(Kind::ApiserverAway));
}

fn problem(reason: &str, object: &str, cause: &str, command: &str) -> Problem {
    from(json!({
        "severity": "warning", "reason": reason, "object": object, "since": "2027-01-15T07:59:30Z", "cause": cause,
        "command": command, "blocks_readiness": false,
    }))
}

#[test]
fn a_situation_has_the_words_and_the_command_of_status() {
    let mut facts = sound();
    emptied(&mut facts, None);
    let cause = "no usable backend: EndpointSlice shop/web-1 emptied by bob (resourceVersion 15)";
    daemon(&mut facts).problems = vec![
        problem("NoBackends", "shop/other", "no usable backend: another one", "nodelb diagnose shop/other"),
        problem("NoBackends", "shop/web", cause, "nodelb diagnose shop/web"),
        problem(
            "LastResort",
            "shop/web",
            "last resort: 2 backends failed their health checks",
            "nodelb backends shop/web",
        ),
        problem("RestartPending", "configuration", "restart needed for: a", "systemctl restart nodelb"),
        problem("NotTranslated", "datapath", "the datapath is in memory", "nodelb config"),
    ];
    facts.cluster = Probe::Skipped;
    let found = findings(&facts);
    let of = |kind: Kind| found.iter().find(|finding| finding.kind == kind).unwrap();
    assert_eq!((of(Kind::NoBackends).what.as_str(), &of(Kind::NoBackends).command), (cause, &None));
    assert_eq!(of(Kind::NoBackends).since.map(|since| since.to_string()).as_deref(), Some("2027-01-15T07:59:30.000Z"));
    assert_eq!(of(Kind::LastResort).command.as_deref(), Some("nodelb backends shop/web"));
    assert_eq!(of(Kind::NotTranslated).what, "the datapath is in memory");
    assert_eq!(of(Kind::NotTranslated).severity, Severity::Warning, "that of the problem");
    assert_eq!(of(Kind::FrontendRefused).explained_by, Some(Kind::NoBackends));
    assert!(
        !found.iter().any(|finding| finding.what.contains("another one") || finding.what.contains("restart needed"))
    );
}

#[test]
fn remedies_fit_the_case() {
    let remedy = |facts: &Facts, kind: Kind| {
        let found = findings(facts).into_iter().find(|finding| finding.kind == kind);
        found.and_then(|finding| finding.remedy).unwrap_or_else(|| panic!("no {kind:?}"))
    };
    let mut facts = sound();
    facts.connect_tests[0].outcome =
        Outcome::Failed("ECONNREFUSED: Connection refused".into(), Duration::from_millis(1));
    assert!(remedy(&facts, Kind::BackendUnreachable).contains("start the process in the pod"));
    facts.cluster = Probe::Skipped;
    let of_host = remedy(&facts, Kind::BackendUnreachable);
    assert!(of_host.contains("start the backend") && !of_host.contains("pod"), "{of_host}");
    let away = |state: &str, error: &str| {
        let mut facts = sound();
        let daemon = daemon(&mut facts);
        daemon.session = Some(from(json!({"apiserver": null, "last_response": 95})));
        daemon.apiservers = vec![from(json!({"address": "192.0.2.1:6443", "state": state, "error": error}))];
        remedy(&facts, Kind::ApiserverAway)
    };
    assert!(away("Failed", "connection refused").contains("check that the API servers run"));
    for state in ["Refused", "NotReady"] {
        assert!(away(state, "401 Unauthorized").contains("correct what the message names"), "{state}");
    }
}

/// Once, "start the backends": they ran, and did not take packets to the address of the service.
#[test]
fn a_check_that_goes_the_way_of_packets_fails_for_the_same_reasons() {
    let found = |(forward, reason): (&str, &str), choice: Choice, reported: &str| {
        let mut facts = sound();
        let known = daemon(&mut facts);
        known.frontends[0].flags = vec![format!("Forward={forward}")];
        (known.backends[0].choice, known.backends[0].reason) = (Some(choice), Some(reason.to_owned()));
        known.problems = vec![problem(reported, "shop/web", "a check failed", "nodelb backends shop/web")];
        findings(&facts)
    };
    let remedy = |failure: (&str, &str), (choice, reported, kind): (Choice, &str, Kind)| {
        let found = found(failure, choice, reported);
        let finding = found.iter().find(|finding| finding.kind == kind).unwrap_or_else(|| panic!("{found:#?}"));
        finding.remedy.clone().unwrap()
    };
    let cases = [
        (Choice::Selected, "LastResort", Kind::LastResort),
        (Choice::Selected, "BackendsQuarantined", Kind::BackendsQuarantined),
        (Choice::Quarantined, "NoBackends", Kind::BackendsUnusable),
    ];
    let failures = [
        ("direct", "no connection to 10.96.7.7:80/TCP within 500ms", "needs the address of the service (`ip address"),
        ("direct", "no route to host", "needs the address of the service (`ip address"),
        ("tunnel", "no connection to 10.96.7.7:80/TCP in the tunnel within 500ms", "or a tunnel device (ipip, ip6tnl)"),
    ];
    for case in cases {
        for (forward, reason, expected) in failures {
            let remedy = remedy((forward, reason), case);
            assert!(remedy.contains(expected), "{case:?}, {reason}: {remedy}");
        }
        for (forward, reason) in [("tunnel", "connection refused"), ("", "no route to host")] {
            let remedy = remedy((forward, reason), case);
            assert_eq!(Some(&remedy), catalogue::finding(case.2).remedy.as_ref(), "{case:?}, {reason}");
        }
    }
}

/// The first of the examples in which the cause was the last finding: the kubeconfig does not exist.
#[test]
fn a_missing_kubeconfig_is_the_cause_of_everything_else() {
    let mut facts = sound();
    facts.service = ServiceName::new("default", "kubernetes");
    facts.cluster = Probe::Failed("/etc/kubeconfig: no such file".into());
    facts.connect_tests.clear();
    let why = "kubernetes.kubeconfig: cannot read /etc/kubeconfig: no such file";
    let daemon = daemon(&mut facts);
    *daemon = Daemon {
        session: Some(from(json!({"apiserver": null, "problem": why}))),
        checks: vec![from(json!({"check": "reconcile", "passed": false, "detail": "waits for kubernetes"}))],
        sources: ["services", "endpointslices", "nodes"]
            .map(|path| from(json!({"source": "kubernetes", "path": path, "state": "Error", "since": 60, "problems": ["waiting"]})))
            .into(),
        differences: vec![from(not_reported())],
        ..Daemon::default()
    };
    let found = findings(&facts);
    let causes: Vec<_> = found.iter().filter(|finding| finding.explained_by.is_none()).collect();
    let [cause] = causes[..] else { panic!("{found:#?}") };
    assert_eq!((cause.kind, cause.severity), (Kind::ApiserverAway, Severity::Critical));
    assert!(cause.what.contains(why) && cause.remedy.as_ref().unwrap().contains("tries again"), "{cause:#?}");
}

#[test]
fn a_file_that_is_not_served_explains_that_its_service_does_not_exist() {
    let mut facts = sound();
    facts.cluster = Probe::Skipped;
    facts.connect_tests.clear();
    let path = "/etc/nodelb/services.d/more.toml";
    let daemon = daemon(&mut facts);
    *daemon = Daemon {
        definition: Some(crate::diagnose::facts::Definition { file: path.into(), line: Some(18) }),
        sources: vec![from(
            json!({"source": "files", "path": path, "state": "Error", "problems": ["line 3: a", "line 9: b"]}),
        )],
        problems: vec![problem("FileNotServed", "more.toml", "not served: line 3: a (and 1 more)", "nodelb sources")],
        ..Daemon::default()
    };
    let found = findings(&facts);
    assert_eq!((found[0].kind, found[0].severity), (Kind::FileNotServed, Severity::Critical));
    assert_eq!(found[0].what, format!("{path}:18 defines it: not served: line 3: a (and 1 more)"));
    assert_eq!((found[0].file.as_deref(), found[0].line), (Some(path), Some(18)));
    assert_eq!(found[1].explained_by, Some(Kind::FileNotServed));
    assert!(found[0].remedy.as_ref().is_some_and(|remedy| remedy.starts_with("correct the file")));
    let closed = "not served: /etc/nodelb/services.d/more.toml: cannot be read: Permission denied (os error 13)";
    self::daemon(&mut facts).problems = vec![problem("FileNotServed", "more.toml", closed, "nodelb sources")];
    assert!(findings(&facts)[0].remedy.as_ref().is_some_and(|remedy| remedy.starts_with("let nodelb read the file")));
    daemon_without_definition(&mut facts);
    let found = findings(&facts);
    assert_eq!((found[0].kind, found[0].explained_by), (Kind::NoSuchService, None), "another service is in the file");
}

fn daemon_without_definition(facts: &mut Facts) {
    daemon(facts).definition = None;
}

#[test]
fn a_service_that_a_file_shadows_has_one_finding() {
    let mut facts = sound();
    let why = "a local file describes it: files take precedence over Kubernetes";
    let daemon = daemon(&mut facts);
    daemon.services = vec![
        from(json!({"service": "shop/web", "source": "files", "origin": "shop.toml", "status": "OK"})),
        from(
            json!({"service": "shop/web", "source": "kubernetes", "origin": "Service shop/web", "status": "Conflict", "error": why}),
        ),
    ];
    daemon.backends[0].address = "10.1.0.7:8080/TCP".into();
    let found = findings(&facts);
    assert_eq!((found[0].kind, found[0].severity), (Kind::DefinedTwice, Severity::Warning));
    let differs = found.iter().find(|finding| finding.kind == Kind::MemoryDiffers).unwrap();
    assert_eq!(differs.explained_by, Some(Kind::DefinedTwice));
}

/// Once, "the daemon and Kubernetes have different backends".
#[test]
fn addresses_are_compared_whatever_their_text() {
    let mut facts = sound();
    daemon(&mut facts).backends[0].address = "[2001:db8::1]:8080/TCP".into();
    daemon(&mut facts).backends[0].port = "http".into();
    let mut other = endpoint(true);
    other["addresses"] = json!(["2001:DB8:0::1"]);
    cluster(&mut facts).slices = Ok(vec![from(slice(&json!([other]), 50))]);
    let differs = |facts: &Facts| findings(facts).iter().any(|finding| finding.kind == Kind::MemoryDiffers);
    assert!(!differs(&facts));
    daemon(&mut facts).backends[0].address = "[2001:db8::2]:8080/TCP".into();
    assert!(differs(&facts));
}

/// Once, backends of IPv6 explained why an IPv4 address has none.
#[test]
fn the_other_family_does_not_explain_an_address_without_backends() {
    let mut facts = sound();
    let other = json!({"address": "[2001:db8::1]:8080/TCP", "choice": "Selected"});
    daemon(&mut facts).backends = vec![from(other)];
    daemon(&mut facts).frontends[0].backends.clear();
    let found = |facts: &Facts| {
        let found = findings(facts).into_iter().find(|finding| finding.kind == Kind::NoBackends);
        text(&found.expect("no backends"))
    };
    let said = found(&facts);
    assert!(said.contains("10.96.7.7:80/TCP") && !said.contains("2001:db8::1"), "{said}");
    daemon(&mut facts).frontends[0].flags = vec!["Local".into()];
    found(&facts);
}

#[test]
fn backends_on_other_nodes_are_not_none() {
    let mut facts = sound();
    let row = &mut daemon(&mut facts).frontends[0];
    row.backends.clear();
    row.flags = vec!["Local".into()];
    assert!(findings(&facts).iter().all(|finding| finding.kind != Kind::NoBackends));
    daemon(&mut facts).backends[0].choice = Some(Choice::NotReady);
    assert!(findings(&facts).iter().any(|finding| finding.kind == Kind::NoBackends));
}

#[test]
fn the_remedy_after_the_end_of_a_dns_hold_is_the_name() {
    let mut facts = sound();
    let daemon = daemon(&mut facts);
    daemon.backends.clear();
    daemon.frontends[0].backends.clear();
    daemon.frontends[0].error = Some(format!("{HOLD_ENDED} (5m) of DNS A record of web.example.com: NXDOMAIN"));
    let found = findings(&facts);
    let finding = found.iter().find(|finding| finding.kind == Kind::NoBackends).unwrap();
    assert!(format!("{finding:?}").contains("nodelb dns"), "{finding:?}");
}

/// A row of an address that waits, and that of the service that has it.
fn waits(facts: &mut Facts, error: &str) {
    let daemon = daemon(facts);
    let row = &mut daemon.frontends[0];
    let other = FrontendRow {
        service: "shop/before".into(),
        backends: vec!["10.1.0.9:8080/TCP".into()],
        status: Some(Status::Kept),
        ..row.clone()
    };
    (row.status, row.since, row.error) = (Some(Status::Pending), 1.0, Some(error.into()));
    row.backends.clear();
    daemon.rivals = vec![row.clone(), other];
    facts.connect_tests.retain(|connect| !connect.is_backend);
}

/// For the first seconds after a start, there was no finding.
#[test]
fn an_address_that_stays_with_another_service_is_said_at_once() {
    let error = "10.96.7.7:80/TCP stays with the service that had it before nodelb started: files described it";
    let mut facts = sound();
    waits(&mut facts, error);
    let found = findings(&facts);
    assert_eq!((found[0].kind, found[0].severity, found[0].what.as_str()), (Kind::Pending, Severity::Warning, error));
    assert_eq!(found[0].evidence, ["connections to 10.96.7.7:80/TCP get 10.1.0.9:8080/TCP of shop/before"]);
    assert!(found[0].remedy.as_deref().unwrap().starts_with("see `nodelb sources`"), "{found:#?}");
    daemon(&mut facts).rivals.clear();
    assert_eq!(findings(&facts)[0].evidence, ["connections to 10.96.7.7:80/TCP are not translated"]);
    waits(&mut facts, "not yet");
    assert!(!findings(&facts).iter().any(|finding| finding.kind == Kind::Pending), "any change takes a moment");
}

/// The error was said to come from the network, because the service that waits has backends that work.
#[test]
fn connections_to_an_address_that_waits_fail_as_those_to_the_backends_of_the_service_that_has_it() {
    let mut facts = sound();
    waits(&mut facts, "it stays as it was before nodelb started");
    refused(&mut facts);
    let failed = facts.connect_tests[0].outcome.clone();
    let test = ConnectTest { to: "10.1.0.9:8080/TCP".into(), is_backend: true, outcome: failed, peer: None };
    facts.connect_tests.push(test);
    let found = findings(&facts);
    assert_eq!(found[0].kind, Kind::BackendUnreachable, "{found:#?}");
    assert!(!found.iter().any(|finding| finding.kind == Kind::FrontendFails), "{found:#?}");
}

/// What the source describes was tested, and not what connections get.
#[test]
fn kept_backends_that_differ_from_the_description_are_named() {
    let mut facts = sound();
    let row = &mut daemon(&mut facts).frontends[0];
    (row.status, row.error) = (Some(Status::Kept), Some("files cannot be read completely".into()));
    let kept = |facts: &Facts| findings(facts).into_iter().find(|finding| finding.kind == Kind::Kept);
    assert_eq!(kept(&facts), None, "the same backends");
    daemon(&mut facts).frontends[0].backends = vec!["10.1.0.9:8080/TCP".into()];
    let found = kept(&facts).unwrap();
    let expected = "connections to 10.96.7.7:80/TCP get 10.1.0.9:8080/TCP instead of 10.1.0.1:8080/TCP";
    assert_eq!(found.evidence, [expected, "files cannot be read completely"]);
}

/// Only the silent daemon was a finding, and connections were said to continue.
#[test]
fn without_the_daemon_a_service_without_backends_is_one() {
    let mut facts = sound();
    refused(&mut facts);
    facts.connect_tests.retain(|connect| !connect.is_backend);
    let frontends = vec![from(json!({"address": "10.96.7.7:80/TCP", "backends": []}))];
    facts.stored = Some(Stored { pins: Pins::Present, frontends, node_addresses: Vec::new() });
    (facts.daemon, facts.cluster) = (Probe::Failed("refused".into()), Probe::Skipped);
    let found = findings(&facts);
    let first = &found[0];
    assert_eq!((first.kind, first.severity), (Kind::NoBackends, Severity::Critical), "{found:#?}");
    assert_eq!(first.evidence, ["connections to 10.96.7.7:80/TCP are refused"]);
    let refused = found.iter().find(|finding| finding.kind == Kind::FrontendRefused).unwrap();
    assert_eq!(refused.explained_by, Some(Kind::NoBackends));
}
