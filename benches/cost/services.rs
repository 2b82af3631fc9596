//! Synthetic services.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};

/// The service with this number, with one port.
pub(crate) fn service(number: u32, protocol: Protocol) -> Change {
    let frontend = frontend(number, protocol);
    Change::UpsertService(Service {
        created: Some(u64::from(number)),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol,
            frontends: vec![FrontendSpec { addr: frontend.addr, port: frontend.port, kind: FrontendKind::ClusterIP }],
        }],
        ..Service::new(name(number), Source::Files)
    })
}

/// Its only slice, with these backends.
pub(crate) fn slice(number: u32, protocol: Protocol, backends: impl Iterator<Item = (Ipv4Addr, u16)>) -> Change {
    let service = name(number);
    let backends = backends.map(|(addr, port)| Backend::new(Addr::from(IpAddr::V4(addr)), port)).collect();
    Change::UpsertSlice(Slice {
        name: SliceName::new(&service.namespace, &format!("service-{number}-x7k2p")),
        service,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "http".into(), protocol, backends }],
        problem: None,
    })
}

/// The services with the numbers `0..count`, each with its own backend.
pub(crate) fn single_endpoint_services(count: u32) -> Vec<Change> {
    let both = |number| [service(number, Protocol::Udp), slice(number, Protocol::Udp, [backend(number)].into_iter())];
    (0..count).flat_map(both).chain([synced()]).collect()
}

/// A different backend for each number.
pub(crate) fn backend(number: u32) -> (Ipv4Addr, u16) {
    let [_, a, b, c] = number.to_be_bytes();
    (Ipv4Addr::new(10, a, b, c), 8080)
}

/// The services with these numbers, all with this backend.
pub(crate) fn services(numbers: Range<u32>, protocol: Protocol, backend: (Ipv4Addr, u16)) -> Vec<Change> {
    let both = |number| [service(number, protocol), slice(number, protocol, [backend].into_iter())];
    numbers.flat_map(both).chain([synced()]).collect()
}

pub(crate) fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

/// The address of the service with this number: 198.51.100.0/24, 250 ports each.
pub(crate) fn frontend(number: u32, protocol: Protocol) -> L4Addr {
    let host = u8::try_from(number % 250).unwrap() + 1;
    let port = u16::try_from(1_000 + number / 250).unwrap();
    L4Addr::new(IpAddr::from([198, 51, 100, host]).into(), port, protocol)
}

pub(crate) fn name(number: u32) -> ServiceName {
    ServiceName::new(&format!("namespace-{}", number % 100), &format!("service-{number}"))
}
