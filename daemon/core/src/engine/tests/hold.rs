use std::collections::BTreeSet;

use crate::change::Change;
use crate::claimed::claimed;
use crate::compile::guard::Guard;
use crate::config::EngineConfig;
use crate::datapath::{Datapath, Limits};
use crate::engine::{Engine, Round};
use crate::holds::ReleaseReason;
use crate::memory::MemoryDatapath;
use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::drain::{Drain, Drained};
use crate::model::moment::Moment;
use crate::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, PortKey, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source,
};
use crate::state::entries::MapOp;
use crate::state::status::Status;
use crate::trace::{Verdict, trace};

const LIMITS: Limits = Limits { frontends: 64, services: 32, slots: 128, affinity: 16, outside: 0, source_ranges: 0 };
const APISERVER: &str = "192.0.2.1:6443";

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// A service with one port for each of these addresses, named after its number.
fn service(full: &str, frontends: &[&str]) -> Service {
    let port = |frontend: &&str| {
        let L4Addr { addr, port, .. } = l4(frontend);
        let frontends = vec![FrontendSpec { addr, port, kind: FrontendKind::ClusterIP }];
        ServicePort { name: port.to_string().into(), protocol: Protocol::Tcp, frontends }
    };
    Service {
        origin: Origin { object: format!("Service {full}").into(), ..Origin::default() },
        created: Some(100),
        ports: frontends.iter().map(port).collect(),
        ..Service::new(full.parse().expect("valid in a test"), Source::Kubernetes)
    }
}

fn slice(full: &str, ports: &[(&str, &[&str])]) -> Slice {
    let service: ServiceName = full.parse().expect("valid in a test");
    let port = |(name, backends): &(&str, &[&str])| SlicePort {
        name: (*name).into(),
        protocol: Protocol::Tcp,
        backends: backends.iter().map(|text| Backend::new(l4(text).addr, l4(text).port)).collect(),
    };
    Slice {
        name: SliceName::new(&service.namespace, &service.name),
        source: Source::Kubernetes,
        origin: Origin { object: format!("EndpointSlice {full}").into(), ..Origin::default() },
        ports: ports.iter().map(port).collect(),
        service,
        problem: None,
    }
}

fn synced() -> Change {
    Change::Synced { source: Source::Kubernetes, incomplete: None }
}

fn apiserver() -> Change {
    Change::Apiservers([(l4(APISERVER).addr, l4(APISERVER).port)].into())
}

/// An engine with its maps and the time.
struct Host {
    engine: Engine,
    maps: MemoryDatapath,
    now: Moment,
    guard: Guard,
}

impl Host {
    fn new() -> Self {
        Self::with(MemoryDatapath::new(LIMITS), Guard::default())
    }

    fn with(maps: MemoryDatapath, guard: Guard) -> Self {
        let config = EngineConfig {
            guard: guard.clone(),
            sources: BTreeSet::from([Source::Kubernetes]),
            max_services: LIMITS.services,
            ..EngineConfig::default()
        };
        let engine = Engine::new(config, maps.dump().expect("memory can be read"));
        Self { engine, maps, now: Moment(0), guard }
    }

    fn restarted(self) -> Self {
        Self::with(self.maps, self.guard)
    }

    fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> Round {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.now = self.now.plus(10_000);
        self.engine.reconcile(&mut self.maps, self.now)
    }

    fn reached(&self, to: &str) -> Vec<String> {
        match trace(&self.maps.dump().expect("readable"), &(30_000..=32_767), l4(to)) {
            Verdict::Forwarded(_, slots) => slots.iter().map(|slot| slot.addr.to_string()).collect(),
            other => vec![format!("{other:?}")],
        }
    }

    fn statuses(&self) -> Vec<Status> {
        claimed(&self.engine.snapshot(self.now)).iter().map(|row| row.status).collect()
    }
}

fn kubernetes() -> [Change; 2] {
    let full = "default/kubernetes";
    [
        Change::UpsertSlice(slice(full, &[("443", &[APISERVER])])),
        Change::UpsertService(service(full, &["10.96.0.1:443"])),
    ]
}

