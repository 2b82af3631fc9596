//! The maps for clients outside the node: they exist only if configured, their limits affect no other entry, and changes
//! by other programs are found.

use std::net::UdpSocket;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nodelb_core::datapath::{Datapath as _, Limits, MapError};
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{MAX_UPLINKS, MapOp, MapState, OutsideEntry, ServiceEntry, ServiceId};
use nodelb_core::state::kernel_check::EntryKey;
use nodelb_core::state::ring;
use nodelb_datapath::{CrashPoint, Options, Origin, cleanup};

use super::content::{content, fill};
use super::{Kernel, SocketMode, backends, entry, exchange, in_sandbox, l4, options, point, put};
use crate::pod::Pod;
use crate::sandbox::Sandbox;

const UPLINK: UplinkEntry = UplinkEntry {
    v4: None,
    v6: None,
    mtu: 1500,
    l2_length: 14,
    is_v4_source: false,
    is_v6_source: false,
    is_strict: false,
};

fn range(text: &str) -> SourceRange {
    text.parse::<ipnet::IpNet>().unwrap().into()
}

fn outside(address: &str, id: u32) -> MapOp {
    MapOp::PutOutside(l4(address), OutsideEntry { service: ServiceId(id), local: false, has_ranges: false })
}

/// Options with these sizes of `outside` and `source_ranges`.
fn sized(env: &Sandbox, outside: u32, source_ranges: u32) -> Options {
    let limits = Limits { outside, source_ranges, ..options(env).limits };
    Options { limits, ..options(env) }
}

/// The state without what clients outside the node use, except rings.
fn without_outside(state: MapState) -> MapState {
    let MapState { frontends, services, node_addrs, .. } = state;
    MapState { frontends, services, node_addrs, ..MapState::default() }
}

#[test]
fn the_maps_appear_and_disappear_with_the_configuration() {
    in_sandbox("sockets::outside::the_maps_appear_and_disappear_with_the_configuration", |env| {
        let (off, on) = (sized(env, 0, 0), sized(env, 16, 16));
        let has = |generation: &str, name: &str| env.bpffs.join("nodelb/v1").join(generation).join(name).exists();
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&off);
        fill(&mut kernel, &without_outside(content()));
        assert_eq!(
            kernel.try_apply(&[outside("198.51.100.1:80/TCP", 1), MapOp::PutUplink(2, UPLINK)]),
            [Err(MapError::Full { map: "outside", limit: 0 }), Err(MapError::TooManyUplinks { limit: 0 }),]
        );
        kernel.apply(&[MapOp::DeleteOutside(l4("198.51.100.1:80/TCP")), MapOp::DeleteUplink(2)]);
        drop(kernel);
        assert!(!has("g1", "outside"));

        let mut kernel = Kernel::open(&on);
        assert_eq!(kernel.report.origin, Origin::Rebuilt { from: off.limits });
        assert_eq!(
            (kernel.datapath.dump().unwrap(), kernel.datapath.limits()),
            (without_outside(content()), on.limits)
        );
        fill(&mut kernel, &content());
        drop(kernel);
        assert!(["outside", "source_ranges", "uplinks"].iter().all(|name| has("g2", name)));

        let without_ranges = Kernel::open(&sized(env, 16, 0));
        let left = MapState { source_ranges: Default::default(), ..content() };
        assert_eq!(without_ranges.datapath.dump().unwrap(), left);
        drop(without_ranges);
        let kernel = Kernel::open(&off);
        assert_eq!(kernel.datapath.dump().unwrap(), without_outside(content()));
        exchange(SocketMode::Tcp, "198.51.100.1:80".parse().unwrap()).expect("sockets are served all the time");
        drop(kernel);
        drop(Kernel::open(&on));
        assert_eq!(
            cleanup(&env.bpffs.join("nodelb"), &|| (), &CrashPoint::default()).unwrap().left,
            Vec::<std::path::PathBuf>::new()
        );
    });
}

