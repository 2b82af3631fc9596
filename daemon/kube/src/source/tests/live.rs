use nodelb_core::table::Table;
use tokio::sync::mpsc;

use super::*;
use crate::api::decode::Decode;

const AT: &str = "192.0.2.21:6443";

/// The event for an object that an apiserver sends.
fn listed(name: &str, version: u64, backends: &[&str]) -> ListWatchEvent {
    listed_with("", name, version, backends)
}

/// The same with another label.
fn listed_with(label: &str, name: &str, version: u64, backends: &[&str]) -> ListWatchEvent {
    let endpoints: Vec<String> = backends.iter().map(|ip| format!(r#"{{"addresses":["{ip}"]}}"#)).collect();
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{name}","resourceVersion":"{version}",
            "labels":{{{label}"kubernetes.io/service-name":"web"}}}},"addressType":"IPv4",
            "endpoints":[{}],"ports":[{{"name":"http","port":8080,"protocol":"TCP"}}]}}"#,
        endpoints.join(",")
    );
    Decoder::new(Kind::EndpointSlice).item(json.as_bytes())
}

/// The table after these events.
fn facts(events: impl IntoIterator<Item = ListWatchEvent>) -> Facts {
    let mut table = Table::default();
    for event in events {
        let ListWatchEvent::Upsert(object) = event else { panic!("{event:?}") };
        table.apply(object.change.expect("an object that is used"));
    }
    Facts::clone(&table)
}

/// The differences `what | source | memory | cause` for a list of this version, and the tables before and after it.
fn compare(before: &Facts, list: Vec<ListWatchEvent>, version: u64, after: &Facts) -> Vec<String> {
    let scope = Scope::all(Kind::EndpointSlice);
    let mut compared = List::new(&scope, before, false);
    list.into_iter().for_each(|event| compared.take(event));
    compared.take(ListWatchEvent::ListDone(Version(version)));
    let notices = std::mem::take(&mut compared.notices);
    let (suspects, known) = (compared.end(), known_models(&scope, after));
    let rows = suspects.iter().filter_map(|suspect| suspect.judge(known.get(&suspect.key), AT.parse().unwrap()));
    let text = |side: Option<String>| side.unwrap_or_default();
    let shown = rows.map(|row| format!("{} | {} | {} | {}", row.what, text(row.source), text(row.memory), row.cause));
    shown.chain(notices.iter().map(|row| format!("{} | {}", row.what, row.cause))).collect()
}

#[test]
fn an_update_that_the_watch_lacks_shows_both_sides() {
    let known = facts([listed("a", 7, &["192.0.2.1"])]);
    let rows = compare(&known, vec![listed("a", 9, &["192.0.2.2"])], 9, &known);
    let expected = "EndpointSlice shop/a | resourceVersion 9: 192.0.2.2:8080/TCP Active | resourceVersion 7: \
                    192.0.2.1:8080/TCP Active | EndpointSlice shop/a at resourceVersion 9 has not arrived by watch";
    assert_eq!(rows, [expected]);
    let behind = compare(&known, vec![listed("a", 5, &["192.0.2.2"])], 5, &known);
    assert!(behind[0].ends_with("is behind the apiserver that was watched, or the cluster was restored"), "{behind:?}");
    let equal = compare(&known, vec![listed("a", 7, &["192.0.2.2"])], 7, &known);
    assert!(equal[0].ends_with("which is a bug of nodelb: please report it"), "{equal:?}");
}

#[test]
fn a_change_that_affects_no_connection_or_arrives_in_time_is_no_difference() {
    let known = facts([listed("a", 7, &["192.0.2.1"])]);
    assert_eq!(compare(&known, vec![listed("a", 9, &["192.0.2.1"])], 9, &known), Vec::<String>::new());
    let later = facts([listed("a", 9, &["192.0.2.2"])]);
    assert_eq!(compare(&known, vec![listed("a", 9, &["192.0.2.2"])], 9, &later), Vec::<String>::new());
}

