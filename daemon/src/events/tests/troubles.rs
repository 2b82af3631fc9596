use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::FrontendKind;

use super::*;

fn row(service: &str, address: &str, status: Status, backends: &[&str]) -> FrontendReport {
    let parse = |text: &&str| text.parse::<L4Addr>().unwrap();
    FrontendReport {
        address: parse(&address),
        kind: FrontendKind::ClusterIP,
        service: service.parse().unwrap(),
        port: "http".into(),
        backends: backends.iter().map(parse).collect(),
        flags: Vec::new(),
        status,
        since: Moment(0),
        error: (status == Status::Error).then(|| "because".to_owned()),
    }
}

#[test]
fn each_problem_is_reported_once_with_its_reason() {
    let rows = [
        row("shop/owner", "10.96.0.1:80/TCP", Status::Done, &["10.1.0.1:80/TCP"]),
        row("shop/late", "10.96.0.1:80/TCP", Status::Error, &[]),
        row("shop/refused", "10.96.0.2:80/TCP", Status::Error, &[]),
        row("shop/held", "10.96.0.3:80/TCP", Status::Held, &["10.1.0.2:80/TCP"]),
        row("shop/empty", "10.96.0.4:80/TCP", Status::Done, &[]),
        row("shop/empty", "10.96.0.4:81/TCP", Status::Done, &[]),
        row("shop/half", "10.96.0.5:80/TCP", Status::Done, &[]),
        row("shop/half", "10.96.0.5:81/TCP", Status::Done, &["10.1.0.3:80/TCP"]),
        row("file/refused", "10.96.0.6:80/TCP", Status::Error, &[]),
    ];
    let seen = seen(&rows, |name| &*name.namespace != "file", |row| row.backends.is_empty());
    let reported: Vec<String> =
        seen.troubles.iter().map(|((service, reason), message)| format!("{service} {reason}: {message}")).collect();
    assert_eq!(
        reported,
        [
            "shop/empty NoBackends: 10.96.0.4:80/TCP and every other address of the service has no backend any more",
            "shop/held BackendsHeld: 10.96.0.3:80/TCP: no reason is known",
            "shop/late AddressConflict: 10.96.0.1:80/TCP: because",
            "shop/refused AddressRefused: 10.96.0.2:80/TCP: because",
        ]
    );
    let with: Vec<String> = seen.with_backends.iter().map(ToString::to_string).collect();
    assert_eq!(with, ["shop/half", "shop/held", "shop/owner"]);
}

#[test]
fn none_on_this_node_is_not_none() {
    let rows = [row("shop/local", "10.96.0.1:80/TCP", Status::Done, &[])];
    let seen = seen(&rows, |_| true, |_| false);
    assert!(seen.troubles.is_empty() && seen.with_backends.len() == 1, "{seen:?}");
}

#[test]
fn every_reason_is_in_the_catalogue() {
    for reason in [Reason::BackendsHeld, Reason::AddressRefused, Reason::AddressConflict, Reason::NoBackends] {
        let entry = nodelb_cli::diagnose::catalogue::find(&reason.to_string());
        assert!(entry.is_some_and(|entry| entry.source == "nodelb"), "{reason}");
    }
}