fn emptied(full: &str) -> Change {
    Change::UpsertSlice(slice(full, &[]))
}

fn gone(full: &str) -> Change {
    Change::RemoveService(full.parse().expect("valid in a test"), Source::Kubernetes)
}

/// An operator ends a hold by deleting the service. It must not matter whether both events arrive in one round.
#[test]
fn deleting_ends_a_hold_also_if_the_service_comes_back_at_once() {
    let mut host = Host::new();
    host.send(kubernetes().into_iter().chain([synced()]));
    let round = host.send([emptied("default/kubernetes")]);
    assert_eq!((round.held.len(), round.done, round.emptied.len()), (1, 0, 0));
    assert_eq!(host.statuses(), [Status::Held]);
    let again = Change::UpsertService(service("default/kubernetes", &["10.96.0.1:443"]));
    let round = host.send([gone("default/kubernetes"), again]);
    assert_eq!(round.released.iter().map(|release| release.reason).collect::<Vec<_>>(), [ReleaseReason::Deleted]);
    assert_eq!(host.statuses(), [Status::NoBackends]);
    assert!(host.reached("10.96.0.1:443")[0].contains("NoBackend"));
    assert_eq!(host.engine.snapshot(host.now).remembered(), []);
}

/// The list was never written to the maps before it was held. It must still be written, and the error is shown first.
#[test]
fn what_is_held_is_written_although_it_failed_before() {
    let mut host = Host::new();
    host.maps = host.maps.with_fault(Box::new(|op| matches!(op, MapOp::PutService(_, entry) if entry.has_backends)));
    host.send(kubernetes().into_iter().chain([synced()]));
    let round = host.send([emptied("default/kubernetes")]);
    assert_eq!((round.held.len(), host.statuses()), (1, vec![Status::Refused]));
    host.maps.clear_fault();
    host.send([]);
    assert_eq!(
        (host.reached("10.96.0.1:443"), host.statuses()),
        (vec![format!("{APISERVER}/TCP")], vec![Status::Held])
    );
}

/// One port reaches the apiserver and the other one does not. Both belong to one service, before and after a restart.
#[test]
fn every_port_of_a_protected_service_is_held() {
    let (full, addresses) = ("a/proxy", ["10.96.0.2:443", "10.96.0.2:9100"]);
    let reported = || Change::UpsertService(service(full, &addresses));
    let mut host = Host::new();
    let both = slice(full, &[("443", &[APISERVER]), ("9100", &["192.0.2.1:9100"])]);
    host.send([apiserver(), Change::UpsertSlice(both), reported(), synced()]);
    assert_eq!(host.send([emptied(full)]).held.len(), 2);
    let mut host = host.restarted();
    let round = host.send([apiserver(), reported(), emptied(full), synced()]);
    assert_eq!((round.held.len(), round.done), (2, 0));
    assert_eq!(addresses.map(|to| host.reached(to).join("")), ["192.0.2.1:6443/TCP", "192.0.2.1:9100/TCP"]);
}

/// While the daemon was stopped, the service lost an address, so its old id may still belong to another service.
#[test]
fn the_kernels_list_is_found_under_an_id_that_cannot_be_taken_over() {
    let full = "a/proxy";
    let mut two = service(full, &["10.96.0.2:443"]);
    let second = FrontendSpec { addr: l4("10.96.0.3:443").addr, ..two.ports[0].frontends[0] };
    two.ports[0].frontends.push(second);
    let mut host = Host::new();
    let reported = slice(full, &[("443", &[APISERVER])]);
    host.send([apiserver(), Change::UpsertSlice(reported), Change::UpsertService(two), synced()]);
    let mut host = host.restarted();
    host.send([apiserver(), Change::UpsertService(service(full, &["10.96.0.2:443"])), emptied(full), synced()]);
    assert_eq!(
        (host.reached("10.96.0.2:443"), host.statuses()),
        (vec![format!("{APISERVER}/TCP")], vec![Status::Held])
    );
    assert_eq!(host.reached("10.96.0.3:443"), ["PassedThrough"]);
}

