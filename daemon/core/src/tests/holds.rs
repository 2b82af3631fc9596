use std::sync::Arc;

use super::HeldPort;
use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::cause::Cause;
use crate::model::moment::Moment;
use crate::model::service::{PortKey, ServiceName};
use crate::state::entries::View;
use crate::state::remembered::Views;

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn key() -> PortKey {
    let service = ServiceName::new("default", "kubernetes");
    PortKey { service, port: "https".into(), protocol: Protocol::Tcp, family: Family::Ipv4 }
}

/// The text is for people: its length must not grow with the service.
#[test]
fn a_long_list_is_cut_in_the_text_only() {
    let addresses = (1..=9).map(|last| (l4(&format!("192.0.2.{last}:6443")), 1));
    let known = Views { cluster: addresses.collect::<View>(), local: View::new() };
    let port = HeldPort::new(&Arc::new(key()), known, Cause::default(), Moment(0));
    assert_eq!(port.backends.len(), 9);
    assert!(port.text.ends_with("192.0.2.5:6443/TCP and 4 more stay in use"), "{}", port.text);
}
