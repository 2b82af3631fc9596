use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use strum::IntoEnumIterator;

use super::*;

/// Reasons and types from table 1.1 of the collection of Service and network events (Kubernetes v1.25 to v1.32) on
/// which the catalogue is based.
const TABLE: &[(&str, &str)] = &[
    ("EnsuringLoadBalancer", "Normal"),
    ("EnsuredLoadBalancer", "Normal"),
    ("CreatingLoadBalancer", "Normal"),
    ("CreatedLoadBalancer", "Normal"),
    ("DeletingLoadBalancer", "Normal"),
    ("DeletedLoadBalancer", "Normal"),
    ("UpdatedLoadBalancer", "Normal"),
    ("UpdateLoadBalancerFailed", "Warning"),
    ("DeleteLoadBalancerFailed", "Warning"),
    ("UnAvailableLoadBalancer", "Warning"),
    ("SyncLoadBalancerFailed", "Warning"),
    ("FailedToCreateEndpoint", "Warning"),
    ("FailedToUpdateEndpoint", "Warning"),
    ("FailedToDeleteEndpoint", "Warning"),
    ("FailedToCreateEndpointSlice", "Warning"),
    ("FailedToUpdateEndpointSlice", "Warning"),
    ("FailedToDeleteEndpointSlice", "Warning"),
    ("HostPortConflict", "Warning"),
    ("DNSConfigForming", "Warning"),
    ("IPAllocated", "Normal"),
    ("IPNotAllocated", "Warning"),
];

#[test]
fn every_kind_of_finding_has_an_entry_and_causes_come_before_their_consequences() {
    assert!(toml::from_str::<Catalogue>(include_str!("../catalogue.toml")).is_ok());
    let order: Vec<FindingKind> = findings().iter().map(|entry| entry.kind).collect();
    let known: BTreeSet<FindingKind> = order.iter().copied().collect();
    assert_eq!(known.len(), order.len(), "each kind once");
    assert_eq!(known, FindingKind::iter().collect());
    let place = |kind: FindingKind| order.iter().position(|it| *it == kind).unwrap();
    for entry in findings() {
        for derived in entry.explains.iter().chain(&entry.suppresses) {
            assert!(place(*derived) > place(entry.kind), "{:?} explains {derived:?}", entry.kind);
        }
        assert!(!entry.explains.iter().any(|kind| entry.suppresses.contains(kind)), "{:?}", entry.kind);
    }
}

#[test]
fn every_value_in_a_remedy_has_a_known_name() {
    for entry in findings() {
        for remedy in entry.remedy.iter().chain(entry.remedies.values()) {
            let names = remedy.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
            let names =
                names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !name.is_empty());
            for name in names {
                assert!(PLACEHOLDERS.contains(&name), "{:?}: {name} in {remedy}", entry.kind);
            }
        }
    }
}

/// Everything that `/status` says about a service has a finding.
#[test]
fn every_problem_of_a_service_has_a_finding() {
    let of_services = Reason::ALL.iter().filter(|reason| reason.entry().command.contains("{}"));
    for reason in of_services {
        assert!(findings().iter().any(|entry| entry.problems.contains(reason)), "{reason}");
    }
}

#[test]
fn every_event_of_the_table_has_an_entry_and_every_other_entry_is_nodelbs_own() {
    assert_eq!(TABLE.len(), 21);
    for (reason, kind) in TABLE {
        let entry = find(reason).unwrap_or_else(|| panic!("{reason} has no entry"));
        assert_eq!(entry.kind, *kind, "{reason}");
        assert_ne!(entry.source, "nodelb", "{reason}");
    }
    let known: BTreeSet<&str> = TABLE.iter().map(|(reason, _)| *reason).collect();
    for entry in CATALOGUE.event.iter().filter(|entry| !known.contains(entry.reason.as_str())) {
        assert_eq!(entry.source, "nodelb", "{}", entry.reason);
    }
    let reasons: BTreeSet<&str> = CATALOGUE.event.iter().map(|entry| entry.reason.as_str()).collect();
    assert_eq!(reasons.len(), CATALOGUE.event.len(), "each reason once");
}

