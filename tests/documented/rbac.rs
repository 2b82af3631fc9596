//! The Kubernetes manifests: their rules are exactly the requests that nodelb makes, and a daemon with
//! these permissions works.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::Resource;
use k8s_openapi::api::core::v1::{Event, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use nodelb_apiserver::{Cluster, Replica, WatchList};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::Daemon;

const MANIFEST: &str = "contrib/kubernetes/rbac.yaml";

/// The manifest for `kubernetes.namespaces` and `kubernetes.services`.
const SMALLER: &str = "contrib/kubernetes/rbac-namespaces.yaml";

/// Group, resource and verb.
type Rule = (String, String, String);

const TIMEOUT: Duration = Duration::from_secs(60);

fn objects() -> Vec<Value> {
    objects_in(MANIFEST)
}

fn objects_in(manifest: &str) -> Vec<Value> {
    let objects = serde_saphyr::from_multiple(&crate::read(manifest));
    objects.expect("YAML that kubectl reads")
}

fn named<'o>(objects: &'o [Value], kind: &str, name: &str) -> &'o Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.ok_or_else(|| format!("no {kind} {name} in {MANIFEST}")).expect("an object")
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().map_or_else(Vec::new, |all| all.iter().map(|it| it.as_str().expect("a word").to_owned()).collect())
}

/// The permissions of a role.
fn rules(role: &Value) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    for rule in role["rules"].as_array().expect("rules") {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                let allow = |verb| (group.clone(), resource.clone(), verb);
                rules.extend(words(&rule["verbs"]).into_iter().map(allow));
            }
        }
    }
    rules
}

/// The API paths and the types of `Api` in the daemon's sources, as group and resource. Requests of
/// commands use the credentials of the user and are elsewhere.
fn asked() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    read_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("kube/src"), &mut found);
    found
}

fn resource(kind: &str) -> (String, String) {
    fn of<T: Resource>() -> (String, String) {
        (T::GROUP.to_owned(), T::URL_PATH_SEGMENT.to_owned())
    }
    match kind {
        Event::KIND => of::<Event>(),
        Service::KIND => of::<Service>(),
        ServiceCIDR::KIND => of::<ServiceCIDR>(),
        other => (String::from("a type that this test does not know"), other.to_owned()),
    }
}

fn read_sources(directory: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in fs::read_dir(directory).expect("sources") {
        let path = entry.expect("a source").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
        if path.is_dir() && name != "tests" {
            read_sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            collect(&fs::read_to_string(&path).expect("a source"), found);
        }
    }
}

fn collect(text: &str, found: &mut BTreeSet<(String, String)>) {
    let typed = text.split("Api<").chain(text.split("Api::<")).filter_map(|rest| rest.split_once('>'));
    for (name, _) in typed.filter(|(name, _)| name.chars().all(char::is_alphanumeric)) {
        let alias = format!(" as {name}");
        let declared = text.split_once(&alias).and_then(|(before, _)| before.rsplit([' ', '{', ':']).next());
        found.insert(resource(declared.unwrap_or(name)));
    }
    for literal in text.split('"').filter(|literal| literal.starts_with("/api")) {
        let path = literal.split('?').next().expect("a path");
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => continue,
        };
        let rest = if rest.first() == Some(&"namespaces") { &rest[2..] } else { rest };
        found.extend(rest.first().map(|resource| (group.to_owned(), (*resource).to_owned())));
    }
}

#[test]
fn the_rules_are_what_nodelb_asks_for() {
    let objects = objects();
    let reading = rules(named(&objects, "ClusterRole", "nodelb"));
    let writing = rules(named(&objects, "ClusterRole", "nodelb-events"));
    let resources = reading.union(&writing).map(|(group, resource, _)| (group.clone(), resource.clone())).collect();
    assert_eq!(asked(), resources, "what the sources ask for, and {MANIFEST}");
    let verbs = |rules: &BTreeSet<Rule>, resource: &str| -> Vec<String> {
        rules.iter().filter(|(_, of, _)| of == resource).map(|(_, _, verb)| verb.clone()).collect()
    };
    for watched in ["services", "endpointslices", "nodes"] {
        assert_eq!(verbs(&reading, watched), ["list", "watch"], "{watched}");
    }
    assert_eq!(verbs(&reading, "servicecidrs"), ["list"]);
    assert_eq!(verbs(&writing, "events"), ["create", "patch"]);
    // Each rule covers resources, or the only non-resource path that nodelb uses.
    for rule in named(&objects, "ClusterRole", "nodelb")["rules"].as_array().expect("rules") {
        let paths = words(&rule["nonResourceURLs"]);
        assert!(rule["resources"].is_array() != (paths == ["/readyz"]), "{rule}");
    }
}

