use std::sync::Arc;

use super::{Claim, Incumbent, Row};
use crate::compile::guard::Refusal;
use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::moment::Moment;
use crate::model::service::{FrontendKind, PortKey, Source};
use crate::state::entries::ServiceId;
use crate::state::status::Status;

const NOW: Moment = Moment(7);

fn address() -> L4Addr {
    "198.51.100.1:80".parse().expect("valid in a test")
}

fn key(service: &str, port: &str) -> PortKey {
    let service = service.parse().expect("valid in a test");
    PortKey { service, port: port.into(), protocol: Protocol::Tcp, family: Family::Ipv4 }
}

fn claim(service: &str, created: u64, id: u32) -> Claim {
    Claim {
        file: "".into(),
        key: Arc::new(key(service, "http")),
        source: Source::Kubernetes,
        created: Some(created),
        kind: FrontendKind::Static,
        inside_local: false,
        is_other_family: false,
        outside_local: false,
        is_outside: false,
        has_ranges: false,
        target: Ok(ServiceId(id)),
        since: Moment::default(),
    }
}

fn refused(service: &str, created: u64) -> Claim {
    Claim { target: Err(Arc::new(Refusal::Reserved)), ..claim(service, created, 0) }
}

fn row(claims: &[Claim]) -> Row {
    let mut row = Row::default();
    for claim in claims {
        row.replace(&claim.key.service, [claim.clone()].into_iter(), Incumbent::None, NOW);
    }
    row
}

/// The ids of the claims in order of precedence, refused ones as 0.
fn line(row: &Row) -> Vec<u32> {
    row.claims().iter().map(|claim| claim.target.as_ref().map_or(0, |id| id.0)).collect()
}

/// The oldest claim owns the address, regardless of the order of reports. Names matter only for claims of equal age.
#[test]
fn the_oldest_owns_the_address() {
    let claims = [claim("a/young", 200, 1), claim("b/old", 100, 2), claim("a/old", 100, 3)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        assert_eq!(line(&row(&order.map(|index: usize| claims[index].clone()))), [3, 2, 1]);
    }
}

/// A claim that cannot be served must not prevent a younger one from being served.
#[test]
fn a_refused_claim_comes_last_even_if_it_is_the_oldest() {
    let row = row(&[refused("a/old", 1), claim("b/young", 9, 5)]);
    assert_eq!(row.entry().map(|entry| entry.service), Some(ServiceId(5)));
    assert_eq!(line(&row), [5, 0]);
    assert_eq!(row.status_of(1, address()).error.as_deref(), Some("reserved for nodelb's self-test"));
}

#[test]
fn an_address_is_not_translated_if_every_claim_to_it_is_refused() {
    let row = row(&[refused("a/s", 1)]);
    assert!(row.owner().is_none() && row.entry().is_none());
    assert_eq!(row.status_of(0, address()).status, Status::Refused);
}

#[test]
fn a_waiting_claim_shows_the_owner_and_the_reason() {
    let mut twice = row(&[claim("a/s", 1, 1)]);
    let other_port = Claim { key: Arc::new(key("a/s", "other")), ..claim("a/s", 1, 2) };
    twice.replace(&"a/s".parse().expect("valid"), [claim("a/s", 1, 1), other_port].into_iter(), Incumbent::None, NOW);
    let local = Claim { source: Source::Files, created: None, ..claim("b/file", 0, 2) };
    for (row, expected) in [
        (
            row(&[claim("a/old", 1, 1), local]),
            "b/file, which a local file describes: files take precedence over Kubernetes",
        ),
        (row(&[claim("a/old", 1, 1), claim("b/young", 2, 2)]), "a/old, which is older"),
        (row(&[claim("a/s", 1, 1), claim("b/s", 1, 2)]), "a/s, which already has it"),
        (twice, "a/s, another port of this service"),
    ] {
        let text = format!("198.51.100.1:80/TCP is owned by {expected}; takes over when that service gives it up");
        assert_eq!(row.status_of(1, address()).error.as_deref(), Some(text.as_str()));
    }
}

/// The status of both the old and the new owner of the address starts at the change.
#[test]
fn another_owner_starts_a_new_age() {
    let (old, young) = ("b/old".parse().expect("valid"), claim("a/young", 2, 1));
    let mut row = row(&[young]);
    row.replace(&old, [claim("b/old", 1, 2)].into_iter(), Incumbent::None, NOW.plus(5));
    assert_eq!((row.status.since, row.status_of(1, address()).since), (NOW.plus(5), NOW.plus(5)));
    row.replace(&old, [claim("b/old", 1, 2)].into_iter(), Incumbent::None, NOW.plus(6));
    assert_eq!(row.status_of(1, address()).since, NOW.plus(5), "nothing has changed");
    row.replace(&old, std::iter::empty(), Incumbent::None, NOW.plus(9));
    assert_eq!(row.status_of(0, address()).since, NOW.plus(9));
}

#[test]
fn a_service_replaces_its_own_claims_only() {
    let mut row = row(&[claim("default/test", 1, 1), claim("default/test-extended", 1, 2)]);
    row.replace(&"default/test".parse().expect("valid"), std::iter::empty(), Incumbent::None, NOW);
    assert_eq!(line(&row), [2]);
}

#[test]
fn a_claim_keeps_its_age_while_it_says_the_same() {
    let service = "a/s".parse().expect("valid in a test");
    let mut row = row(&[claim("a/s", 1, 1)]);
    row.replace(&service, [claim("a/s", 1, 1)].into_iter(), Incumbent::None, NOW.plus(5));
    assert_eq!(row.claims()[0].since, NOW);
    row.replace(&service, [claim("a/s", 1, 2)].into_iter(), Incumbent::None, NOW.plus(9));
    assert_eq!(row.claims()[0].since, NOW.plus(9));
}
