//! Servers without some features, and invalid objects.

use std::time::Duration;

use nodelb_apiserver::{Behaviour, Cluster, EventFault, Fault, On, Patch, ServeOptions, WatchList};
use nodelb_kube::api::decode::Kind;
use serde_json::{Value, json};

use crate::objects::{self, frontend};
use crate::rig::{Rig, is_resumed};

fn shop_on(behaviour: Behaviour) -> Rig {
    let cluster = Cluster::new().expect("a cluster");
    (0..4).flat_map(objects::pair).for_each(|object| cluster.apply_value(object).expect("valid"));
    let rig = Rig::of(cluster, ServeOptions { behaviour, ..ServeOptions::default() }, |_| {});
    (0..4).for_each(|number| rig.watch(&frontend(number), Some(&objects::backend(number))));
    rig.converge("the beginning");
    rig
}

#[test]
fn lists_and_watches_are_asked_for_as_the_server_can() {
    for (watch_list, streams) in [(WatchList::On, true), (WatchList::Off, false), (WatchList::Unsupported, false)] {
        let rig = shop_on(Behaviour { watch_list, ..Behaviour::default() });
        rig.node.wait("a watch", |_| rig.node.is_watching());
        let asked = rig.requests(Kind::Service);
        assert!(asked[0].contains("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"), "{asked:#?}");
        let pages: Vec<_> = asked.iter().filter(|line| line.contains("limit=3")).collect();
        assert_eq!(pages.len(), if streams { 0 } else { 2 }, "{asked:#?}");
        assert!(pages.iter().skip(1).all(|line| line.contains("continue=")), "{asked:#?}");
        rig.replica.faults().end_watches();
        let mut resumed = Vec::new();
        rig.node.wait("the next watch", |_| {
            resumed.extend(rig.requests(Kind::Service));
            if resumed.is_empty() { Err("no request".into()) } else { Ok(()) }
        });
        rig.apply(objects::slice("s0", 1, &["203.0.113.1".into()]));
        rig.converge("after a watch that ended");
        resumed.extend(rig.requests(Kind::Service));
        assert!(resumed.iter().all(|line| is_resumed(line)), "a list to resume: {resumed:#?}");
    }
}

#[test]
fn a_server_that_cannot_select_by_cluster_ip() {
    for watch_list in [WatchList::On, WatchList::Off] {
        let rig = shop_on(Behaviour { selects_cluster_ip: false, watch_list, ..Behaviour::default() });
        come_and_go(&rig);
        assert!(!rig.requests(Kind::Service).last().expect("a request").contains("fieldSelector"));
    }
}

#[test]
fn services_that_are_left_out_and_come_back() {
    come_and_go(&shop_on(Behaviour::default()));
}

fn come_and_go(rig: &Rig) {
    let plain = || objects::service("t", 77);
    rig.apply(objects::slice("t", 0, &["203.0.113.1".into()]));
    let headless = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]});
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    let mut proxied = plain();
    proxied["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "another"});
    let with = |spec: &Value| json!({"kind": "Service", "metadata": {"namespace": "ns", "name": "t"}, "spec": spec});
    for left_out in [with(&headless), with(&external), proxied] {
        rig.apply(plain());
        rig.converge("served");
        assert_eq!(rig.node.observer().backends(&frontend(77)), ["203.0.113.1:8080/TCP"]);
        // An apiserver rejects a change of the ClusterIP: it takes a new object.
        let is_label = left_out["spec"] == plain()["spec"];
        if !is_label {
            rig.cluster.delete("services", "ns", "t").expect("was there");
        }
        rig.apply(left_out);
        rig.converge("left out");
        assert!(!rig.node.observer().objects().services.contains_key("ns/t"));
        rig.cluster.delete("services", "ns", "t").expect("was there");
    }
}

