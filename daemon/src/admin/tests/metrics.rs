use nodelb_report::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort,
};
use tokio::sync::watch;

use nodelb_datapath::packets::{ConnectionCount, PacketCounts};
use nodelb_sources::checks::{CheckOutcome, Condition};
use nodelb_sources::dns::{DnsReport, QueryResult};

use super::*;
use crate::admin::fixture::{always, kubernetes, owner, unsynced};
use crate::datapath::fake::FakeDatapath;
use crate::devices::{self, sweep::SweepReport};
use crate::reconcile::OwnerOutputs;
use crate::status::{Check, Health};

#[path = "metrics/process.rs"]
mod process;

#[path = "metrics/openmetrics.rs"]
pub(crate) mod openmetrics;

const LIMITS: Limits =
    Limits { frontends: 1_000_000, services: 100_000, slots: 1_000_000, affinity: 1, outside: 0, source_ranges: 0 };

fn state(report: PoolReport) -> AdminState {
    AdminState { kubernetes: Some(kubernetes(report)), datapath: datapath(None), ..unsynced() }
}

fn datapath(connections: Option<Connections>) -> Arc<FakeDatapath> {
    Arc::new(FakeDatapath { limits: LIMITS, connections, ..FakeDatapath::default() })
}

/// Returns the samples of these families, as `name{labels} value`.
fn samples_of(state: &AdminState, about: &str) -> BTreeSet<String> {
    let now = Clocks { moment: Moment(21_500), time: Time::from_seconds(1_700_000_060) };
    let text = metrics(state, now).unwrap();
    openmetrics::read(&text).unwrap();
    let is_meant = |line: &&str| !line.starts_with('#') && line.contains(about);
    text.lines().filter(is_meant).map(str::to_owned).collect()
}

fn expect<const N: usize>(found: &BTreeSet<String>, expected: [&str; N]) {
    assert_eq!(*found, expected.into_iter().map(str::to_owned).collect());
}

#[test]
fn apiservers_are_counted_where_there_are_any() {
    let report = crate::admin::tables::tests::apiservers::report();
    let expected = [
        "nodelb_apiserver_connected 1",
        "nodelb_apiserver_last_response_seconds 12.5",
        "nodelb_apiserver_switches_total 0",
        "nodelb_apiservers{state=\"Failed\"} 1",
        "nodelb_apiservers{state=\"Healthy\"} 1",
        "nodelb_apiservers{state=\"NotReady\"} 0",
        "nodelb_apiservers{state=\"Recovering\"} 0",
        "nodelb_apiservers{state=\"Refused\"} 0",
        "nodelb_apiservers{state=\"Untried\"} 1",
    ];
    expect(&samples_of(&state(report), "apiserver"), expected);
    expect(&samples_of(&state(PoolReport::default()), "apiserver"), []);
}

fn check_report() -> CheckReport {
    CheckReport {
        targets: [(Condition::Healthy, 9), (Condition::Unhealthy, 1)].into(),
        done: [(CheckOutcome::Passed, 90), (CheckOutcome::Refused, 10)].into(),
        open: 2,
        late_millis: 1_500,
        ..CheckReport::default()
    }
}

#[test]
fn health_checks_are_counted_where_there_are_any() {
    let checks = always(check_report());
    let expected = [
        "nodelb_health_check_targets{state=\"Healthy\"} 9",
        "nodelb_health_check_targets{state=\"Unchecked\"} 0",
        "nodelb_health_check_targets{state=\"Unhealthy\"} 1",
        "nodelb_health_checks_late_seconds_total 1.5",
        "nodelb_health_checks_open 2",
        "nodelb_health_checks_total{result=\"Passed\"} 90",
        "nodelb_health_checks_total{result=\"Protocol\"} 0",
        "nodelb_health_checks_total{result=\"Refused\"} 10",
        "nodelb_health_checks_total{result=\"Status\"} 0",
        "nodelb_health_checks_total{result=\"Timeout\"} 0",
        "nodelb_health_checks_total{result=\"Unasked\"} 0",
        "nodelb_health_checks_total{result=\"Unreachable\"} 0",
    ];
    let samples = |state: &AdminState| {
        let of_ports = |sample: &String| sample.contains("health_check_node_ports");
        samples_of(state, "health").into_iter().filter(|sample| !of_ports(sample)).collect()
    };
    expect(&samples(&AdminState { checks, ..state(PoolReport::default()) }), expected);
    expect(&samples(&state(PoolReport::default())), []);
}

