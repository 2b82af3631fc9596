//! Content of the maps for tests that compare all of it.

use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::Source;
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{FrontendEntry, MapOp, MapState, NextIds, OutsideEntry, ServiceEntry, ServiceId};
use nodelb_core::state::owner::OwnerTag;

use super::{Kernel, entry, l4, list, point, put};

/// Entries of every kind, so that a dump that lacks any of them differs.
pub(super) fn content() -> MapState {
    let full = ServiceEntry {
        cluster: list(&["192.0.2.10:80/TCP", "192.0.2.10:80/TCP", "192.0.2.11:80/TCP"]),
        local: list(&["192.0.2.11:80/TCP"]),
        has_backends: true,
        affinity_seconds: 10_800,
        may_be_bound: true,
        has_rings: true,
        has_ranges: true,
        is_last_resort: true,
        is_local_last_resort: true,
        forward: Forward::Tunnel,
        tag: Some(OwnerTag { source: Source::Kubernetes, service: 0x0123_4567, port: 0x89ab_cdef }),
        next_ids: NextIds::default(),
    };
    let not_here = ServiceEntry { has_backends: true, ..entry(&[]) };
    let outside = OutsideEntry { service: ServiceId(7), local: true, has_ranges: true };
    let range = |text: &str| SourceRange::from(text.parse::<ipnet::IpNet>().unwrap());
    let uplink = UplinkEntry {
        v4: Some(l4("192.0.2.1:1").addr),
        v6: None,
        mtu: 1500,
        l2_length: 14,
        is_v4_source: false,
        is_v6_source: false,
        is_strict: false,
    };
    let flags = FrontendEntry { service: ServiceId(7), inside_local: true, outside_local: true };
    let ops = [
        put(0, ServiceEntry { next_ids: NextIds { service: 201, backend: 1_024 }, ..ServiceEntry::default() }),
        put(1, entry(&["192.0.2.10:80/TCP"])),
        put(7, full),
        put(200, not_here),
        point("198.51.100.1:80/TCP", 1),
        point("[2001:db8:f::1]:443/UDP", 200),
        MapOp::PutFrontend(l4("0.0.0.0:30080/TCP"), flags),
        MapOp::PutNodeAddr(l4("192.0.2.1:1/TCP").addr),
        MapOp::PutNodeAddr(l4("[2001:db8:b::1]:1/TCP").addr),
        MapOp::PutOutside(l4("0.0.0.0:30080/TCP"), outside),
        MapOp::PutOutside(l4("[2001:db8:f::1]:443/UDP"), OutsideEntry { has_ranges: false, ..outside }),
        MapOp::PutSourceRange(ServiceId(7), range("203.0.113.0/24")),
        MapOp::PutSourceRange(ServiceId(7), range("0.0.0.0/0")),
        MapOp::PutSourceRange(ServiceId(200), range("::/0")),
        MapOp::PutUplink(2, uplink),
        MapOp::PutUplink(70_000, UplinkEntry { v4: None, l2_length: 0, ..uplink }),
    ];
    let mut state = MapState::default();
    ops.iter().for_each(|op| state.apply(op));
    state
}

pub(super) fn fill(kernel: &mut Kernel, state: &MapState) {
    let services = state.services.iter().map(|(id, entry)| MapOp::PutService(*id, entry.clone()));
    let frontends = state.frontends.iter().map(|(addr, entry)| MapOp::PutFrontend(*addr, *entry));
    let addrs = state.node_addrs.iter().map(|addr| MapOp::PutNodeAddr(*addr));
    let outside = state.outside.iter().map(|(addr, entry)| MapOp::PutOutside(*addr, *entry));
    let ranges = state.source_ranges.iter().map(|(id, range)| MapOp::PutSourceRange(*id, *range));
    let uplinks = state.uplinks.iter().map(|(index, entry)| MapOp::PutUplink(*index, *entry));
    let packets = uplinks.chain(ranges).chain(outside);
    kernel.apply(&services.chain(frontends).chain(addrs).chain(packets).collect::<Vec<_>>());
}
