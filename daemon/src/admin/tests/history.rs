use nodelb_core::history::{Addresses, Event, Kernel, Stamp, What};
use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{Origin, PortKey, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_report::output::table::Style;
use nodelb_report::rows::{Answer, HistoryAnswer};
use nodelb_report::time::Time;

use super::*;

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

fn key(name: &str) -> Arc<PortKey> {
    let service = "shop/web".parse().unwrap();
    Arc::new(PortKey { service, port: name.into(), protocol: Protocol::Tcp, family: Family::Ipv4 })
}

fn origin() -> Origin {
    Origin {
        object: "EndpointSlice shop/web-x".into(),
        resource_version: "1234".into(),
        generation: 7,
        writer: "kube-controller-manager".into(),
        written: Some(1_795_176_184),
        triggered: Some(1_795_176_184_000),
    }
}

/// The rows of these records.
fn of(records: impl IntoIterator<Item = (Event, Stamp)>) -> HistoryAnswer {
    let mut history = History::default();
    records.into_iter().for_each(|(event, stamp)| drop(history.add(event, stamp)));
    let records = select(&history, &Snapshot::default(), &Filter::default());
    HistoryAnswer { history: rows(&records) }
}

/// Every column.
fn wide(answer: &HistoryAnswer) -> String {
    answer.text(Time(1_795_176_190_000), &Style { wide: true, ..Style::default() })
}

fn changed() -> (Event, Stamp) {
    let event = Event::for_port(
        &key("http"),
        Some(Source::Kubernetes),
        What::Changed,
        Cause { origin: origin(), is_removed: false },
    );
    let many = (1..=40).map(|n| l4(&format!("10.1.0.{n}:80"))).collect();
    let event = Event { added: many, removed: [l4("10.1.1.1:80")].into_iter().collect(), ..event };
    (Event { kernel: Kernel::Done, ..event }, Stamp { at: 1_795_176_184_250, to_kernel: 350 })
}

#[test]
fn programs_get_every_figure() {
    let json = serde_json::to_value(of([changed()])).unwrap();
    let row = &json["history"][0];
    assert_eq!(row["sequence"], 1);
    assert_eq!(row["time"], "2026-11-20T12:03:04.250Z");
    assert_eq!((&row["service"], &row["port"]), (&"shop/web".into(), &"http/TCP/IPv4".into()));
    assert_eq!((&row["what"], &row["object"]), (&"Changed".into(), &"EndpointSlice shop/web-x".into()));
    assert_eq!((&row["resource_version"], &row["generation"]), (&"1234".into(), &7.into()));
    assert_eq!((&row["writer"], &row["written"]), (&"kube-controller-manager".into(), &"2026-11-20T12:03:04Z".into()));
    assert_eq!((&row["to_nodelb"], &row["to_kernel"]), (&0.25.into(), &0.000_35.into()));
    assert_eq!((&row["kernel"], &row["source"]), (&"done".into(), &"kubernetes".into()));
    assert_eq!((row["added"].as_array().unwrap().len(), &row["detail"]), (32, &"40 added".into()));
    assert_eq!(row["removed"], serde_json::json!(["10.1.1.1:80/TCP"]));
}

#[test]
fn people_read_the_same() {
    let text = wide(&of([changed()]));
    for part in ["2026-11-20T12:03:04.250Z", "http/TCP/IPv4", "250.0ms", "350us", "10.1.0.1:80/TCP", "1234"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn what_the_kernel_will_not_take_is_said_in_its_words() {
    let removed = Cause { origin: origin(), is_removed: true };
    let failed = Event::for_port(&key(""), None, What::Removed, removed);
    let failed = Event { kernel: Kernel::Failed("map slots is full".into()), ..failed };
    let waits = Event { kernel: Kernel::Deferred, ..Event::for_daemon(What::Synced, "3 services\u{1b}[31m") };
    let text = wide(&of([(failed, Stamp::default()), (waits, Stamp::default())]));
    assert!(text.contains("map slots is full") && text.contains("EndpointSlice shop/web-x (removed)"), "{text}");
    assert!(text.contains("waiting for initial sync") && !text.contains('\u{1b}'), "{text}");
    assert!(text.lines().nth(1).unwrap().contains("  TCP/IPv4  "), "{text}");
}

#[test]
fn rows_of_earlier_runs_say_so() {
    let mut before = History::default();
    let (event, stamp) = changed();
    before.add(event, stamp);
    let mut history = History::default();
    before.after(0).for_each(|record| history.restore(Record::clone(record)));
    let records = select(&history, &Snapshot::default(), &Filter::default());
    let text = wide(&HistoryAnswer { history: rows(&records) });
    assert!(text.trim_end().ends_with("before the last start"), "{text}");
}

/// The file of earlier runs may contain anything.
#[test]
fn no_figure_is_too_large_to_be_shown() {
    let (event, _) = changed();
    let added = Addresses { shown: Vec::new(), more: usize::MAX };
    let mut origin = origin();
    (origin.generation, origin.written, origin.triggered) = (u64::MAX, Some(u64::MAX), Some(u64::MAX));
    let cause = Cause { origin, is_removed: false };
    let event = Event { added, cause, ..event };
    let (to_owner, to_kernel, at) = (Some(u64::MAX), Some(u64::MAX), u64::MAX);
    let mut history = History::default();
    history.restore(Record { sequence: 1, at, to_owner, to_kernel, is_from_before: false, event });
    let records = select(&history, &Snapshot::default(), &Filter::default());
    assert!(wide(&HistoryAnswer { history: rows(&records) }).contains(&format!("{} added", usize::MAX)));
}
