//! A node that reads only a part of the cluster: some namespaces, some services, or what a label selector matches. The
//! server evaluates it, so that the user needs no permission for the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_apiserver::{Fault, On, Patch, Role};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::Source;
use nodelb_core::source_report::SourceState;
use nodelb_kube::api::scope::Selection;
use serde_json::{Value, json};

use crate::objects::{self, backend, frontend};
use crate::rig::{Reads, Rig};

/// The service with this number in a namespace, with one backend.
fn pair_in(namespace: &str, number: u64) -> [Value; 2] {
    let mut objects = objects::pair(number);
    objects.iter_mut().for_each(|object| object["metadata"]["namespace"] = namespace.into());
    objects
}

fn labelled(team: &str, number: u64) -> [Value; 2] {
    let [mut service, slice] = objects::pair(number);
    service["metadata"]["labels"] = json!({"team": team});
    [service, slice]
}

fn of_namespaces(namespaces: &[&str]) -> Selection {
    Selection { namespaces: namespaces.iter().map(|name| (*name).into()).collect(), ..Selection::default() }
}

fn of_services(services: &[&str]) -> Selection {
    let services = services.iter().map(|name| name.parse().expect("a name")).collect();
    Selection { services, ..Selection::default() }
}

fn of_labels(labels: &str) -> Selection {
    Selection { labels: labels.into(), ..Selection::default() }
}

/// Permissions in these namespaces, and what every node needs.
fn role_in(namespaces: &[&str]) -> Role {
    let reads = ["list", "watch"];
    let own = Role::none().and(&reads, &["nodes"]).within("default", &reads, &["services"], &["kubernetes"]).within(
        "default",
        &reads,
        &["endpointslices"],
        &[],
    );
    namespaces.iter().fold(own, |role, namespace| role.within(namespace, &reads, &["services", "endpointslices"], &[]))
}

/// Waits until the node has exactly these services, in the table and in the maps.
fn has(rig: &Rig, services: &[&str]) {
    let wanted: BTreeSet<String> = services.iter().map(|name| (*name).to_owned()).collect();
    rig.node.wait(&format!("{services:?}"), |observer| {
        let snapshot = observer.snapshot();
        let described: BTreeSet<String> = observer.objects().services.into_keys().collect();
        let served: BTreeSet<String> = snapshot
            .owners
            .values()
            .map(|owner| owner.key.service.to_string())
            .filter(|it| it != "nodelb/canary")
            .collect();
        if described == wanted && served == wanted { Ok(()) } else { Err(format!("{described:?}, {served:?}")) }
    });
}