#[test]
fn every_entry_says_what_it_means_and_every_warning_what_to_do() {
    let parsed: Result<Catalogue, _> = toml::from_str(include_str!("../catalogue.toml"));
    let mut unused: BTreeSet<String> = parsed.unwrap().cause.into_keys().collect();
    for entry in &CATALOGUE.event {
        assert!(!entry.meaning.is_empty() && !entry.source.is_empty(), "{entry:?}");
        assert!(entry.kind == "Normal" || !entry.remedy.is_empty(), "{entry:?}");
        assert!(entry.kind == "Normal" || entry.severity >= Severity::Info, "{entry:?}");
        for name in &entry.causes {
            unused.remove(name);
            let cause = CATALOGUE.cause.get(name).unwrap_or_else(|| panic!("{}: no cause {name}", entry.reason));
            assert!(!cause.word.is_empty() && !cause.means.is_empty() && !cause.remedy.is_empty(), "{entry:?}");
            // A word that contains an earlier one would never be found.
            assert_eq!(entry.cause_of(&cause.word), Some(cause), "{}", entry.reason);
        }
    }
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn the_messages_of_the_collection_are_understood() {
    let cases = [
        (
            "UpdateLoadBalancerFailed",
            "failed to ensure load balancer: RequestLimitExceeded: Request limit exceeded",
            "limits the rate",
        ),
        (
            "UpdateLoadBalancerFailed",
            "Error updating load balancer: UnauthorizedOperation: You are not",
            "does not allow",
        ),
        (
            "DeleteLoadBalancerFailed",
            "LoadBalancerNotFound: The specified load balancer does not exist",
            "by hand already",
        ),
        ("UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer", "no node is ready"),
        ("UnAvailableLoadBalancer", "All backend nodes are unhealthy", "failed the load balancer's health check"),
        ("SyncLoadBalancerFailed", "failed to ensure load balancer: context deadline exceeded", "has not answered"),
        ("SyncLoadBalancerFailed", "failed to ensure load balancer: unable to resolve endpoint", "does not resolve"),
        ("FailedToCreateEndpoint", "endpoints \"my-svc\" already exists", "another writer has created"),
        ("FailedToCreateEndpoint", "Failed to create endpoint: etcdserver: request timed out", "etcd is too slow"),
        (
            "FailedToUpdateEndpointSlice",
            "Operation cannot be fulfilled: the object has been modified; please",
            "two writers",
        ),
        ("FailedToUpdateEndpoint", "etcdserver: request is too large", "exceeds the limit of etcd"),
        ("FailedToDeleteEndpoint", "endpoints \"my-svc\" not found", "deleted by hand"),
        ("HostPortConflict", "hostPort 8080 is already in use by another pod or process", "another pod or a process"),
        ("DNSConfigForming", "cannot find service \"kube-dns\" in namespace \"kube-system\"", "does not exist"),
        ("IPNotAllocated", "Failed to allocate external IP: IP pool exhausted", "are in use"),
    ];
    for (reason, message, means) in cases {
        let cause = find(reason).unwrap().cause_of(message).unwrap_or_else(|| panic!("{reason}: {message}"));
        assert!(cause.means.contains(means), "{reason}: {}", cause.means);
    }
    assert_eq!(find("SyncLoadBalancerFailed").unwrap().cause_of("something else"), None);
    assert!(find("UnknownReason").is_none());
}

#[test]
fn an_event_fits_one_printable_line() {
    let event = Event {
        reason: Some("SyncLoadBalancerFailed".into()),
        message: Some("no\u{1b}[31m\nway ".into()),
        type_: Some("Warning".into()),
        count: Some(12),
        last_timestamp: Timestamp::from_second(970).ok().map(Time),
        reporting_component: Some("service-controller".into()),
        ..Event::default()
    };
    let expected = "SyncLoadBalancerFailed from service-controller, 12 times, last 30s ago: no\u{fffd}[31m\u{fffd}way";
    assert_eq!(one_line(&event, 1000), expected);
}