fn stale_sockets_report() -> StaleSocketsReport {
    let mut report = StaleSocketsReport::default();
    (report.is_working, report.udp, report.tcp, report.passes, report.errors) = (true, 12, 3, 7, 1);
    report.last_pass = Some(Moment(20_000));
    report
}

#[test]
fn sockets_that_moved_on_are_counted() {
    let stale_sockets = Some(always(stale_sockets_report()));
    let expected = [
        "nodelb_socket_errors_total 1",
        "nodelb_socket_last_pass_seconds 1.5",
        "nodelb_socket_passes_total 7",
        "nodelb_socket_reaper_up 1",
        "nodelb_sockets_destroyed_total{protocol=\"tcp\"} 3",
        "nodelb_sockets_destroyed_total{protocol=\"udp\"} 12",
    ];
    expect(&samples_of(&AdminState { stale_sockets, ..state(PoolReport::default()) }, "socket"), expected);
}

fn drifted() -> OwnerOutputs {
    let repaired = [("frontend", 4), ("link", 2)].into();
    let report = DriftReport { checks: 7, last_check: Some(Moment(20_000)), error: None, repaired };
    OwnerOutputs { drift: always(report), ..unsynced().owner }
}

#[test]
fn repairs_are_counted_by_kind() {
    let expected = [
        "nodelb_drift_checks_total 7",
        "nodelb_drift_last_check_age_seconds 1.5",
        "nodelb_drift_repaired_total{kind=\"frontend\"} 4",
        "nodelb_drift_repaired_total{kind=\"link\"} 2",
        "nodelb_drift_repaired_total{kind=\"node_address\"} 0",
        "nodelb_drift_repaired_total{kind=\"outside\"} 0",
        "nodelb_drift_repaired_total{kind=\"service\"} 0",
        "nodelb_drift_repaired_total{kind=\"slots\"} 0",
        "nodelb_drift_repaired_total{kind=\"source_range\"} 0",
        "nodelb_drift_repaired_total{kind=\"uplink\"} 0",
    ];
    expect(&samples_of(&AdminState { owner: drifted(), ..state(PoolReport::default()) }, "drift"), expected);
}

#[test]
fn changes_tell_how_long_they_take() {
    let latencies = Latencies::default();
    latencies.event_to_kernel.observe(0.000_35);
    latencies.rounds.inc();
    latencies.done.inc_by(3);
    let mut state = state(PoolReport::default());
    state.recorder.latencies = latencies;
    let is_bucket = |line: &String| line.contains("_bucket{");
    let found: BTreeSet<String> = samples_of(&state, "reconcile").into_iter().filter(|line| !is_bucket(line)).collect();
    let expected = [
        "nodelb_reconcile_duration_seconds_count 0",
        "nodelb_reconcile_duration_seconds_sum 0.0",
        "nodelb_reconcile_operations_total{result=\"done\"} 3",
        "nodelb_reconcile_operations_total{result=\"failed\"} 0",
        "nodelb_reconcile_retries_total 0",
        "nodelb_reconciles_total 1",
    ];
    expect(&found, expected);
    assert!(samples_of(&state, "event_to_kernel").contains("nodelb_event_to_kernel_duration_seconds_count 1"));
    for (name, buckets) in [("network_programming", 81), ("sync_proxy_rules", 16)] {
        let samples = samples_of(&state, &format!("kubeproxy_{name}_duration_seconds"));
        assert_eq!(samples.iter().filter(|line| is_bucket(line)).count(), buckets, "{name}");
    }
}