/// What a server sends in a bookmark instead of a version.
const NO_VERSIONS: [&str; 4] =
    ["{}", r#"{"resourceVersion":""}"#, r#"{"resourceVersion":"0"}"#, r#"{"resourceVersion":"x"}"#];

/// A watch from version 0 would replay what exists, and no deletion.
#[test]
fn a_bookmark_without_a_version_loses_no_deletion() {
    let rig = shop_on(Behaviour::default());
    let faults = rig.replica.faults();
    for (kind, metadata) in Kind::SERVED.into_iter().flat_map(|kind| NO_VERSIONS.map(|metadata| (kind, metadata))) {
        rig.apply(objects::service("t", 77));
        rig.apply(objects::slice("t", 1, &["203.0.113.1".into()]));
        rig.converge("served");
        rig.requests(kind);
        let bytes = format!("{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{metadata}}}}}\n");
        faults.answer_next(1, On::watch(kind.resource()), Fault::Garbage { bytes });
        faults.end_watches();
        rig.node.wait("another watch", |_| {
            let asked = rig.requests(kind);
            if asked.iter().any(|line| is_resumed(line)) { Ok(()) } else { Err(format!("{asked:?}")) }
        });
        // The watch has begun; the bookmark is its first line.
        std::thread::sleep(Duration::from_millis(200));
        rig.away(|cluster| {
            cluster.delete("endpointslices", "ns", "t-1").expect("was there");
            cluster.delete("services", "ns", "t").expect("was there");
        });
        rig.converge(&format!("deleted after a bookmark with {metadata}"));
        faults.clear();
    }
}

#[test]
fn an_object_of_ten_megabytes() {
    let rig = shop_on(Behaviour::default());
    let faults = rig.replica.faults();
    let large = json!({"metadata": {"namespace": "ns", "name": "large", "annotations": {"a": "x".repeat(10 << 20)}}});
    let event = json!({"type": "ADDED", "object": large}).to_string();
    for kind in Kind::SERVED {
        // More than once: on a slow machine nodelb may close the connection before the event is complete.
        let inject = || faults.events_next(20, kind.resource(), EventFault::Garbage { bytes: event.clone() });
        inject();
        rig.apply(objects::slice("s0", 1, &["203.0.113.1".into()]));
        rig.apply(objects::service("new", 9));
        // Before it converges: a list that is complete ends the problem, perhaps before this sees it.
        rig.wait_for_problem_of(kind, Some("an object of more than 8388608 bytes"), inject);
        rig.converge("a large event");
        faults.clear();
    }
    faults.behave(|behaviour| behaviour.watch_list = WatchList::Off);
    faults.answer_next(1, On::list("services"), Fault::Garbage { bytes: large.to_string() });
    faults.expire_watches();
    rig.apply(objects::service("newer", 10));
    rig.converge("a large object in a list");
}

#[test]
fn invalid_objects_in_lists_and_watches() {
    let rig = shop_on(Behaviour::default());
    let faults = rig.replica.faults();
    let odd = [
        json!({}),
        json!({"metadata": null}),
        json!({"metadata": 7}),
        json!({"metadata": {"name": 7}}),
        json!({"metadata": {"name": ""}}),
        json!({"metadata": {"namespace": "ns", "name": "../../etc"}}),
        json!({"metadata": {"namespace": "ns", "name": "x".repeat(1000)}}),
        json!({"metadata": {"namespace": "ns", "name": "odd", "labels": []}}),
        json!({"metadata": {"namespace": "ns", "name": "odd", "labels": {"kubernetes.io/service-name": 1}}}),
        json!({"metadata": {"namespace": "ns", "name": "odd"}, "spec": [], "endpoints": {}}),
        json!({"metadata": {"namespace": "ns", "name": "odd"}, "spec": {"ports": [{"port": 65536}]},
            "ports": [{"port": -1}]}),
        json!({"metadata": {"namespace": "ns", "name": "odd"}, "spec": {"ports": [[]]}, "endpoints": [7]}),
    ];
    for object in odd {
        for kind in Kind::SERVED {
            let bytes = json!({"type": "MODIFIED", "object": object}).to_string();
            let inject = || faults.events_next(1, kind.resource(), EventFault::Garbage { bytes: bytes.clone() });
            inject();
            rig.apply(objects::slice("s0", 1, &[format!("203.0.113.{}", 1 + rig.cluster.revision() % 200)]));
            rig.cluster.patch("services", "ns", "s1", &touched(rig.cluster.revision())).expect("valid");
            rig.converge(&format!("{object:.100} in a watch"));
            rig.wait_for_problem_of(kind, Some("skipped since the start"), inject);
            for list in [On::watch(kind.resource()), On::list(kind.resource())] {
                let is_stream = list == On::watch(kind.resource());
                faults.behave(|it| it.watch_list = if is_stream { WatchList::On } else { WatchList::Off });
                let added = json!({"type": "ADDED", "object": object});
                let bytes = if is_stream { &added } else { &object }.to_string();
                faults.answer_next(1, list, Fault::Garbage { bytes });
                faults.expire_watches();
                rig.cluster.patch("services", "ns", "s1", &touched(rig.cluster.revision())).expect("valid");
                rig.converge(&format!("{object:.100} in a list"));
            }
        }
    }
}

fn touched(number: u64) -> Patch {
    Patch::Merge(json!({"metadata": {"annotations": {"touched": number.to_string()}}}))
}

#[test]
fn an_object_that_becomes_invalid_keeps_its_last_valid_version_and_recovers() {
    let rig = shop_on(Behaviour::default());
    let odd = |kind: Kind| match kind {
        Kind::Service => json!({"spec": {"sessionAffinityConfig": 7}}),
        _ => json!({"endpoints": [{"addresses": 7}]}),
    };
    for (kind, name) in [(Kind::Service, "s1"), (Kind::EndpointSlice, "s1-0")] {
        let good = rig.cluster.get(kind.resource(), "ns", name).expect("there");
        rig.cluster.patch(kind.resource(), "ns", name, &Patch::Merge(odd(kind))).expect("stored");
        rig.wait_for_problem(kind, Some(&format!("ns/{name}:")));
        assert_eq!(rig.node.observer().backends(&frontend(1)), [objects::backend(1)]);
        rig.replica.faults().expire_watches();
        rig.apply(objects::slice("s0", 1, &[format!("203.0.113.{}", 1 + rig.cluster.revision() % 200)]));
        rig.reconnect();
        assert_eq!(rig.node.observer().backends(&frontend(1)), [objects::backend(1)]);
        let mut good = good;
        good["metadata"]["resourceVersion"].take();
        rig.apply(good);
        rig.converge("it makes sense again");
        rig.wait_for_problem(kind, None);
    }
}

#[test]
fn an_invalid_object_that_is_deleted_is_removed() {
    let rig = shop_on(Behaviour::default());
    let odd = || {
        let mut odd = objects::service("odd", 99);
        odd["spec"]["sessionAffinityConfig"] = json!(7);
        odd
    };
    rig.apply(odd());
    rig.wait_for_problem(Kind::Service, Some("ns/odd:"));
    rig.cluster.delete("services", "ns", "odd").expect("was there");
    rig.wait_for_problem(Kind::Service, None);
    // A valid object is deleted and created again with invalid content: the deletion takes effect.
    rig.apply(objects::service("odd", 99));
    rig.converge("good");
    rig.cluster.delete("services", "ns", "odd").expect("was there");
    rig.apply(odd());
    rig.wait_for_problem(Kind::Service, Some("ns/odd:"));
    rig.away(|cluster| {
        cluster.delete("services", "ns", "odd").expect("was there");
        cluster.compact();
    });
    rig.converge("gone while away");
    rig.wait_for_problem(Kind::Service, None);
}

#[test]
fn a_hundred_thousand_endpoints_in_one_slice() {
    let rig = shop_on(Behaviour::default());
    let backends: Vec<String> = (0..100_000).map(|n| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255)).collect();
    rig.apply(objects::slice("s1", 1, &backends));
    rig.wait_for_problem(Kind::EndpointSlice, Some("more than 10000 items"));
    rig.apply(objects::slice("s0", 1, &["203.0.113.1".into()]));
    rig.converge("the others");
    rig.apply(objects::slice("s1", 1, &backends[..3]));
    rig.converge("split");
}