/// The admin port moved to the backend's address. No address is translated to nodelb, held or not.
#[test]
fn a_backend_that_is_refused_now_is_not_held() {
    let mut host = Host::new();
    let reported = slice("default/kubernetes", &[("443", &[APISERVER, "192.0.2.9:9890"])]);
    host.send([Change::UpsertSlice(reported), kubernetes()[1].clone(), synced()]);
    host.guard.admin = vec![(l4("192.0.2.9:1").addr, 9890)];
    let mut host = host.restarted();
    host.send([kubernetes()[1].clone(), emptied("default/kubernetes"), synced()]);
    assert_eq!(host.reached("10.96.0.1:443"), [format!("{APISERVER}/TCP")]);
}

/// On some platforms the apiservers have link-local addresses, and after a start no source may be available to report
/// them.
#[test]
fn an_apiserver_on_this_link_is_known_again_after_a_restart_and_after_a_reboot() {
    const LINK: &str = "169.254.128.7:60002";
    let [_, service] = kubernetes();
    let empty = || emptied("default/kubernetes");
    let mut host = Host::new();
    host.send([Change::UpsertSlice(slice("default/kubernetes", &[("443", &[LINK])])), service.clone(), synced()]);
    host.send([empty()]);
    let records = host.engine.snapshot(host.now).remembered();
    let mut host = host.restarted();
    host.send([service.clone(), empty(), synced()]);
    assert_eq!((host.reached("10.96.0.1:443"), host.statuses()), (vec![format!("{LINK}/TCP")], vec![Status::Held]));
    let mut host = Host::new();
    let round = host.send([Change::Remember(records), service, empty()]);
    assert_eq!((host.reached("10.96.0.1:443"), host.statuses()), (vec![format!("{LINK}/TCP")], vec![Status::Held]));
    assert_eq!(round.held.len(), 1, "an earlier hold is reported at once, synced or not");
}

#[test]
fn what_is_remembered_counts_until_a_source_knows_better() {
    let mut host = Host::new();
    host.send(kubernetes().into_iter().chain([synced()]));
    let records = host.engine.snapshot(host.now).remembered();
    assert_eq!(records.len(), 1);
    let mut unknown = records[0].clone();
    unknown.port.service = ServiceName::new("a", "gone");
    let mut nonsense = records[0].clone();
    (nonsense.port.service, nonsense.cluster) = (ServiceName::new("a", "nonsense"), Vec::new());

    let mut host = Host::new();
    host.send([Change::Remember(vec![records[0].clone(), unknown.clone(), nonsense])]);
    let kept = host.engine.snapshot(host.now).remembered();
    assert_eq!(kept, [unknown, records[0].clone()], "records of services that are not reported yet are kept");
    let round = host.send([kubernetes()[1].clone()]);
    assert_eq!((host.reached("10.96.0.1:443"), round.held.len()), (vec![format!("{APISERVER}/TCP")], 0));
    let other = Change::UpsertSlice(slice("default/kubernetes", &[("443", &["192.0.2.2:6443"])]));
    let round = host.send([other, synced()]);
    assert_eq!((host.reached("10.96.0.1:443"), round.released.len()), (vec!["192.0.2.2:6443/TCP".to_owned()], 0));
    let kept = host.engine.snapshot(host.now).remembered();
    assert_eq!(kept.iter().map(|record| record.port.service.to_string()).collect::<Vec<_>>(), ["default/kubernetes"]);
    let round = host.send([emptied("default/kubernetes")]);
    assert_eq!((host.reached("10.96.0.1:443"), round.held.len()), (vec!["192.0.2.2:6443/TCP".to_owned()], 1));
}

/// An address with several claims shows its owner, held or not.
#[test]
fn a_held_service_that_takes_over_an_address_is_shown_as_held() {
    let mut host = Host::new();
    let old = Service { created: Some(1), ..service("a/old", &["10.96.0.1:443"]) };
    let backends = Change::UpsertSlice(slice("a/old", &[("443", &["192.0.2.7:80"])]));
    host.send(kubernetes().into_iter().chain([backends, Change::UpsertService(old.clone()), synced()]));
    host.send([emptied("default/kubernetes")]);
    assert_eq!(host.statuses(), [Status::Ok, Status::Conflict]);
    host.send([gone("a/old")]);
    assert_eq!(host.statuses(), [Status::Held]);
    host.send([Change::UpsertService(old)]);
    assert_eq!(host.statuses(), [Status::Ok, Status::Conflict]);
}