fn rows() -> Vec<SourceReport> {
    let row = |source, path: &str, kind, state, last_received| SourceReport {
        source,
        path: path.into(),
        kind,
        state,
        services: 1,
        slices: 1,
        content: (source == Source::Files).then_some(0x0123_4567_89ab_cdef),
        notices: Vec::new(),
        problems: if state == SourceState::Ok { Vec::new() } else { vec!["a".into(), "b".into()] },
        since: 1_700_000_000,
        last_received,
    };
    vec![
        row(Source::Files, "/etc/nodelb/services.d", Some("directory"), SourceState::Ok, Some(Moment(16_500))),
        row(Source::Files, "/etc/nodelb/services.d/a.toml", None, SourceState::LastGood, None),
        row(Source::Kubernetes, "services", Some("services"), SourceState::Ok, Some(Moment(11_500))),
        row(Source::Kubernetes, "nodes", Some("nodes"), SourceState::Error, None),
    ]
}

#[test]
fn sources_tell_how_old_they_are() {
    let expected = [
        "nodelb_source_age_seconds{source=\"files\",kind=\"directory\"} 5",
        "nodelb_source_age_seconds{source=\"kubernetes\",kind=\"services\"} 10",
        "nodelb_source_paths{source=\"files\",state=\"Error\"} 0",
        "nodelb_source_paths{source=\"files\",state=\"LastGood\"} 1",
        "nodelb_source_paths{source=\"files\",state=\"Ok\"} 1",
        "nodelb_source_paths{source=\"kubernetes\",state=\"Error\"} 1",
        "nodelb_source_paths{source=\"kubernetes\",state=\"LastGood\"} 0",
        "nodelb_source_paths{source=\"kubernetes\",state=\"Ok\"} 1",
        "nodelb_source_problems{source=\"files\"} 2",
        "nodelb_source_problems{source=\"kubernetes\"} 2",
        "nodelb_source_synced{source=\"files\"} 0",
        "nodelb_source_synced{source=\"kubernetes\"} 0",
        "nodelb_source_up{source=\"files\",kind=\"directory\"} 1",
        "nodelb_source_up{source=\"kubernetes\",kind=\"nodes\"} 0",
        "nodelb_source_up{source=\"kubernetes\",kind=\"services\"} 1",
    ];
    expect(
        &samples_of(
            &AdminState { files: always(rows().into_iter().collect()), ..state(PoolReport::default()) },
            "nodelb_source_",
        ),
        expected,
    );
}

#[test]
fn hosts_with_the_same_files_have_the_same_hash() {
    let of = |rows: Vec<SourceReport>| {
        let state = AdminState { files: always(rows.into_iter().collect()), ..state(PoolReport::default()) };
        samples_of(&state, "nodelb_files_content_info")
    };
    expect(&of(rows()), ["nodelb_files_content_info{hash=\"0123456789abcdef\"} 1"]);
    expect(&of(rows().into_iter().skip(1).collect()), []);
}

/// An alert on the metric can fire.
#[test]
fn a_source_that_is_kept_without_being_configured_is_not_synced() {
    let config = EngineConfig {
        sources: [Source::Kubernetes].into(),
        previous_sources: [Source::Files].into(),
        max_services: 9,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(config, Default::default());
    service(7).into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut MemoryDatapath::new(LIMITS), Moment(0));
    let snapshot = watch::channel(Arc::new(engine.snapshot(Moment(0)))).1;
    let state = AdminState { owner: owner(snapshot), ..state(PoolReport::default()) };
    let found = samples_of(&state, "nodelb_source_");
    for expected in ["nodelb_source_synced{source=\"files\"} 0", "nodelb_source_problems{source=\"files\"} 1"] {
        assert!(found.contains(expected), "{expected}: {found:?}");
    }
}

