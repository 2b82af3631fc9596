//! A change to one service never affects another: promise 2, and the outage that this project
//! exists for.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_report::explain::reports;
use proptest::prelude::*;

use crate::cases;
use crate::memory_maps;
use crate::model::{Host, ROOMY};
use crate::world::{change, changes, facts, host, l4, object};

/// A change of the node affects all services.
fn service_change() -> impl Strategy<Value = Change> {
    let is_about_node = |change: &Change| {
        matches!(change, Change::Node(_) | Change::NodeObject(_) | Change::NodeObjectUnknown | Change::Uplinks(_))
    };
    change().prop_filter("about a service", move |change| !is_about_node(change))
}

/// The services that the change is about: the named one, or those that the slice leaves and joins.
fn subjects(world: &[Change], change: &Change) -> BTreeSet<ServiceName> {
    let is_same = |fact: &&Change| object(fact) == object(change);
    let named = |fact: &Change| match fact {
        Change::UpsertService(service) => Some(service.name.clone()),
        Change::RemoveService(name, _) | Change::Unselect(name, ..) => Some(name.clone()),
        Change::UpsertSlice(slice) => Some(slice.service.clone()),
        Change::Quarantine(name, _) | Change::Passed(name, _) | Change::Drains(name, ..) => Some(name.clone()),
        _ => None,
    };
    facts(world).iter().filter(is_same).chain([change]).filter_map(named).collect()
}

/// The addresses that these services claim.
fn claimed(host: &Host, names: &BTreeSet<ServiceName>) -> BTreeSet<L4Addr> {
    let rows = reports::frontends(&host.engine.snapshot(host.now), &Default::default());
    rows.iter().filter(|row| names.contains(&row.service)).map(|row| row.address).collect()
}

/// The lines of the maps that belong neither to these services nor to an address that they dispute.
fn others(text: &str, names: &BTreeSet<ServiceName>, disputed: &BTreeSet<L4Addr>) -> String {
    let is_other = |line: &&str| {
        let mut words = line.split_whitespace();
        let (kind, first, second) = (words.next(), words.next().unwrap_or(""), words.next().unwrap_or(""));
        let has_key = matches!(kind, Some("frontend" | "outside" | "range"));
        let owner = if has_key { second } else { first };
        // `ns/name:port/TCP/IPv4`, or `ns/name/TCP/IPv4` for an unnamed port.
        let full: Vec<&str> = owner.split([':', '/']).take(2).collect();
        let is_subject = names.iter().any(|name| [&*name.namespace, &*name.name] == full[..]);
        let is_disputed = matches!(kind, Some("frontend" | "outside")) && disputed.contains(&l4(first));
        !matches!(kind, Some("node" | "uplink")) && !is_subject && !is_disputed
    };
    text.lines().filter(is_other).flat_map(|line| [line, "\n"]).collect()
}

proptest! {
    #![proptest_config(cases(1_024))]

    #[test]
    fn a_change_to_one_service_touches_no_other(world in changes(24), change in service_change()) {
        let names = subjects(&world, &change);
        let mut host = host();
        host.send(world);
        host.send_synced();
        host.settle();
        let mut disputed = claimed(&host, &names);
        let before = host.text();

        host.send([change]);
        host.settle();
        disputed.extend(claimed(&host, &names));
        let after = host.text();
        prop_assert_eq!(others(&before, &names, &disputed), others(&after, &names, &disputed));
    }
}

const PAIRS: [(&str, &str); 5] = [
    ("default/test", "default/test-extended"),
    ("default/test-extended", "default/test"),
    ("default/x", "default-test/x"),
    ("a/b-c", "a-b/c"),
    ("default/kubernetes", "default/kubernetes-intranet"),
];

fn service(full: &str, cluster_ip: &str, version: &str) -> Change {
    let L4Addr { addr, port, protocol } = l4(cluster_ip);
    Change::UpsertService(Service {
        origin: Origin { object: "Service".into(), resource_version: version.into(), ..Origin::default() },
        created: Some(1),
        ports: vec![ServicePort {
            name: "".into(),
            protocol,
            frontends: vec![FrontendSpec { addr, port, kind: FrontendKind::ClusterIP }],
        }],
        ..Service::new(full.parse().expect("valid"), Source::Kubernetes)
    })
}

/// A slice with the incident's address, or empty as Kubernetes writes it: `endpoints: []` and no
/// ports.
fn slice(full: &str, is_empty: bool) -> Change {
    let service: ServiceName = full.parse().expect("valid");
    let backends = vec![Backend::new(l4("1.1.1.1:80").addr, 80)];
    let ports =
        if is_empty { Vec::new() } else { vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }] };
    // Equal slice names if the services are in different namespaces.
    let is_plain = &*service.namespace == "default" && &*service.name != "x";
    let name = SliceName::new(&service.namespace, if is_plain { &service.name } else { "slice" });
    Change::UpsertSlice(Slice {
        name,
        service,
        source: Source::Kubernetes,
        origin: Origin::default(),
        ports,
        problem: None,
    })
}

/// All permutations.
fn orders(of: &[Change]) -> Vec<Vec<Change>> {
    let Some((first, rest)) = of.split_first() else { return vec![Vec::new()] };
    let with_first_at = |order: &[Change], at: usize| {
        let mut longer = order.to_vec();
        longer.insert(at, first.clone());
        longer
    };
    let shorter = orders(rest);
    shorter.iter().flat_map(|order| (0..=order.len()).map(|at| with_first_at(order, at))).collect()
}

/// The reproduction of the incident, for every order of the four objects and every pair of names.
#[test]
fn the_incident_does_not_happen_in_any_order() {
    for (emptied, other) in PAIRS {
        let objects = [
            service(emptied, "10.96.0.1:80", "1"),
            service(other, "10.96.0.2:80", "1"),
            slice(emptied, false),
            slice(other, false),
        ];
        for order in orders(&objects) {
            let mut host = Host::new(memory_maps::create(ROOMY, None), [Source::Kubernetes], Guard::default());
            for change in order {
                host.send([change]);
                host.round();
            }
            host.send_synced();
            host.settle();
            let kept = |host: &Host| {
                let expected = format!("service  {other}/TCP/IPv4  cluster=[1.1.1.1:80/TCP]");
                host.text().lines().any(|line| line == expected)
            };
            assert!(kept(&host), "{}", host.text());

            host.send([slice(emptied, true)]);
            host.round();
            // The service of the apiservers is held, so that not even its own list is written.
            let is_held = emptied == "default/kubernetes";
            assert_eq!(host.maps.log.len(), usize::from(!is_held), "one list is written: {:?}", host.maps.log);
            assert!(kept(&host), "emptying {emptied} emptied {other}:\n{}", host.text());

            host.send([service(other, "10.96.0.2:80", "2")]);
            host.round();
            assert_eq!(host.maps.log, [], "an annotation is no operation");
            assert!(kept(&host), "{}", host.text());
        }
    }
}
