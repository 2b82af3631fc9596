//! Reads arbitrary text as a service file in both formats. What is accepted obeys the documented limits, means the same
//! when it is read again and when a comment follows, and leads to no forbidden address in the maps. What is refused has
//! a problem with its line.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::health_check::{HealthCheck, Method};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::{DnsName, Named, RecordType};
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{Service, Slice, Source};
use nodelb_kube::api::health_check::{INTERVAL, TIMEOUT};
use nodelb_sources::files::merge::{Merged, merge};
use nodelb_sources::files::{FileContent, parse};

const LIMITS: Limits = Limits { frontends: 64, services: 16, slots: 256, affinity: 16, outside: 0, source_ranges: 0 };

/// The maximum number of problems of a file, with the note that there are more.
const MAX_PROBLEMS: usize = 101;

fn check_health_check(check: &HealthCheck) {
    let within = |duration: Duration, (min, max): (u64, u64)| {
        (u128::from(min)..=u128::from(max)).contains(&duration.as_millis())
    };
    assert!(within(check.interval, INTERVAL) && within(check.timeout, TIMEOUT) && check.timeout <= check.interval);
    assert!((1..=100).contains(&check.rise) && (1..=100).contains(&check.fall) && check.port != Some(0));
    if let Method::Http { path, host, status } = &check.method {
        let is_of_line = |c: char| c.is_ascii_graphic();
        assert!(path.starts_with('/') && path.chars().all(is_of_line), "{path:?} ends the request line");
        assert!(host.iter().all(|host| host.chars().all(is_of_line)), "{host:?} ends the header");
        assert!(*status.start() >= 100 && *status.end() <= 599 && status.start() <= status.end());
    }
}

fn check_service(service: &Service) {
    assert_eq!(service.name.to_string().parse().as_ref(), Ok(&service.name));
    assert!(service.affinity_seconds.is_none_or(|seconds| (1..=31_536_000).contains(&seconds)));
    let (mut ports, mut frontends) = (BTreeSet::new(), BTreeSet::new());
    for port in &service.ports {
        assert!(ports.insert((&port.name, port.protocol)), "{} has port {} twice", service.name, port.name);
        assert!(!port.frontends.is_empty(), "{} has a port without frontends", service.name);
        for frontend in &port.frontends {
            assert!(!frontend.addr.is_unspecified() && !frontend.addr.is_multicast() && frontend.port > 0);
            assert!(frontends.insert((frontend.addr, frontend.port, port.protocol)), "{} is twice", frontend.addr);
        }
    }
    service.health_check.iter().for_each(|check| check_health_check(check));
}

fn check_slice(slice: &Slice, services: &BTreeMap<String, &Service>) {
    let service = services[&slice.service.to_string()];
    for port in &slice.ports {
        assert!(service.ports.iter().any(|it| (&it.name, it.protocol) == (&port.name, port.protocol)));
        for backend in &port.backends {
            assert!(!backend.addr.is_unspecified() && !backend.addr.is_multicast() && backend.port > 0);
        }
    }
}

fn check_named(named: &Named, services: &BTreeMap<String, &Service>) {
    let service = services[&named.service.to_string()];
    let name = named.question.name.as_str();
    assert_eq!(DnsName::parse(&format!("{name}.")).as_ref(), Ok(&named.question.name));
    assert!(!name.is_empty() && name.len() <= 253 && name.split('.').all(|label| (1..=63).contains(&label.len())));
    let is_of_port = |protocol| service.ports.iter().any(|it| (&it.name, it.protocol) == (&named.port, protocol));
    assert!(!named.protocols.is_empty() && named.protocols.iter().all(|protocol| is_of_port(*protocol)));
    assert!(!named.families.is_empty() && named.backend.addr.is_unspecified());
    let is_srv = named.question.record == RecordType::Srv;
    assert_eq!(named.backend.port == 0, is_srv, "{name}");
    assert!(is_srv || named.families.iter().any(|family| RecordType::of(*family) == named.question.record));
}

/// The limits of nodelb's own format. Kubernetes objects have those of the API server instead.
fn check_entries(content: &FileContent) {
    let services: BTreeMap<String, &Service> =
        content.services.iter().map(|found| (found.value.name.to_string(), &*found.value)).collect();
    assert_eq!(services.len(), content.services.len(), "a service is defined twice");
    services.values().for_each(|service| check_service(service));
    content.slices.iter().for_each(|found| check_slice(&found.value, &services));
    content.named.iter().for_each(|named| check_named(named, &services));
    let slices = content.slices.iter().map(|found| &found.value.name);
    let names: BTreeSet<_> = slices.chain(content.named.iter().map(|named| &named.slice)).collect();
    assert_eq!(names.len(), content.slices.len() + content.named.len(), "two slices have one name");
}

/// Programs the services into maps, and removes them.
fn program(path: &Path, content: FileContent) {
    let merged = merge(&[(path.to_owned(), Arc::new(content))].into_iter().collect());
    let mut maps = MemoryDatapath::new(LIMITS);
    let config = EngineConfig { sources: [Source::Files].into(), max_services: LIMITS.services, ..Default::default() };
    let mut engine = Engine::new(config, maps.dump().expect("memory can always be read"));
    engine.change(Change::Node(NodeFacts::default()));
    Merged::default().changes_to(&merged).into_iter().for_each(|change| engine.change(change));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    engine.reconcile(&mut maps, Moment(0));
    let held = maps.dump().expect("memory can always be read");
    for slot in held.services.values().flat_map(|entry| entry.cluster.iter().chain(entry.local.iter())) {
        let is_bad = slot.addr.addr.is_unspecified() || slot.addr.addr.is_multicast() || slot.addr.port == 0;
        assert!(!is_bad, "a connection would be sent to {}", slot.addr);
    }
    for address in held.frontends.keys() {
        assert!(!address.addr.is_loopback() && !address.addr.is_multicast(), "{address} would be translated");
    }
    merged.changes_to(&Merged::default()).into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut maps, Moment(10_000));
    let left = maps.dump().expect("memory can always be read");
    assert!(
        left.frontends
            .keys()
            .all(|address| address.port == 0 || nodelb_core::state::entries::CANARIES.contains(address))
    );
}

fuzz_target!(|bytes: &[u8]| {
    // YAML also ends lines with a carriage return alone.
    let lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).count();
    for path in ["a.toml", "a.yaml"].map(Path::new) {
        let read = parse(path, bytes);
        assert_eq!(read, parse(path, bytes));
        let is_own = path.extension().is_some_and(|extension| extension == "toml");
        match read {
            Ok(content) => {
                if is_own {
                    check_entries(&content);
                    assert_eq!(parse(path, &[bytes, b"\n# end\n"].concat()).as_ref(), Ok(&content));
                }
                program(path, content);
            }
            Err(problems) => {
                assert!((1..=MAX_PROBLEMS).contains(&problems.len()), "{} problems", problems.len());
                for problem in problems {
                    // They are about the file as a whole.
                    let is_note = bytes.is_empty() || problem.message.starts_with("there are more problems");
                    assert!(!problem.message.trim().is_empty());
                    assert!(problem.line.map_or(!is_own || is_note, |line| (1..=lines).contains(&line)), "{problem:?}");
                }
            }
        }
    }
});
