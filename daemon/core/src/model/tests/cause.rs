use std::sync::Arc;

use super::{Cause, DirtyReason, Trigger};
use crate::model::addr::{Family, Protocol};
use crate::model::service::{Backend, Origin, PortKey, Service, ServiceName, Slice, SliceName, SlicePort, Source};

fn origin(object: &str) -> Origin {
    Origin {
        object: object.into(),
        resource_version: "7".into(),
        writer: "kube-apiserver".into(),
        written: Some(1_795_176_184),
        ..Origin::default()
    }
}

fn slice(object: &str) -> Arc<Slice> {
    Arc::new(Slice {
        name: SliceName::new("a", "s"),
        service: ServiceName::new("a", "s"),
        source: Source::Kubernetes,
        origin: origin(object),
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends: Vec::new() }],
        problem: None,
    })
}

fn service(object: &str) -> Arc<Service> {
    Arc::new(Service {
        origin: origin(object),
        ports: Vec::new(),
        ..Service::new(ServiceName::new("a", "s"), Source::Kubernetes)
    })
}

#[test]
fn a_cause_names_the_object_its_version_and_its_writer() {
    let text = |trigger: Trigger| trigger.cause().to_string();
    let written = "EndpointSlice a/s at resourceVersion 7, written by kube-apiserver 2026-11-20T12:03:04Z,";
    assert_eq!(text(Trigger::Slice(slice("EndpointSlice a/s"))), written);
    let removed = "the removal of EndpointSlice a/s, last at resourceVersion 7,";
    assert_eq!(text(Trigger::SliceRemoved(slice("EndpointSlice a/s"))), removed);
    let unknown = Origin { writer: "".into(), written: None, resource_version: "".into(), ..origin("web.toml") };
    assert_eq!(Cause { origin: unknown.clone(), is_removed: false }.to_string(), "web.toml");
    assert_eq!(Cause { origin: unknown, is_removed: true }.to_string(), "the removal of web.toml");
    assert_eq!(text(Trigger::Other), "its source");
}

/// Neither an annotation in the same round nor a renamed node must count as the cause of a slice's effect.
#[test]
fn the_latest_slice_is_the_cause_or_else_the_latest_object() {
    let of = |triggers: &[Trigger]| {
        let mut reason = DirtyReason::new(triggers[0].clone());
        triggers[1..].iter().for_each(|trigger| reason.add(trigger.clone()));
        reason.trigger.cause().origin.object
    };
    let (one, two) = (Trigger::Slice(slice("one")), Trigger::SliceRemoved(slice("two")));
    let (svc, gone) = (Trigger::Service(service("svc")), Trigger::ServiceRemoved(service("gone")));
    assert_eq!(&*of(&[one.clone(), svc.clone(), Trigger::Other]), "one");
    assert_eq!(&*of(&[one, two]), "two");
    assert_eq!(&*of(&[Trigger::Other, gone, svc]), "svc");
}

/// A controller writes the slices of both families one after the other.
#[test]
fn the_slice_with_the_port_is_the_cause() {
    let with = |object: &str, backends: &[&str]| {
        let backends = backends.iter().map(|addr| Backend::new(addr.parse().expect("valid in a test"), 80)).collect();
        let ports = vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }];
        Trigger::Slice(Arc::new(Slice { ports, ..(*slice(object)).clone() }))
    };
    let cause = |triggers: [Trigger; 2], family| {
        let service = ServiceName::new("a", "s");
        let key = PortKey { service, port: "".into(), protocol: Protocol::Tcp, family };
        let [first, second] = triggers;
        let mut reason = DirtyReason::new(first);
        reason.add(second);
        reason.trigger_of(&key).cause().origin.object
    };
    let (v4, v6) = (with("v4", &["192.0.2.1"]), with("v6", &["2001:db8::1"]));
    assert_eq!(&*cause([v4.clone(), v6.clone()], Family::Ipv4), "v4");
    assert_eq!(&*cause([v4.clone(), v6.clone()], Family::Ipv6), "v6");
    assert_eq!(&*cause([with("emptied", &[]), v6], Family::Ipv4), "emptied");
    assert_eq!(&*cause([v4.clone(), with("later", &["192.0.2.2"])], Family::Ipv4), "later");
    assert_eq!(&*cause([v4, Trigger::Service(service("svc"))], Family::Ipv4), "v4");
}