/// The pool learns an address late. From then on, its service is protected.
#[test]
fn an_apiserver_learned_late_protects_from_then_on() {
    let full = "a/proxy";
    let mut host = Host::new();
    let reported = Change::UpsertSlice(slice(full, &[("443", &[APISERVER])]));
    host.send([reported.clone(), Change::UpsertService(service(full, &["10.96.0.2:443"])), synced()]);
    assert_eq!(host.engine.snapshot(host.now).remembered(), []);
    let round = host.send([apiserver()]);
    assert_eq!((round.compiled.len(), round.done), (1, 0));
    assert_eq!(host.engine.snapshot(host.now).remembered().len(), 1);
    assert_eq!(host.send([apiserver()]).compiled, []);
    host.send([emptied(full)]);
    let snapshot = host.engine.snapshot(host.now);
    let held: Vec<_> =
        snapshot.held().map(|port| (port.backends.clone(), port.cause.origin.object.to_string())).collect();
    assert_eq!(held, [(vec![l4(APISERVER)], "EndpointSlice a/proxy".to_owned())]);
    assert_eq!(host.statuses(), [Status::Held]);
    let round = host.send([reported]);
    assert_eq!((round.released.len(), round.done, host.statuses()), (1, 0, vec![Status::Ok]));
}

/// A source that does not know the backends of a port reports the port without any; the maps may have them.
#[test]
fn backends_that_the_source_does_not_know_are_those_of_the_maps() {
    let described = Change::UpsertService(service("shop/web", &["198.51.100.1:80", "198.51.100.1:81"]));
    let both: &[(&str, &[&str])] = &[("80", &["192.0.2.7:80"]), ("81", &["192.0.2.7:81"])];
    let unknown = |ports: &[(&str, &[&str])]| {
        let problem = Some("no server answers".into());
        Change::UpsertSlice(Slice { problem, ..slice("shop/web", ports) })
    };
    let mut host = Host::new();
    host.send([described.clone(), Change::UpsertSlice(slice("shop/web", both)), synced()]);
    assert_eq!(host.reached("198.51.100.1:80"), ["192.0.2.7:80/TCP"]);
    // One port is not known; the other one has no backends.
    let mut host = host.restarted();
    let held = host.send([described.clone(), unknown(&[("80", &[])]), synced()]).held;
    assert_eq!((held.len(), host.statuses()), (1, vec![Status::Held, Status::NoBackends]));
    assert_eq!(host.reached("198.51.100.1:80"), ["192.0.2.7:80/TCP"]);
    // Again, and then the hold of the source has ended.
    host.send([unknown(&[("80", &[])])]);
    assert_eq!(host.reached("198.51.100.1:80"), ["192.0.2.7:80/TCP"]);
    let round = host.send([unknown(&[])]);
    assert_eq!((round.emptied.len(), host.statuses()), (1, vec![Status::NoBackends; 2]));
    // Later, it keeps what it has.
    host.send([Change::UpsertSlice(slice("shop/web", both))]);
    host.send([unknown(&[("80", &[])])]);
    assert_eq!(host.statuses(), [Status::Held, Status::NoBackends]);
    assert_eq!(host.reached("198.51.100.1:80"), ["192.0.2.7:80/TCP"]);
}

fn drains(full: &str, backends: &[&str]) -> Change {
    let drained = |text: &&str| Drained { addr: l4(text).addr, port: Some(l4(text).port) };
    let drain = || Drain { by: "root".into(), since: 0, until: None };
    let drains = backends.iter().map(|text| (drained(text), drain())).collect();
    Change::Drains(full.parse().expect("valid in a test"), drains, None)
}