fn health(canary: Check) -> watch::Receiver<Arc<Health>> {
    let checks = vec![Check::passed("reconcile", "done"), Check::passed("links", "attached"), canary];
    watch::channel(Arc::new(Health { heartbeat: Moment(21_000), checks })).1
}

#[test]
fn hooks_that_are_not_in_effect_show() {
    let with = |health| {
        let owner = OwnerOutputs { health, ..unsynced().owner };
        AdminState { owner, ..state(PoolReport::default()) }
    };
    let good = with(health(Check::passed("canary", "refused")));
    expect(&samples_of(&good, "nodelb_hooks"), ["nodelb_hooks_in_effect 1"]);
    expect(&samples_of(&good, "nodelb_ready"), ["nodelb_ready 1"]);
    let bad = with(health(Check::failed("canary", "answered")));
    expect(&samples_of(&bad, "nodelb_hooks"), ["nodelb_hooks_in_effect 0"]);
    expect(&samples_of(&bad, "nodelb_ready"), ["nodelb_ready 0"]);
    // The memory datapath has no hooks.
    expect(&samples_of(&state(PoolReport::default()), "nodelb_hooks"), []);
}

fn counted() -> Connections {
    Connections { read: Arc::new(|_| Count { translated: 5, refused: 1 }), ledger: Arc::default() }
}

#[test]
fn connections_are_counted_by_service_port() {
    let (datapath, owner) = (datapath(Some(counted())), owner(snapshot_of(2)));
    let state = AdminState { datapath, owner, ..state(PoolReport::default()) };
    let samples = samples_of(&state, "nodelb_service_connections");
    assert_eq!(samples.len(), 4, "{samples:?}");
    for (result, number) in [("refused", 1), ("translated", 5)] {
        let end = format!("protocol=\"TCP\",from=\"inside\",result=\"{result}\"}} {number}");
        assert_eq!(samples.iter().filter(|sample| sample.ends_with(&end)).count(), 2, "{samples:?}");
    }
    assert_eq!(samples_of(&state, "nodelb_service_connections"), samples, "asking is no connection");
}

#[test]
fn connections_from_outside_have_series_of_their_own() {
    let packets = Some(devices::DeviceOutputs { service_connections: Some(counted()), ..packets() });
    let (datapath, owner) = (datapath(None), owner(snapshot_of(2)));
    let state = AdminState { datapath, owner, packets, ..state(PoolReport::default()) };
    let samples = samples_of(&state, "nodelb_service_connections");
    let is_outside = |sample: &String| sample.contains("from=\"outside\"");
    assert_eq!((samples.len(), samples.iter().filter(|sample| is_outside(sample)).count()), (4, 4), "{samples:?}");
}

fn packets() -> devices::DeviceOutputs {
    let count = Some(ConnectionCount::default());
    let sweep = Some(always(SweepReport { count, ..SweepReport::default() }));
    devices::DeviceOutputs { sweep, counts: Arc::new(|| Some(PacketCounts::default())), ..Default::default() }
}

/// A state with a value of every metric.
fn full() -> AdminState {
    AdminState {
        owner: OwnerOutputs {
            snapshot: snapshot_of(2),
            health: health(Check::passed("canary", "refused")),
            ..drifted()
        },
        datapath: datapath(Some(counted())),
        files: always(rows().into_iter().collect()),
        dns: always(DnsReport { queries: [(QueryResult::Records, 7)].into(), ..DnsReport::default() }),
        checks: always(check_report()),
        stale_sockets: Some(always(stale_sockets_report())),
        packets: Some(packets()),
        ..state(crate::admin::tables::tests::apiservers::report())
    }
}