#[test]
fn useless_addresses_and_ports() {
    let rig = shop_on(Behaviour::default());
    rig.apply(objects::service("t", 70));
    let addresses =
        ["203.0.113.1", "fe80::1%eth0", "2001:db8::1", "0.0.0.0", "224.0.0.1", "1.2.3", "", "203.0.113.2%1"];
    rig.apply(objects::slice("t", 0, &addresses.map(str::to_owned)));
    rig.converge("addresses of no use");
    assert_eq!(rig.node.observer().backends(&frontend(70)), ["203.0.113.1:8080/TCP"]);
    let mut six = objects::slice("t", 1, &["203.0.113.9".into(), "2001:db8::1%2".into()]);
    six["addressType"] = json!("IPv6");
    rig.apply(six);
    let mut unlabelled = objects::slice("t", 2, &["203.0.113.8".into()]);
    unlabelled["metadata"]["labels"].take();
    rig.apply(unlabelled);
    let mut portless = objects::slice("t", 3, &["203.0.113.7".into()]);
    portless["ports"] = json!([{"name": "", "port": 0}, {"name": "", "port": null}, {"name": "x", "protocol": "ICMP"}]);
    rig.apply(portless);
    let mut service = objects::service("u", 71);
    service["spec"]["ports"] = json!([{"name": "zero", "port": 0}, {"name": "good", "port": 80}]);
    rig.apply(service);
    rig.converge("slices of no use");
    assert_eq!(rig.node.observer().backends(&frontend(70)), ["203.0.113.1:8080/TCP"]);
    let expected = [
        (Kind::EndpointSlice, "ns/t-0: 7 endpoints without a usable address"),
        (Kind::EndpointSlice, "ns/t-1: 2 endpoints"),
        (Kind::EndpointSlice, "1 left out"),
        (Kind::EndpointSlice, "ns/t-3: port"),
        (Kind::Service, "ns/u: port `zero` (0) has no number"),
    ];
    rig.node.wait("the notices", |_| {
        let rows = rig.node.sources.borrow().clone();
        let notices =
            |kind: Kind| rows.iter().find(|row| row.path == kind.resource()).expect("a row").notices.join("\n");
        let missing = expected.iter().find(|(kind, words)| !notices(*kind).contains(words));
        missing.map_or(Ok(()), |(kind, words)| Err(format!("{words}: {}", notices(*kind))))
    });
}

#[test]
fn a_node_that_may_not_be_read_harms_nothing() {
    let cluster = Cluster::new().expect("a cluster");
    objects::pair(1).into_iter().for_each(|object| cluster.apply_value(object).expect("valid"));
    for code in [403, 404, 500] {
        let rig = Rig::of(cluster.clone(), ServeOptions::default(), |faults| {
            faults.answer(On::resource("nodes"), Fault::Status { code, retry_after: None });
        });
        rig.converge("without the Node");
        rig.wait_for_problem(Kind::Node, Some(&code.to_string()));
        rig.apply(objects::slice("s1", 1, &[format!("203.0.113.{}", code % 100)]));
        rig.converge("and on");
    }
}
