use super::*;
use crate::model::addr::Protocol;

fn key(service: &str, port: &str) -> PortKey {
    let service = service.parse().expect("valid in a test");
    PortKey { service, port: port.into(), protocol: Protocol::Tcp, family: Family::Ipv4 }
}

/// Running nodes have these hashes in their maps. With a different hash function, the entries would lose their
/// owners.
#[test]
fn tags_are_what_they_always_were() {
    let tag = OwnerTag::new(&key("shop/web", "http"), Source::Files);
    assert_eq!((tag.service, tag.port), (0x3cea_1ef6, 0xf99b_4aba));
}

#[test]
fn names_that_are_alike_have_other_tags() {
    let tag = |service, port| OwnerTag::new(&key(service, port), Source::Files);
    let tags = [tag("a/b-c", ""), tag("a-b/c", ""), tag("a/b", "-c"), tag("a/b-c", "http")];
    for (index, one) in tags.iter().enumerate() {
        assert!(tags[index + 1..].iter().all(|other| !one.is_of_port(*other)), "{one:?}");
    }
    assert!(tags[0].is_of_port(OwnerTag { source: Source::Kubernetes, ..tags[0] }));
}