/// The subjects of the bindings, and the account of the token.
#[test]
fn the_account_has_the_roles_and_nothing_else() {
    let objects = objects();
    let account = json!({"kind": "ServiceAccount", "name": "nodelb", "namespace": "kube-system"});
    for role in ["nodelb", "nodelb-events"] {
        let binding = named(&objects, "ClusterRoleBinding", role);
        assert_eq!(binding["roleRef"]["name"], role);
        assert_eq!(binding["subjects"], json!([account]));
    }
    let kinds = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
    assert_eq!((kinds("ClusterRole"), kinds("ClusterRoleBinding"), objects.len()), (2, 2, 6));
    assert_eq!(named(&objects, "ServiceAccount", "nodelb")["metadata"]["namespace"], "kube-system");
    let secret = named(&objects, "Secret", "nodelb");
    assert_eq!(secret["type"], "kubernetes.io/service-account-token");
    assert_eq!(secret["metadata"]["annotations"]["kubernetes.io/service-account.name"], "nodelb");
}

/// A cluster with a service in two namespaces and the applied manifest; and the content of its Secret in files.
struct World {
    replica: Replica,
    /// Keys in the section `[kubernetes]`.
    keys: &'static str,
    directory: TempDir,
}

impl World {
    fn of(manifest: &[Value]) -> Self {
        let cluster = Cluster::new().expect("a cluster");
        for object in manifest {
            cluster.apply_value(object.clone()).expect("an object that apiservers take");
        }
        for (namespace, name) in [("default", "kubernetes"), ("shop", "web")] {
            let service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
                "spec": {"ports": [{"port": 80, "protocol": "TCP"}]},
            });
            cluster.apply_value(service).expect("a service");
        }
        let secret = cluster.get("secrets", "kube-system", "nodelb").expect("the Secret of the manifest");
        let directory = TempDir::new().expect("a directory");
        for (key, file) in [("token", "token"), ("ca.crt", "ca.crt")] {
            let bytes = STANDARD.decode(secret["data"][key].as_str().expect("it is filled in")).expect("base64");
            fs::write(directory.path().join(file), bytes).expect("this machine lets it");
        }
        let replica = cluster.serve_on_free_port().expect("an apiserver");
        // A streaming list is a watch request: a server without them requires both verbs.
        replica.faults().behave(|behaviour| behaviour.watch_list = WatchList::Off);
        Self { replica, keys: "", directory }
    }

    fn with_keys(self, keys: &'static str) -> Self {
        Self { keys, ..self }
    }

    /// The configuration of docs/kubernetes.md.
    fn config(&self) -> String {
        format!(
            "[kubernetes]\n{}token-file = {:?}\nca-file = {:?}\nhealthz-addresses = []\n[[kubernetes.apiserver]]\n\
             address = \"{}\"\n",
            self.keys,
            self.directory.path().join("token"),
            self.directory.path().join("ca.crt"),
            self.replica.address()
        )
    }

    /// Waits until all kinds are synced; returns the problems if they are not.
    fn reads_everything(&self) -> Result<(), String> {
        self.reads(&["endpointslices", "nodes", "services"])
    }

    /// Waits until exactly these watches work; returns the problems if they do not.
    fn reads(&self, paths: &[&str]) -> Result<(), String> {
        let (daemon, _) = Daemon::start_with(&self.config(), "the datapath is memory");
        let start = Instant::now();
        loop {
            let answer: Value = serde_json::from_str(&daemon.get("/sources?output=json")).expect("JSON");
            let rows = answer["sources"].as_array().expect("rows");
            let of_kubernetes: Vec<_> = rows.iter().filter(|row| row["source"] == "kubernetes").collect();
            let problems = Value::from_iter(of_kubernetes.iter().map(|row| row["problems"].clone())).to_string();
            let problems = problems + &daemon.get("/apiservers?output=json");
            let read = of_kubernetes.iter().filter(|row| row["state"] == "Ok").filter_map(|row| row["path"].as_str());
            let read: BTreeSet<&str> = read.collect();
            if of_kubernetes.len() == paths.len() && read == BTreeSet::from_iter(paths.iter().copied()) {
                return Ok(());
            }
            if problems.contains("orbidden") || start.elapsed() > TIMEOUT {
                return Err(problems);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// With the rules of the manifest every kind is synced; without any one of them, one kind is not.
#[test]
fn a_daemon_needs_exactly_these_rules() {
    let objects = objects();
    World::of(&objects).reads_everything().expect("the rules are enough");
    for rule in rules(named(&objects, "ClusterRole", "nodelb")) {
        // Without this rule, a service address may be taken for an apiserver address until it
        // fails.
        if rule.1 != "servicecidrs" {
            assert!(World::of(&without(&objects, &rule)).reads_everything().is_err(), "{rule:?} is not needed");
        }
    }
}

/// With the smaller manifest, namespaces and services are synced; without any one of its rules, one watch is not.
#[test]
fn namespaces_and_services_need_exactly_the_rules_of_the_smaller_manifest() {
    let objects = objects_in(SMALLER);
    let of_apiservers: Vec<Value> =
        objects.iter().filter(|object| object["metadata"]["namespace"] != "shop").cloned().collect();
    let services = "services = [\"default/kubernetes\"]\n";
    let watches = ["endpointslices/default", "nodes", "services/default/kubernetes"];
    World::of(&of_apiservers).with_keys(services).reads(&watches).expect("the rules are enough for services");
    let namespaces = "namespaces = [\"shop\"]\n";
    let watches = ["endpointslices/default", "endpointslices/shop", "nodes", "services/shop"];
    let reads = |objects: &[Value]| World::of(objects).with_keys(namespaces).reads(&watches);
    reads(&objects).expect("the rules are enough for namespaces");
    assert!(World::of(&objects).reads_everything().is_err(), "it permits to read the whole cluster");
    for role in objects.iter().filter(|object| object["kind"] == "ClusterRole" || object["kind"] == "Role") {
        for rule in rules(role).into_iter().filter(|rule| rule.1 != "servicecidrs") {
            // The watch of default/kubernetes is for `kubernetes.services`.
            let is_of_services = role["metadata"]["namespace"] == "default" && rule.1 == "services";
            if !is_of_services || rule.2 == "list" {
                let fewer: Vec<Value> =
                    objects.iter().map(|it| if it == role { without_rule(it, &rule) } else { it.clone() }).collect();
                assert!(reads(&fewer).is_err(), "{rule:?} of {} is not needed", role["metadata"]);
            }
        }
    }
}

/// The manifest without one rule.
fn without(objects: &[Value], rule: &Rule) -> Vec<Value> {
    let is_role = |object: &Value| object["kind"] == "ClusterRole";
    objects.iter().map(|object| if is_role(object) { without_rule(object, rule) } else { object.clone() }).collect()
}

/// A role without one rule.
fn without_rule(role: &Value, (group, resource, verb): &Rule) -> Value {
    let mut role = role.clone();
    for rule in role["rules"].as_array_mut().expect("rules") {
        if words(&rule["apiGroups"]).contains(group) && words(&rule["resources"]).contains(resource) {
            rule["verbs"].as_array_mut().expect("verbs").retain(|it| it != verb);
        }
    }
    role
}

/// A client that queries the daemon right after READY does not see that it still waits for an
/// apiserver.
#[test]
fn a_daemon_that_is_ready_has_its_sources() {
    let world = World::of(&objects());
    world.replica.faults().behave(|behaviour| behaviour.watch_list = WatchList::On);
    let (daemon, _) = Daemon::start_with(&world.config(), "first full reconcile is done");
    let answer: Value = serde_json::from_str(&daemon.get("/sources?output=json")).expect("JSON");
    for row in answer["sources"].as_array().expect("rows") {
        let is_needed = ["services", "endpointslices"].iter().any(|kind| row["path"] == *kind);
        assert!(!is_needed || row["state"] == "Ok", "{row}");
    }
}
