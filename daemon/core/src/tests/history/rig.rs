//! Events and records for the tests of the history in the core and in nodelb-report. The module above imports the types.

use super::*;

pub(super) fn key(service: &str) -> Arc<PortKey> {
    let service = service.parse().expect("valid in a test");
    Arc::new(PortKey { service, port: "http".into(), protocol: Protocol::Tcp, family: Family::Ipv4 })
}

pub(super) fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

pub(super) fn event(service: &str, what: What, kernel: Kernel) -> Event {
    Event { kernel, ..Event::for_port(&key(service), Some(Source::Files), what, Cause::default()) }
}

pub(super) fn changed(service: &str) -> Event {
    event(service, What::Changed, Kernel::Done)
}

pub(super) fn at(at: u64) -> Stamp {
    Stamp { at, to_kernel: 7 }
}

pub(super) fn sequences<'a>(records: impl IntoIterator<Item = &'a Arc<Record>>) -> Vec<u64> {
    records.into_iter().map(|record| record.sequence).collect()
}