#[test]
fn what_does_not_fit_is_reported_and_the_rest_works() {
    in_sandbox("sockets::outside::what_does_not_fit_is_reported_and_the_rest_works", |env| {
        let mut kernel = Kernel::open(&sized(env, 2, 2));
        kernel.apply(&[put(1, entry(&["192.0.2.10:80/TCP"]))]);
        let full = |map| Err(MapError::Full { map, limit: 2 });
        let addresses: Vec<MapOp> = (1..=3).map(|i| outside(&format!("198.51.100.{i}:80/TCP"), 1)).collect();
        assert_eq!(kernel.try_apply(&addresses), [Ok(()), Ok(()), full("outside")]);
        let ranges = ["10.0.0.0/8", "2001:db8::/32", "192.0.2.0/24"].map(range);
        let ops = ranges.map(|range| MapOp::PutSourceRange(ServiceId(1), range));
        assert_eq!(kernel.try_apply(&ops), [Ok(()), Ok(()), full("source_ranges")]);
        kernel.apply(&ops[..2]);
        let uplinks: Vec<MapOp> = (1..=MAX_UPLINKS + 1).map(|index| MapOp::PutUplink(index, UPLINK)).collect();
        let results = kernel.try_apply(&uplinks);
        let (last, others) = results.split_last().unwrap();
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(*last, Err(MapError::TooManyUplinks { limit: MAX_UPLINKS }));
        kernel.apply(&[point("198.51.100.9:80/TCP", 1)]);
        let state = kernel.datapath.dump().unwrap();
        assert_eq!((state.outside.len(), state.source_ranges.len(), state.uplinks.len()), (2, 2, 256));
    });
}

/// A range that contains another one is another entry, although a lookup finds both.
#[test]
fn entries_are_read_one_by_one() {
    in_sandbox("sockets::outside::entries_are_read_one_by_one", |env| {
        let mut kernel = Kernel::open(&options(env));
        fill(&mut kernel, &content());
        let state = content();
        let mut keys: Vec<EntryKey> = state.outside.keys().map(|addr| EntryKey::Outside(*addr)).collect();
        keys.extend(state.source_ranges.iter().map(|(id, range)| EntryKey::SourceRange(*id, *range)));
        keys.extend(state.uplinks.keys().map(|index| EntryKey::Uplink(*index)));
        let read = kernel.datapath.read(&keys).unwrap();
        let of_outside = MapState { frontends: Default::default(), services: Default::default(), ..state.clone() };
        assert_eq!(read.state, MapState { node_addrs: Default::default(), ..of_outside });
        let (wide, narrow) = (range("0.0.0.0/0"), range("203.0.113.0/24"));
        kernel.apply(&[MapOp::DeleteSourceRange(ServiceId(7), narrow)]);
        let read = kernel.datapath.read(&[EntryKey::SourceRange(ServiceId(7), narrow)]).unwrap();
        assert!(!read.state.source_ranges.contains(&(ServiceId(7), narrow)));
        assert!(read.state.source_ranges.contains(&(ServiceId(7), wide)));
    });
}

/// The lists of a service with a ring in the maps, as programs read it: offsets behind the list.
#[test]
fn rings_follow_their_lists_and_are_checked() {
    in_sandbox("sockets::outside::rings_follow_their_lists_and_are_checked", |env| {
        let mut kernel = Kernel::open(&options(env));
        let backends: Vec<String> = (1..=30).map(|i| format!("192.0.2.{i}:80/TCP")).collect();
        let texts: Vec<&str> = backends.iter().map(String::as_str).collect();
        let with = |count: usize| ServiceEntry { has_rings: true, ..entry(&texts[..count]) };
        for count in [0, 1, 2, 10, 11, 30, 3] {
            kernel.apply(&[put(5, with(count)), put(6, entry(&texts[..count]))]);
            let state = kernel.datapath.dump().unwrap();
            assert_eq!(*state.services[&ServiceId(5)], with(count), "{count}");
            assert_eq!(state.slot_count(), count + ring::slots_with_ring(count));
        }
        let held = kernel.datapath.dump().unwrap();
        drop(kernel);
        let mut kernel = Kernel::open(&options(env));
        assert_eq!((kernel.report.origin, kernel.datapath.dump().unwrap()), (Origin::Reused, held.clone()));

        let first = overwrite_a_ring(env);
        let changed = kernel.datapath.dump().unwrap();
        assert_eq!(*changed.services[&ServiceId(5)], ServiceEntry { has_rings: false, ..with(3) }, "slot {first}");
        drop(kernel);
        kernel = Kernel::open(&options(env));
        assert_eq!((&kernel.report.corrupt, kernel.datapath.dump().unwrap()), (&Vec::new(), changed));
        kernel.apply(&[put(5, with(3))]);
        assert_eq!(kernel.datapath.dump().unwrap(), held);
        kernel.apply(&[put(5, entry(&texts[..3]))]);
        assert_eq!(*kernel.datapath.dump().unwrap().services[&ServiceId(5)], entry(&texts[..3]));
    });
}

