//! A fixed world for tests of output and for benchmarks: services with their backends, in an engine with maps in
//! memory. Equal numbers of services always have the same content.

use std::net::{IpAddr, Ipv4Addr};

use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_core::state::entries::MapState;

pub(crate) const LIMITS: Limits =
    Limits { frontends: 65_536, services: 65_536, slots: 524_288, affinity: 1_024, outside: 0, source_ranges: 0 };

/// The number of backends of each tenth service, and of the others.
const MANY: u32 = 101;
const FEW: u32 = 1;

/// The engine and its maps, with this number of services.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) maps: MemoryDatapath,
    pub(crate) now: Moment,
}

impl World {
    /// A world with these services: `service-00000` and so on in the namespace `production`. Service 1 has no backend,
    /// service 2 claims the address of service 0, and service 3 has a refused backend.
    pub(crate) fn new(services: u32) -> Self {
        let config = EngineConfig {
            sources: [Source::Kubernetes].into(),
            max_services: LIMITS.services,
            ..EngineConfig::default()
        };
        let engine = Engine::new(config, MapState::default());
        let mut world = Self { engine, maps: MemoryDatapath::new(LIMITS), now: Moment(60_000) };
        world.send((0..services).flat_map(|number| [service(number), slice(number)]));
        world.send([Change::Synced { source: Source::Kubernetes, incomplete: None }]);
        world
    }

    /// Sends the changes in one round, a minute after the previous ones.
    pub(crate) fn send(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.now = self.now.plus(60_000);
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.engine.reconcile(&mut self.maps, self.now);
    }
}

fn name(number: u32) -> ServiceName {
    ServiceName::new("production", &format!("service-{number:05}"))
}

fn origin(kind: &str, name: &ServiceName) -> Origin {
    Origin { object: format!("{kind} {name}").into(), resource_version: "15".into(), ..Origin::default() }
}

/// The service with this number.
fn service(number: u32) -> Change {
    let address = if number == 2 { 0 } else { number };
    let octet = |value: u32| u8::try_from(value % 250).unwrap_or_default();
    let addr = Addr::from(IpAddr::V4(Ipv4Addr::new(10, 96, octet(address / 250), octet(address) + 1)));
    let port = ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        frontends: vec![FrontendSpec { addr, port: 80, kind: FrontendKind::ClusterIP }],
    };
    let name = name(number);
    let origin = origin("Service", &name);
    let created = Some(u64::from(number) + 1);
    Change::UpsertService(Service { created, origin, ports: vec![port], ..Service::new(name, Source::Kubernetes) })
}

/// The backends of the service with this number.
pub(crate) fn backends(number: u32) -> Vec<Addr> {
    let address = |place: u32| {
        let [_, a, b, c] = (number * MANY + place).to_be_bytes();
        Addr::from(IpAddr::V4(Ipv4Addr::new(10, 128 | a, b, c)))
    };
    match number {
        1 => Vec::new(),
        3 => vec![Addr::LOOPBACK_V4],
        _ => (0..if number.is_multiple_of(10) { MANY } else { FEW }).map(address).collect(),
    }
}

/// The only slice of the service with this number, with these backends.
pub(crate) fn slice_of(number: u32, backends: impl IntoIterator<Item = Addr>) -> Change {
    let service = name(number);
    let backends = backends.into_iter().map(|addr| Backend::new(addr, 8080)).collect();
    Change::UpsertSlice(Slice {
        name: SliceName::new(&service.namespace, &format!("{}-x7k2p", service.name)),
        origin: origin("EndpointSlice", &service),
        service,
        source: Source::Kubernetes,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })
}

fn slice(number: u32) -> Change {
    slice_of(number, backends(number))
}