/// The published metrics are exactly those of the table, with the same types, units, help texts and labels.
#[test]
fn every_metric_of_the_table_is_published() {
    let now = Clocks { moment: Moment(21_500), time: Time::from_seconds(1_700_000_060) };
    let families = openmetrics::read(&metrics(&full(), now).unwrap()).unwrap();
    let expected: BTreeMap<_, _> = METRICS.iter().map(|metric| (metric.family(), metric)).collect();
    let names: Vec<_> = families.keys().map(String::as_str).collect();
    assert_eq!(names, expected.keys().copied().collect::<Vec<_>>());
    for (name, family) in &families {
        let metric = expected[name.as_str()];
        assert_eq!(
            (family.kind.as_str(), family.unit.as_deref()),
            (&*metric.kind.to_string(), metric.unit()),
            "{name}"
        );
        assert_eq!(family.help.as_deref(), Some(format!("{}.", metric.help).as_str()));
        let labels: Vec<_> = metric.labels.iter().map(|label| label.name).collect();
        for sample in &family.samples {
            let found: Vec<_> =
                sample.labels.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "le").collect();
            assert_eq!(found, labels, "{name}");
        }
    }
}

fn service(number: u32) -> [Change; 2] {
    let name = ServiceName::new(&format!("namespace-{}", number % 100), &format!("service-{number}"));
    let [_, a, b, c] = number.to_be_bytes();
    let addr = |first| Addr::from(std::net::IpAddr::from(Ipv4Addr::new(first, a, b, c)));
    let (port, protocol): (Arc<str>, _) = ("http".into(), Protocol::Tcp);
    let frontends = vec![FrontendSpec { addr: addr(11), port: 80, kind: FrontendKind::ClusterIP }];
    let ports = vec![ServicePort { name: Arc::clone(&port), protocol, frontends }];
    let awaits_load_balancer = number.is_multiple_of(10);
    let service = Service { ports, awaits_load_balancer, ..Service::new(name.clone(), Source::Files) };
    // Every fifth service has no backends.
    let backends = (0..number % 5).map(|_| Backend::new(addr(10), 8080)).take(1).collect();
    let slice = Slice {
        name: SliceName::new(&name.namespace, &name.name),
        service: name,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: port, protocol, backends }],
        problem: None,
    };
    [Change::UpsertService(service), Change::UpsertSlice(slice)]
}

fn snapshot_of(services: u32) -> watch::Receiver<Arc<Snapshot>> {
    let mut datapath = MemoryDatapath::new(LIMITS);
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100_000, ..EngineConfig::default() };
    let mut engine = Engine::new(config, Default::default());
    (0..services).flat_map(service).for_each(|change| engine.change(change));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    engine.reconcile(&mut datapath, Moment(0));
    watch::channel(Arc::new(engine.snapshot(Moment(0)))).1
}

#[test]
fn services_are_counted_by_how_they_stand() {
    let found = samples_of(&AdminState { owner: owner(snapshot_of(100)), ..state(PoolReport::default()) }, "nodelb_");
    for expected in [
        "nodelb_services 100",
        "nodelb_services_without_backends 20",
        "nodelb_services_load_balancer_pending 10",
        "nodelb_services_held 0",
        "nodelb_frontends{status=\"OK\"} 80",
        "nodelb_frontends{status=\"NoBackends\"} 20",
        "nodelb_backends{state=\"Active\"} 80",
        "nodelb_backends_selectable 80",
    ] {
        assert!(found.contains(expected), "{expected}: {found:?}");
    }
}

/// Prints the cost of a scrape with many services, for occasional inspection.
#[test]
#[expect(clippy::print_stdout, reason = "a figure to look at, with --nocapture")]
fn a_scrape_at_fifty_thousand_services_is_short() {
    let mut state = full();
    state.owner.snapshot = snapshot_of(50_000);
    let start = Instant::now();
    let text = metrics(&state, Clocks::default()).unwrap();
    println!("a scrape at 50,000 services: {} ms, {} bytes", start.elapsed().as_millis(), text.len());
    assert!(text.contains("nodelb_services 50000\n"));
    // The number of values is bounded for a label with one value per service, so the size is bounded, too.
    assert!(text.len() < 1_000_000);
}