fn is_synced(rig: &Rig, missing: Option<&str>) {
    rig.node.wait(&format!("synced except for {missing:?}"), |observer| {
        let snapshot = observer.snapshot();
        let facts = &snapshot.facts;
        let found = facts.incomplete(Source::Kubernetes).map(ToString::to_string);
        let is_so = facts.is_synced(Source::Kubernetes) && found.as_deref() == missing;
        if is_so { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// The paths of all requests for services and slices.
fn asked(rig: &Rig) -> Vec<String> {
    let mut requests = rig.replica.faults().take_requests();
    requests.retain(|line| line.contains("/services") || line.contains("/endpointslices"));
    requests
}

fn state_of(rig: &Rig, path: &str) -> (SourceState, Vec<String>) {
    let rows = rig.node.sources.borrow();
    let row = rows.iter().find(|row| row.path == path).expect("a row");
    (row.state, row.problems.clone())
}

#[test]
fn a_label_selector_is_evaluated_by_the_server() {
    let content = [labelled("shop", 1), labelled("other", 2), objects::pair(3)];
    let rig = Rig::of_selection(content.into_iter().flatten(), Role::node_proxier(), of_labels("team=shop"));
    has(&rig, &["ns/s1"]);
    is_synced(&rig, None);
    assert_eq!(rig.node.observer().backends(&frontend(1)), [backend(1)]);
    assert!(asked(&rig).iter().all(|line| line.contains("team%3Dshop") == line.contains("fieldSelector=spec")));
    let relabel = |rig: &Rig, name: &str, team: Value| {
        let labels = Patch::Merge(json!({"metadata": {"labels": {"team": team}}}));
        rig.cluster.patch("services", "ns", name, &labels).expect("a label");
    };
    // By watch, and by list.
    for is_away in [false, true] {
        let change = |rig: &Rig| {
            relabel(rig, "s1", Value::Null);
            relabel(rig, "s3", "shop".into());
        };
        if is_away {
            rig.away(|cluster| {
                change(&rig);
                cluster.compact();
            });
        } else {
            change(&rig);
        }
        has(&rig, &["ns/s3"]);
        assert_eq!(rig.node.observer().backends(&frontend(3)), [backend(3)], "its slice was known before");
        relabel(&rig, "s1", "shop".into());
        relabel(&rig, "s3", Value::Null);
        has(&rig, &["ns/s1"]);
    }
}

#[test]
fn namespaces_need_no_permission_for_the_others() {
    let content = [pair_in("shop", 1), pair_in("pay", 2), pair_in("ns", 3)];
    let rig =
        Rig::of_selection(content.into_iter().flatten(), role_in(&["shop", "pay"]), of_namespaces(&["shop", "pay"]));
    has(&rig, &["pay/s2", "shop/s1"]);
    is_synced(&rig, None);
    rig.apply(pair_in("shop", 4)[0].clone());
    rig.cluster.delete("services", "pay", "s2").expect("was there");
    has(&rig, &["shop/s1", "shop/s4"]);
    let narrow = ["/namespaces/shop/", "/namespaces/pay/", "/namespaces/default/"];
    let asked = asked(&rig);
    assert!(asked.iter().all(|line| narrow.iter().any(|part| line.contains(part))), "{asked:#?}");
}

#[test]
fn a_namespace_without_a_role_leaves_the_others_alone() {
    let content = || (1..3).flat_map(|number| pair_in("shop", number)).chain(pair_in("pay", 5));
    let both = of_namespaces(&["shop", "pay"]);
    let mut rig = Rig::of_selection(content(), role_in(&["shop", "pay"]), both.clone());
    has(&rig, &["pay/s5", "shop/s1", "shop/s2"]);
    rig.node.wait("the state is written", |_| {
        let written = std::fs::read_to_string(rig.state().join("kubernetes.jsonl")).unwrap_or_default();
        if written.matches("Upsert").count() == 6 { Ok(()) } else { Err(written) }
    });
    // While nodelb runs, and from the start on.
    for is_start in [false, true] {
        rig.cluster.allow("nodelb", role_in(&["shop"]));
        if is_start {
            rig.restart_node_with(both.clone());
            is_synced(&rig, Some("services/pay, endpointslices/pay may not be read"));
        } else {
            rig.replica.faults().end_watches();
        }
        for path in ["services/pay", "endpointslices/pay"] {
            rig.node.wait("the namespace is named", |_| {
                let (state, problems) = state_of(&rig, path);
                let is_named = problems.iter().any(|it| it.contains("in namespace pay may not be read"));
                if is_named && state == SourceState::LastGood { Ok(()) } else { Err(format!("{problems:?}")) }
            });
        }
        assert_eq!(rig.node.observer().backends(&frontend(5)), [backend(5)]);
        rig.apply(pair_in("shop", 3)[0].clone());
        rig.apply(pair_in("shop", 3)[1].clone());
        rig.cluster.delete("services", "shop", "s2").expect("was there");
        has(&rig, &["pay/s5", "shop/s1", "shop/s3"]);
        rig.cluster.delete("endpointslices", "shop", "s1-0").expect("was there");
        rig.node.wait("the slice is gone", |observer| {
            let backends = observer.backends(&frontend(1));
            if backends.is_empty() { Ok(()) } else { Err(format!("{backends:?}")) }
        });
        assert_eq!(state_of(&rig, "services/shop"), (SourceState::Ok, vec![]));
        // The Role is created, and something has changed meanwhile.
        rig.apply(pair_in("pay", 6)[0].clone());
        rig.cluster.allow("nodelb", role_in(&["shop", "pay"]));
        has(&rig, &["pay/s5", "pay/s6", "shop/s1", "shop/s3"]);
        is_synced(&rig, None);
        rig.cluster.delete("services", "shop", "s3").expect("was there");
        rig.cluster.delete("services", "pay", "s6").expect("was there");
        content().for_each(|object| rig.apply(object));
        has(&rig, &["pay/s5", "shop/s1", "shop/s2"]);
    }
    let journal = rig.take_journal();
    assert!(!journal.contains("another server") && !journal.contains("nodelb uses"), "{journal}");
}

#[test]
fn only_these_services_are_read() {
    let content = [pair_in("shop", 1), pair_in("shop", 2), pair_in("shop", 3), pair_in("pay", 4)];
    let reads = ["list", "watch"];
    let role = role_in(&[]).within("shop", &reads, &["services"], &["s1", "s2"]).within(
        "shop",
        &reads,
        &["endpointslices"],
        &[],
    );
    let rig = Rig::of_selection(
        content.into_iter().flatten(),
        role,
        of_services(&["shop/s1", "shop/s2", "default/kubernetes"]),
    );
    has(&rig, &["shop/s1", "shop/s2"]);
    is_synced(&rig, None);
    // A slice becomes one of the other service, and of one that is not read.
    let of = |service: &str| {
        let mut slice = objects::slice(service, 0, &["203.0.113.9".into()]);
        slice["metadata"]["namespace"] = "shop".into();
        slice["metadata"]["name"] = "moves".into();
        rig.apply(slice);
    };
    for (service, with) in [("s1", 1), ("s2", 2), ("s3", 0), ("s1", 1)] {
        of(service);
        rig.node.wait(service, |observer| {
            let counts = [1, 2].map(|number| observer.backends(&frontend(number)).len());
            let wanted = [1, 2].map(|number| if number == with { 2 } else { 1 });
            if counts == wanted { Ok(()) } else { Err(format!("{counts:?}")) }
        });
    }
    rig.cluster.delete("services", "shop", "s1").expect("was there");
    has(&rig, &["shop/s2"]);
    assert_eq!(state_of(&rig, "services/shop/s1"), (SourceState::Ok, vec![]));
}

#[test]
fn addresses_of_apiservers_are_learned_whatever_is_served() {
    let mut apiservers = [objects::service("kubernetes", 1), objects::slice("kubernetes", 0, &["192.0.2.50".into()])];
    apiservers.iter_mut().for_each(|object| object["metadata"]["namespace"] = "default".into());
    for selection in [of_namespaces(&["shop"]), of_services(&["shop/s2"]), of_labels("team=shop")] {
        let mut content: Vec<Value> = apiservers.to_vec();
        let [mut service, slice] = pair_in("shop", 2);
        service["metadata"]["labels"] = json!({"team": "shop"});
        content.extend([service, slice]);
        let role = if selection.labels.is_empty() { role_in(&["shop"]) } else { Role::node_proxier() };
        let rig = Rig::of_selection(content, role, selection);
        has(&rig, &["shop/s2"]);
        let address = ("192.0.2.50".parse().expect("an address"), 8080);
        rig.node.wait("the address is known", |observer| {
            let known = &observer.apiservers;
            if known.contains(&address) { Ok(()) } else { Err(format!("{known:?}")) }
        });
    }
}

/// A misspelt selection took all services away within seconds. Each of these leaves out more than half.
#[test]
fn another_selection_at_a_restart_takes_effect_when_it_is_accepted() {
    const MANY: u64 = 24;
    let content =
        (0..MANY).flat_map(|number| pair_in("shop", number)).chain(pair_in("pay", 100)).chain(labelled("a", 101));
    let role = Role::node_proxier();
    let mut rig = Rig::of_selection(content, role, Selection::default());
    let mut all: Vec<String> = (0..MANY).map(|number| format!("shop/s{number}")).collect();
    all.extend(["pay/s100".to_owned(), "ns/s101".to_owned()]);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    has(&rig, &all);
    type Case = (fn() -> Selection, &'static str, &'static str, &'static str);
    let cases: [Case; 3] = [
        (
            || of_namespaces(&["pay"]),
            "kubernetes.namespaces = pay",
            "pay/s100",
            "/apis/discovery.k8s.io/v1/namespaces/pay/endpointslices",
        ),
        (
            || of_labels("team=a"),
            "kubernetes.label-selector = team=a",
            "ns/s101",
            "/apis/discovery.k8s.io/v1/endpointslices",
        ),
        (|| of_services(&["shop/s7"]), "kubernetes.services = shop/s7", "shop/s7", "/api/v1/namespaces/shop/services"),
    ];
    for (selection, selected, kept, frozen) in cases {
        rig.node.wait("the state is written", |_| {
            let written = std::fs::read_to_string(rig.state().join("kubernetes.jsonl")).unwrap_or_default();
            let count = written.matches("UpsertService").count();
            if count == all.len() { Ok(()) } else { Err(format!("{count} services")) }
        });
        rig.replica.faults().answer(On::path(frozen), Fault::Status { code: 503, retry_after: None });
        rig.restart_node_with(selection());
        std::thread::sleep(std::time::Duration::from_millis(500));
        has(&rig, &all);
        rig.replica.faults().clear();
        let held = format!("{selected} selects 1 of {} known services", all.len());
        rig.node.wait("the selection is held", |observer| {
            let incomplete = observer.incomplete();
            if incomplete.as_ref() == Some(&held) { Ok(()) } else { Err(format!("{incomplete:?}")) }
        });
        has(&rig, &all);
        let rows = rig.node.sources.borrow().clone();
        assert!(rows.iter().any(|row| row.problems.iter().any(|problem| problem.starts_with(&held))), "{rows:?}");
        // What is held is stored as that of the earlier selection.
        rig.restart_node_with(selection());
        rig.node.wait("it is held after a restart", |observer| {
            let incomplete = observer.incomplete();
            if incomplete.as_ref() == Some(&held) { Ok(()) } else { Err(format!("{incomplete:?}")) }
        });
        has(&rig, &all);
        assert_eq!(rig.node.accept().as_deref(), Some(&*held));
        assert_eq!(rig.node.accept(), None);
        has(&rig, &[kept]);
        is_synced(&rig, None);
        rig.restart_node_with(Selection::default());
        has(&rig, &all);
    }
}

#[test]
fn every_scope_notices_that_the_cluster_was_restored() {
    let content = [pair_in("shop", 1), pair_in("pay", 2)];
    let rig = Rig::of_selection(content.into_iter().flatten(), Role::node_proxier(), of_namespaces(&["shop", "pay"]));
    has(&rig, &["pay/s2", "shop/s1"]);
    let backup = rig.cluster.backup();
    rig.cluster.delete("services", "pay", "s2").expect("was there");
    rig.apply(pair_in("shop", 3)[0].clone());
    rig.cluster.advance(100);
    has(&rig, &["shop/s1", "shop/s3"]);
    rig.cluster.restore_backup(&backup);
    rig.replica.faults().reset_connections();
    has(&rig, &["pay/s2", "shop/s1"]);
}

/// The state of the previous start has the previous way, and the list has the same versions.
#[test]
fn a_class_is_forwarded_as_the_configuration_says_also_after_a_restart() {
    let [mut service, slice] = objects::pair(1);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["loadBalancerClass"] = "example.com/lb".into();
    let of_class = |forward| {
        let forward = Arc::new(BTreeMap::from([("example.com/lb".into(), forward)]));
        Reads { forward, ..Reads::default() }
    };
    let mut rig = Rig::of_selection([service, slice], Role::node_proxier(), of_class(Forward::Tunnel));
    for next in [Forward::Tunnel, Forward::Direct, Forward::Translate] {
        rig.restart_node_with(of_class(next));
        rig.node.wait(&next.to_string(), |observer| {
            let found = observer.objects().services.get("ns/s1").map(|service| service.forward);
            if found == Some(next) { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }
}
