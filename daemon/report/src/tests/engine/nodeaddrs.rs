//! Addresses of the node that do not fit into the map, or that the maps do not accept for another reason.

use super::*;
use crate::explain::explanation::{self, Client, ConnectResult, NearMatch};
use nodelb_core::datapath::MapError;
use nodelb_core::trace::{self, Verdict};

fn node(own: &[&str]) -> Change {
    Change::Node(NodeFacts {
        addresses: own.iter().map(|text| l4(&format!("{text}:1")).addr).collect(),
        nodeport_addresses: vec!["203.0.113.0/24".parse().expect("a network")],
        ..NodeFacts::default()
    })
}

fn nodeport(full: &str) -> Service {
    let frontends = vec![FrontendSpec { addr: l4("0.0.0.0:1").addr, port: 30_080, kind: FrontendKind::NodePort }];
    let port = ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends };
    Service { ports: vec![port], ..Service::new(name(full), Source::Files) }
}

fn end(engine: &Engine, to: &str) -> ConnectResult {
    explanation::explain(&engine.snapshot(Moment(0)), l4(to), Client::Host).result
}

fn error(engine: &Engine) -> Option<String> {
    reports::frontends(&engine.snapshot(Moment(0)), &Filter::default()).remove(0).error
}

/// `t_full`: 1,024 addresses too many, and every report stated that NodePorts are answered on them.
#[test]
fn an_address_of_the_node_that_does_not_fit_is_reported_everywhere() {
    let mut datapath = MemoryDatapath::new(LIMITS).with_node_addrs(1);
    let mut engine = engine_with(&datapath);
    engine.change(Change::UpsertService(nodeport("shop/web")));
    engine.change(Change::UpsertSlice(slice("shop/web", "a", &["192.0.2.1:8080"])));
    engine.change(node(&["203.0.113.1", "203.0.113.2", "203.0.113.3"]));
    engine.change(synced());
    let round = engine.reconcile(&mut datapath, Moment(0));
    let full = "map node_addrs is full (1 addresses): reduce the addresses that node.nodeport-addresses selects";
    let reported: Vec<(String, &str)> = round.unanswered.iter().map(|(a, error)| (a.to_string(), &**error)).collect();
    assert_eq!(reported, [("203.0.113.2".into(), full), ("203.0.113.3".into(), full)]);
    assert_eq!(end(&engine, "203.0.113.1:30080"), ConnectResult::Forwarded(1));
    assert_eq!(end(&engine, "203.0.113.2:30080"), ConnectResult::PassedThrough, "the kernel does not have the address");
    let snapshot = engine.snapshot(Moment(0));
    assert_eq!(trace::verdict(&snapshot, l4("203.0.113.2:30080")), Verdict::PassedThrough);
    let near = explanation::explain(&snapshot, l4("203.0.113.2:30080"), Client::Host).near;
    assert_eq!(near, [NearMatch::NotInKernel(name("shop/web"), Some(MapError::TooManyNodeAddrs { limit: 1 }))]);
    let shown = format!("not answered on 203.0.113.2 and 1 more of the node's addresses: {full}");
    assert_eq!(error(&engine), Some(shown));

    // The map is as full as before, so the address is neither reported nor retried.
    let again = engine.reconcile(&mut datapath, engine.next_round().expect("a retry is due"));
    assert_eq!((again.failed, again.unanswered.len()), (0, 0));

    engine.change(node(&["203.0.113.3"]));
    let mut answered = Vec::new();
    let mut now = Moment(20_000);
    for _ in 0..4 {
        answered.extend(engine.reconcile(&mut datapath, now).answered);
        now = engine.next_round().unwrap_or(now);
    }
    assert_eq!((answered, error(&engine)), (vec![l4("203.0.113.3:1").addr], None));
    assert_eq!(end(&engine, "203.0.113.3:30080"), ConnectResult::Forwarded(1));
    assert_eq!((engine.sizes().failed, engine.next_round()), (0, None));
}

#[test]
fn an_address_of_the_node_that_fails_once_is_put_again() {
    let mut is_first = true;
    let fails = move |op: &MapOp| matches!(op, MapOp::PutNodeAddr(_)) && std::mem::take(&mut is_first);
    let mut datapath = MemoryDatapath::new(LIMITS).with_fault(Box::new(fails));
    let mut engine = engine_with(&datapath);
    engine.change(Change::UpsertService(nodeport("shop/web")));
    engine.change(node(&["203.0.113.1"]));
    engine.change(synced());
    assert_eq!(engine.reconcile(&mut datapath, Moment(0)).unanswered.len(), 1);
    assert_eq!(error(&engine).as_deref(), Some("not answered on 203.0.113.1: map any: injected fault"));
    let round = engine.reconcile(&mut datapath, engine.next_round().expect("a retry is due"));
    assert_eq!((round.answered, error(&engine)), (vec![l4("203.0.113.1:1").addr], None));
}
