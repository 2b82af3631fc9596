use std::sync::Arc;

use nodelb_core::datapath::Limits;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::ServiceName;
use nodelb_core::state::entries::{BackendId, FrontendEntry, MapState, ServiceEntry, ServiceId, Slot};
use nodelb_report::filter::Filter;
use nodelb_report::output::table::Style;
use nodelb_report::rows::Answer;
use nodelb_report::time::Time;

use nodelb_datapath::packets::ConnectionCount;

use super::super::fixture::{always, unsynced};
use super::{maps, usage};
use crate::admin::state::AdminState;
use crate::datapath::fake::FakeDatapath;
use crate::devices::DeviceOutputs;
use crate::devices::sweep::SweepReport;

const LIMITS: Limits = Limits { frontends: 10, services: 20, slots: 30, affinity: 40, outside: 0, source_ranges: 0 };

fn name_of(id: ServiceId) -> Option<String> {
    let name = match id.0 {
        0 => "(canary)",
        1 => "shop/web:http/TCP/IPv4",
        2 => "shop/web-admin/TCP/IPv4",
        _ => return None,
    };
    Some(name.into())
}

/// A service with a backend of weight 2, one with a name that begins with the other's, and one that the table does not
/// know.
fn held() -> MapState {
    let slot = |id, addr: &str| Slot { backend: BackendId(id), addr: addr.parse().unwrap() };
    let shared = [slot(1, "10.1.0.1:80"), slot(1, "10.1.0.1:80"), slot(2, "10.1.0.2:80")];
    let entry = |cluster: &[Slot]| ServiceEntry { cluster: cluster.into(), has_backends: true, ..Default::default() };
    let mut state = MapState::default();
    state.services.insert(ServiceId(0), Arc::new(ServiceEntry::default()));
    state.services.insert(ServiceId(1), Arc::new(entry(&shared)));
    state.services.insert(ServiceId(2), Arc::new(entry(&shared[2..])));
    state.services.insert(ServiceId(3), Arc::new(entry(&[])));
    for (address, id) in [("192.0.0.8:9", 0), ("10.96.7.7:80", 1), ("10.96.7.8:80", 2), ("10.96.7.9:80", 3)] {
        let entry = FrontendEntry { service: ServiceId(id), inside_local: id == 2, outside_local: false };
        state.frontends.insert(address.parse().unwrap(), entry);
    }
    state.node_addrs.insert("192.0.2.10".parse().unwrap());
    state
}

fn text(filter: &Filter) -> String {
    let datapath = Arc::new(FakeDatapath { limits: LIMITS, clients: Some(5), ..FakeDatapath::default() });
    let state = AdminState { datapath, ..unsynced() };
    maps(&held(), &name_of, &usage(&held(), &state, Moment(0)), filter).text(Time::default(), &Style::default())
}

#[test]
fn shows_everything_the_kernel_holds() {
    let expected = "\
frontends:
Address           Id  Service                  Inside   Outside
10.96.7.7:80/TCP  1   shop/web:http/TCP/IPv4   cluster  cluster
10.96.7.8:80/TCP  2   shop/web-admin/TCP/IPv4  local    cluster
10.96.7.9:80/TCP  3   -                        cluster  cluster
192.0.0.8:9/TCP   0   (canary)                 cluster  cluster

services:
Id  Service                  Cluster  Local  Has-Backends
0   (canary)                 0        0      no
1   shop/web:http/TCP/IPv4   3        0      yes
2   shop/web-admin/TCP/IPv4  1        0      yes
3   -                        0        0      yes

slots:
Id  Service                  View     Backend          Backend-Id  Slots
1   shop/web:http/TCP/IPv4   cluster  10.1.0.1:80/TCP  1           2
1   shop/web:http/TCP/IPv4   cluster  10.1.0.2:80/TCP  2           1
2   shop/web-admin/TCP/IPv4  cluster  10.1.0.2:80/TCP  2           1

node_addresses:
Address
192.0.2.10

limits:
Map        Used  Limit  Config-Key
frontends  4     10     datapath.max-frontends
services   4     20     datapath.max-services
slots      4     30     datapath.max-slots
affinity   5     40     datapath.max-affinity
";
    assert_eq!(text(&Filter::default()), expected);
}

#[test]
fn a_service_is_matched_by_its_full_name() {
    let text = text(&Filter::for_service(&ServiceName::new("shop", "web")));
    assert!(text.contains("10.96.7.7:80/TCP  1"), "{text}");
    for other in ["web-admin", "canary", "10.96.7.8", "10.96.7.9"] {
        assert!(!text.contains(other), "{other} in {text}");
    }
}

#[test]
fn a_frontend_address_shows_where_it_leads() {
    let text = text(&Filter { address: Some("10.96.7.7".parse().unwrap()), ..Filter::default() });
    for shown in ["10.96.7.7:80/TCP  1", "10.1.0.1:80/TCP", "10.1.0.2:80/TCP"] {
        assert!(text.contains(shown), "{shown} not in {text}");
    }
    for other in ["10.96.7.8", "10.96.7.9", "web-admin", "canary", "192.0.2.10"] {
        assert!(!text.contains(other), "{other} in {text}");
    }
}

#[test]
fn a_backend_address_shows_what_leads_to_it() {
    let text = text(&Filter { address: Some("10.1.0.1".parse().unwrap()), ..Filter::default() });
    for shown in ["10.96.7.7:80/TCP  1", "10.1.0.1:80/TCP"] {
        assert!(text.contains(shown), "{shown} not in {text}");
    }
    for other in ["10.1.0.2", "10.96.7.8", "10.96.7.9", "web-admin", "canary"] {
        assert!(!text.contains(other), "{other} in {text}");
    }
}

#[test]
fn the_packet_path_has_rows_of_its_own() {
    let limits = Limits { outside: 50, source_ranges: 60, ..LIMITS };
    let datapath = Arc::new(FakeDatapath { limits, ..FakeDatapath::default() });
    let count = Some(ConnectionCount { connections: 7, handshakes: 1, forwarded: 3 });
    let sweep = SweepReport { count, limit: 100, ..SweepReport::default() };
    let packets = Some(DeviceOutputs { sweep: Some(always(sweep)), ..DeviceOutputs::default() });
    let state = AdminState { datapath, packets, ..unsynced() };
    let usage = usage(&held(), &state, Moment(0));
    let rows: Vec<_> = usage.iter().skip(4).map(|map| (map.name, map.used, map.limit, map.key)).collect();
    let expected = [
        ("outside", Some(0), 50, "packets.max-outside"),
        ("source_ranges", Some(0), 60, "packets.max-source-ranges"),
        ("connections", Some(7), 100, "packets.max-connections"),
        ("half_open", Some(3), 32_768, "packets.max-handshakes"),
    ];
    assert_eq!(rows, expected);
}