/// Found as: the drain was accepted while there were two; then the only API server that the source still named was never
/// used, and the removed one was held.
#[test]
fn a_drain_gives_way_if_the_source_has_no_other_api_server() {
    let (full, first, second) = ("default/kubernetes", "192.0.2.2:6443", "192.0.2.3:6443");
    let reported = |backends: &[&str]| Change::UpsertSlice(slice(full, &[("443", backends)]));
    let mut host = Host::new();
    host.send([reported(&[first, second]), kubernetes()[1].clone(), synced(), drains(full, &[first])]);
    assert_eq!(host.reached("10.96.0.1:443"), [format!("{second}/TCP")]);
    let round = host.send([reported(&[first])]);
    assert_eq!((host.reached("10.96.0.1:443"), host.statuses()), (vec![format!("{first}/TCP")], vec![Status::Ok]));
    let detail = round.events[0].detail.as_deref().unwrap_or_default();
    assert!(round.held.is_empty() && detail.contains("drained backends are in use"), "{:?}", round.events);
    assert!(host.engine.snapshot(host.now).uses_drained(&slice_key(full)));
    let mut host = host.restarted();
    host.send([drains(full, &[first]), reported(&[first]), kubernetes()[1].clone(), synced()]);
    assert_eq!(host.reached("10.96.0.1:443"), [format!("{first}/TCP")]);
    host.send([reported(&[first, second])]);
    assert_eq!(host.reached("10.96.0.1:443"), [format!("{second}/TCP")], "the drain has effect again");
}

fn slice_key(full: &str) -> PortKey {
    let (service, port) = (full.parse().expect("valid in a test"), "443".into());
    PortKey { service, port, protocol: Protocol::Tcp, family: Family::Ipv4 }
}

/// Found as: one of two held backends could not be drained, not even with --force.
#[test]
fn a_held_backend_may_be_drained_unless_it_is_the_last_one() {
    let full = "default/kubernetes";
    let mut host = Host::new();
    host.send([
        Change::UpsertSlice(slice(full, &[("443", &[APISERVER, "192.0.2.2:6443"])])),
        kubernetes()[1].clone(),
        synced(),
    ]);
    host.send([emptied(full), drains(full, &[APISERVER])]);
    assert_eq!(
        (host.reached("10.96.0.1:443"), host.statuses()),
        (vec!["192.0.2.2:6443/TCP".to_owned()], vec![Status::Held])
    );
    host.send([drains(full, &[APISERVER, "192.0.2.2:6443"])]);
    assert_eq!(host.reached("10.96.0.1:443").len(), 2);
    host.send([drains(full, &["192.0.2.2:6443"])]);
    assert_eq!(host.reached("10.96.0.1:443"), [format!("{APISERVER}/TCP")]);
    host.send([drains(full, &[])]);
    assert_eq!(host.reached("10.96.0.1:443").len(), 2);
}

/// The same while a DNS server does not answer after a start; without protection, the operator may drain the last one.
#[test]
fn a_backend_from_before_the_start_may_be_drained() {
    let described = Change::UpsertService(service("shop/web", &["198.51.100.1:80"]));
    let both: &[(&str, &[&str])] = &[("80", &["192.0.2.7:80", "192.0.2.8:80"])];
    let mut host = Host::new();
    host.send([described.clone(), Change::UpsertSlice(slice("shop/web", both)), synced()]);
    let mut host = host.restarted();
    let unknown = Slice { problem: Some("no server answers".into()), ..slice("shop/web", &[("80", &[])]) };
    host.send([described, Change::UpsertSlice(unknown), synced()]);
    host.send([drains("shop/web", &["192.0.2.8:80"])]);
    assert_eq!(
        (host.reached("198.51.100.1:80"), host.statuses()),
        (vec!["192.0.2.7:80/TCP".to_owned()], vec![Status::Held])
    );
    host.send([drains("shop/web", &["192.0.2.7:80", "192.0.2.8:80"])]);
    assert_eq!(host.statuses(), [Status::NoBackends]);
    host.send([drains("shop/web", &[])]);
    assert_eq!(host.reached("198.51.100.1:80").len(), 2);
}