#[test]
fn an_event_that_is_newer_than_the_list_shows_that_the_watch_works() {
    let (before, later) = (facts([listed("a", 7, &["192.0.2.1"])]), facts([listed("a", 12, &["192.0.2.3"])]));
    assert_eq!(compare(&before, vec![listed("a", 9, &["192.0.2.2"])], 9, &later), Vec::<String>::new());
    // The list lacks the object, and it was recreated in the meantime.
    assert_eq!(compare(&before, Vec::new(), 9, &later), Vec::<String>::new());
    // The watch has delivered a version since, but not that of the list.
    let between = facts([listed("a", 8, &["192.0.2.3"])]);
    let rows = compare(&before, vec![listed("a", 9, &["192.0.2.2"])], 9, &between);
    assert!(rows[0].ends_with("EndpointSlice shop/a at resourceVersion 9 has not arrived by watch"), "{rows:?}");
}

#[test]
fn objects_that_only_one_side_has() {
    let known = facts([listed("a", 7, &["192.0.2.1"])]);
    let rows = compare(&known, vec![listed("b", 8, &["192.0.2.2"])], 9, &known);
    assert_eq!(
        rows,
        [
            "EndpointSlice shop/b | resourceVersion 8: 192.0.2.2:8080/TCP Active | absent | EndpointSlice shop/b at \
             resourceVersion 8 has not arrived by watch",
            "EndpointSlice shop/a | absent at 192.0.2.21:6443, or left out | resourceVersion 7: 192.0.2.1:8080/TCP \
             Active | its deletion, or the change after which nodelb ignores it, has not arrived by watch",
        ]
    );
    // First the object is newer than the list; then it has been deleted since.
    assert_eq!(compare(&known, Vec::new(), 6, &known), Vec::<String>::new());
    assert_eq!(compare(&known, Vec::new(), 9, &facts([])), Vec::<String>::new());
}

#[test]
fn an_object_that_cannot_be_read_is_reported_and_not_taken_for_deleted() {
    let known = facts([listed("a", 7, &["192.0.2.1"])]);
    let key = Key { namespace: "shop".into(), name: "a".into() };
    let rows = compare(&known, vec![ListWatchEvent::Skipped { key: Some(key), reason: "ports: no".into() }], 9, &known);
    assert_eq!(rows, ["EndpointSlice shop/a | ports: no"]);
}

/// All agreed, and the service had no backend: the server was asked not to list such slices.
#[test]
fn a_slice_that_no_proxy_uses_is_reported_with_its_service() {
    let unused = || listed_with(r#""service.kubernetes.io/headless":"","#, "a", 7, &["192.0.2.1"]);
    let report = |facts: &Facts, is_narrow| {
        let scope = Scope::all(Kind::EndpointSlice);
        let mut compared = List::new(&scope, facts, is_narrow);
        compared.take(unused());
        let rows = std::mem::take(&mut compared.notices);
        assert_eq!(compared.end().len(), 0, "the watch has no such slice");
        rows.into_iter().map(|row| (row.what, row.service.unwrap().to_string(), row.cause)).collect::<Vec<_>>()
    };
    let cause = "label service.kubernetes.io/headless; left out";
    let expected = [("EndpointSlice shop/a".to_owned(), "shop/web".to_owned(), cause.to_owned())];
    assert_eq!(report(&Facts::default(), true), expected);
    assert_eq!(report(&Facts::default(), false), [], "the service is headless");
    let service = r#"{"metadata":{"namespace":"shop","name":"web"},"spec":{"clusterIP":"198.51.100.1","ports":[]}}"#;
    assert_eq!(report(&facts([Decoder::new(Kind::Service).item(service.as_bytes())]), false), expected);
}

/// It was a difference, and the next one said that all services had been compared.
#[tokio::test]
async fn without_an_apiserver_nothing_is_compared_however_often_that_is_asked_for() {
    let apiservers = Apiservers { session: watch::channel(None).1, reports: mpsc::channel(1).0 };
    let timeouts = LiveTimeouts::default();
    let live = Live::new(apiservers, watch::channel(Arc::default()).1, Selection::default(), Arc::default(), timeouts);
    for service in [None, None, Some(ServiceName::new("shop", "web"))] {
        let refused = live.differences(service.as_ref()).await.unwrap_err();
        assert!(!refused.is_too_early && refused.text.starts_with("no apiserver is reachable; "), "{refused:?}");
    }
}