/// Overwrites the first ring with zeros; returns the slot.
fn overwrite_a_ring(env: &Sandbox) -> u32 {
    let open = |name| MapHandle::from_pinned_path(env.bpffs.join("nodelb/v1/g1").join(name)).unwrap();
    let (services, slots) = (open("services"), open("slots"));
    let service = services.lookup(&5u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    let first = u32::from_ne_bytes(*service.first_chunk().unwrap());
    let count = u16::from_ne_bytes(service[4..6].try_into().unwrap());
    let slot = first + u32::from(count);
    slots.update(&slot.to_ne_bytes(), &[0; 24], MapFlags::ANY).unwrap();
    slot
}

/// As with kube-proxy, pods and processes of the node are clients. A socket is one of the addresses of its network
/// namespace, unless it is bound.
#[test]
fn source_ranges_apply_to_the_sockets_of_the_node() {
    in_sandbox("sockets::outside::source_ranges_apply_to_the_sockets_of_the_node", |env| {
        const BOTH: [(&str, &str); 2] = [("198.51.100.1", "192.0.2.10"), ("[2001:db8:f::1]", "[2001:db8:b::10]")];
        let mut kernel = Kernel::open(&sized(env, 16, 16));
        let pods = [Pod::new(0), Pod::new(1)];
        for (id, (service, backend)) in (1..).zip(BOTH) {
            for protocol in ["TCP", "UDP"] {
                let (at, not_ranged) = (format!("{service}:80/{protocol}"), format!("{service}:81/{protocol}"));
                let (id, to) = (id * 2 + u32::from(protocol == "UDP"), format!("{backend}:80/{protocol}"));
                backends(&[&to]);
                let ranged = OutsideEntry { service: ServiceId(id), local: false, has_ranges: true };
                kernel.apply(&[
                    put(id, ServiceEntry { has_ranges: true, ..entry(&[&to]) }),
                    MapOp::PutOutside(l4(&at), ranged),
                    point(&at, id),
                    point(&not_ranged, id),
                ]);
            }
        }
        let try_all = |port: u16| {
            BOTH.map(|(service, _)| {
                let to = format!("{service}:{port}").parse().unwrap();
                [SocketMode::Tcp, SocketMode::UdpConnected, SocketMode::UdpUnconnected].map(|mode| {
                    let ended = exchange(mode, to).map(drop);
                    ended.map_err(|error| error.raw_os_error().unwrap_or_default())
                })
            })
        };
        let (open, closed) = ([[Ok(()); 3]; 2], [[Err(nix::libc::EHOSTUNREACH); 3]; 2]);
        let seen = || [try_all(80), pods[0].run(|| try_all(80)), pods[1].run(|| try_all(80))];
        assert_eq!(seen(), [closed; 3], "no range admits any client");
        assert_eq!([try_all(81), pods[0].run(|| try_all(81))], [open; 2], "a ClusterIP is for all");

        let mut allow = |ranges: [&str; 2], allowed: bool| {
            let each = (1..).zip(ranges).flat_map(|(id, text)| [(id * 2, text), (id * 2 + 1, text)]);
            let change = |(id, text)| match allowed {
                true => MapOp::PutSourceRange(ServiceId(id), range(text)),
                false => MapOp::DeleteSourceRange(ServiceId(id), range(text)),
            };
            kernel.apply(&each.map(change).collect::<Vec<_>>());
        };
        let one_pod = ["203.0.113.130/32", "2001:db8:a:0::130/128"];
        allow(one_pod, true);
        assert_eq!(seen(), [closed, open, closed]);
        allow(one_pod, false);
        let the_node = ["203.0.113.129/32", "2001:db8:a:0::129/128"];
        allow(the_node, true);
        assert_eq!(seen(), [open, closed, closed]);

        // A bound socket is one client.
        let bound = |from: &str, to: &str| {
            let socket = UdpSocket::bind(from).unwrap();
            socket.connect(to).map_err(|error| error.raw_os_error().unwrap_or_default())
        };
        assert_eq!(bound("203.0.113.129:0", "198.51.100.1:80"), Ok(()));
        assert_eq!(bound("192.0.2.7:0", "198.51.100.1:80"), Err(nix::libc::EHOSTUNREACH));
        assert_eq!(bound("[2001:db8:a:0::129]:0", "[2001:db8:f::1]:80"), Ok(()));
        assert_eq!(bound("[2001:db8:b::7]:0", "[2001:db8:f::1]:80"), Err(nix::libc::EHOSTUNREACH));
    });
}
