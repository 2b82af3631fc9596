use super::Remembered;
use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::service::{PortKey, ServiceName};
use crate::state::entries::{BackendId, ServiceEntry, Slot};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn key() -> PortKey {
    let service = ServiceName::new("default", "kubernetes");
    PortKey { service, port: "https".into(), protocol: Protocol::Tcp, family: Family::Ipv4 }
}

fn record(cluster: &[(&str, u16)]) -> Remembered {
    let cluster = cluster.iter().map(|(text, count)| (l4(text), *count)).collect();
    Remembered { port: key(), cluster, local: Vec::new(), cause: None }
}

#[test]
fn a_record_decodes_to_its_entry() {
    let slot = |id, text| Slot { backend: BackendId(id), addr: l4(text) };
    let (one, two) = (slot(1, "192.0.2.1:6443"), slot(2, "192.0.2.2:6443"));
    let entry = ServiceEntry {
        cluster: [one, one, one, two].into(),
        local: [two].into(),
        has_backends: true,
        ..ServiceEntry::default()
    };
    let record = Remembered::new(&key(), &entry, None);
    assert_eq!(record.cluster, [(one.addr, 3), (two.addr, 1)]);
    assert_eq!(record.local, [(two.addr, 1)]);
    assert!(record.is_plausible());
    let known = record.views().admitted(|addr| addr != one.addr).expect("one is left");
    assert_eq!(known.cluster.to_vec(), [(two.addr, 1)]);
    assert!(record.views().admitted(|_| false).is_none());
}

#[test]
fn a_record_that_cannot_be_true_is_left_out() {
    for (cluster, expected) in [
        (&[("192.0.2.1:6443", 1), ("192.0.2.2:6443", 2)][..], true),
        (&[], false),
        (&[("192.0.2.1:6443", 0)], false),
        (&[("192.0.2.1:6443/UDP", 1)], false),
        (&[("[2001:db8::1]:6443", 1)], false),
        (&[("192.0.2.2:6443", 1), ("192.0.2.1:6443", 1)], false),
        (&[("192.0.2.1:6443", 1), ("192.0.2.1:6443", 1)], false),
        (&[("192.0.2.1:6443", 60_000), ("192.0.2.2:6443", 60_000)], false),
    ] {
        assert_eq!(record(cluster).is_plausible(), expected, "{cluster:?}");
    }
}
