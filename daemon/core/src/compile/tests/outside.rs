use strum::IntoEnumIterator;

use super::{PacketsConfig, is_outside, source_ranges};
use crate::model::addr::Family;
use crate::model::service::{FrontendKind, Service, ServiceName, Source};

const ON: PacketsConfig = PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true, direct_return: true };

fn service() -> Service {
    Service::new(ServiceName::new("shop", "web"), Source::Kubernetes)
}

#[test]
fn outside_clients_reach_what_kubernetes_exposes_and_what_a_file_says() {
    let of = |service: &Service, packets| {
        FrontendKind::iter().map(|kind| is_outside(service, kind, packets)).collect::<Vec<_>>()
    };
    // ClusterIP, NodePort, ExternalIP, LoadBalancer, Static.
    assert_eq!(of(&service(), ON), [false, true, true, true, false]);
    assert_eq!(of(&service(), PacketsConfig { cluster_ips: true, ..ON }), [true, true, true, true, false]);
    let file = Service { is_outside: true, ..service() };
    assert_eq!(of(&file, ON), [false, true, true, true, true]);
    assert_eq!(
        of(&file, PacketsConfig { is_on: false, cluster_ips: true, is_consistent: true, direct_return: true }),
        [false; 5]
    );
}

fn ranges(texts: Option<&[&str]>, family: Family) -> Option<Vec<String>> {
    let nets = texts.map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect());
    let found = source_ranges(&Service { source_ranges: nets, ..service() }, family)?;
    Some(found.iter().map(ToString::to_string).collect())
}

#[test]
fn ranges_admit_the_clients_of_their_family_only() {
    let both: &[&str] = &["10.0.0.0/8", "2001:db8::/32", "10.0.0.0/8", "192.0.2.0/24"];
    assert_eq!(ranges(None, Family::Ipv4), None, "all clients");
    assert_eq!(ranges(Some(both), Family::Ipv4).unwrap(), ["10.0.0.0/8", "192.0.2.0/24"]);
    assert_eq!(ranges(Some(both), Family::Ipv6).unwrap(), ["2001:db8::/32"]);
    assert_eq!(ranges(Some(&["10.0.0.0/8"]), Family::Ipv6), Some(Vec::new()), "no client");
    assert_eq!(ranges(Some(&[]), Family::Ipv4), Some(Vec::new()), "no client");
    assert_eq!(ranges(Some(&["::ffff:192.0.2.0/120"]), Family::Ipv4).unwrap(), ["192.0.2.0/24"]);
}

#[test]
fn a_range_of_all_addresses_admits_all_clients_of_its_family() {
    let all: &[&str] = &["192.0.2.0/24", "0.0.0.0/0"];
    assert_eq!((ranges(Some(all), Family::Ipv4), ranges(Some(all), Family::Ipv6)), (None, Some(Vec::new())));
    assert_eq!(ranges(Some(&["::/0"]), Family::Ipv6), None);
    assert_eq!(ranges(Some(&["::/0", "192.0.2.0/24"]), Family::Ipv4).unwrap(), ["192.0.2.0/24"]);
}
