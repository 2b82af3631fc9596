use nodelb_core::model::addr::Family;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{ServiceName, SliceName};

use super::*;
use crate::dns::answer::Answer;
use crate::dns::due::Which;
use crate::dns::names::{Bounds, Reply};
use crate::files::named::DnsName;

/// An answer of 64 KiB may have thousands of targets, and the name of all of them thousands of addresses.
#[test]
fn a_name_has_a_limited_number_of_backends() {
    let question = |name: &str, record| Question { name: DnsName::of_labels(name).unwrap(), record };
    let (srv, host) = (question("_http._tcp.web.example", RecordType::Srv), question("a.example", RecordType::A));
    let named = Named {
        slice: SliceName::new("shop", "web"),
        service: ServiceName::new("shop", "web"),
        question: srv.clone(),
        port: "".into(),
        protocols: vec![Protocol::Tcp],
        families: vec![Family::Ipv4],
        backend: Backend::new(Addr::UNSPECIFIED_V4, 80),
    };
    let mut names = Names::new(Bounds { min_ttl: 1_000, max_ttl: 60_000, hold: None }, 1, BTreeMap::new());
    names.follow(Arc::new([(named.slice.clone(), Arc::new(named.clone()))].into()), Moment(0));
    let target = |port| Target { priority: 0, weight: 1, port, name: host.name.clone(), addresses: Vec::new() };
    let addresses = (0..2_000_u32).map(|host| Addr::from(std::net::IpAddr::V4((0x0a00_0000 + host).into())));
    for records in [Records::Targets((1..=1_500).map(target).collect()), Records::Addresses(addresses.collect())] {
        let asked = names.take_due(Moment(0), Which::All).unwrap();
        names.answer(&asked, Reply::Answered("s".into(), Answer::Records(records, 5)), Moment(0), 0);
    }
    let resolved = resolve(&named, &names, &|_| false).unwrap();
    assert_eq!(resolved.backends.len(), MAX_BACKENDS);
    assert!(resolved.backends.iter().all(|backend| backend.weight == 1));
    assert_eq!(
        resolved.refused.as_deref(),
        Some("10.0.0.96:3 is left out: only the first 4096 backends of a name are used")
    );
}
