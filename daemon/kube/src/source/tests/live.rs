use nodelb_core::change::Change;
use nodelb_core::table::Table;

use super::*;

const AT: &str = "192.0.2.21:6443";

/// The message for an object that an apiserver sends.
fn heard(name: &str, version: u64, backends: &[&str]) -> ObjectEvent {
    let endpoints: Vec<String> = backends.iter().map(|ip| format!(r#"{{"addresses":["{ip}"]}}"#)).collect();
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{name}","resourceVersion":"{version}",
            "labels":{{"kubernetes.io/service-name":"web"}}}},"addressType":"IPv4",
            "endpoints":[{}],"ports":[{{"name":"http","port":8080,"protocol":"TCP"}}]}}"#,
        endpoints.join(",")
    );
    Decoder::new(Kind::EndpointSlice).item(json.as_bytes()).0
}

/// The table after these messages.
fn facts(reported: impl IntoIterator<Item = ObjectEvent>) -> Facts {
    let mut table = Table::default();
    for heard in reported {
        let ObjectEvent::Upsert(item) = heard else { panic!("{heard:?}") };
        let Some(Object::Slice(slice)) = item.object else { panic!("no slice") };
        table.apply(Change::UpsertSlice(slice));
    }
    table.facts()
}

/// The differences `what | source | memory | cause` for a list of this version, and the tables before and after it.
fn compare(before: &Facts, list: Vec<ObjectEvent>, version: u64, after: &Facts) -> Vec<String> {
    let mut compared = List::new(Kind::EndpointSlice, before, None);
    list.into_iter().for_each(|heard| compared.take(heard));
    compared.version = Version(version);
    let notices = std::mem::take(&mut compared.notices);
    let (suspects, known) = (compared.end(), held(Kind::EndpointSlice, after, None));
    let rows = suspects.iter().filter_map(|suspect| suspect.judge(known.get(&suspect.key), AT.parse().unwrap()));
    let text = |side: Option<String>| side.unwrap_or_default();
    let reported =
        rows.map(|row| format!("{} | {} | {} | {}", row.what, text(row.source), text(row.memory), row.cause));
    reported.chain(notices.iter().map(|row| format!("{} | {}", row.what, row.cause))).collect()
}

#[test]
fn an_update_that_did_not_arrive_shows_both_sides() {
    let known = facts([heard("a", 7, &["192.0.2.1"])]);
    let reported = compare(&known, vec![heard("a", 9, &["192.0.2.2"])], 9, &known);
    let expected = "EndpointSlice shop/a | resourceVersion 9: 192.0.2.2:8080/TCP Active | resourceVersion 7: \
                    192.0.2.1:8080/TCP Active | EndpointSlice shop/a at resourceVersion 9 has not arrived by watch";
    assert_eq!(reported, [expected]);
    let behind = compare(&known, vec![heard("a", 5, &["192.0.2.2"])], 5, &known);
    assert!(behind[0].ends_with("is behind the apiserver that was watched, or the cluster was restored"), "{behind:?}");
    let equal = compare(&known, vec![heard("a", 7, &["192.0.2.2"])], 7, &known);
    assert!(equal[0].ends_with("please report this bug of nodelb"), "{equal:?}");
}

#[test]
fn irrelevant_and_recent_changes_are_no_difference() {
    let known = facts([heard("a", 7, &["192.0.2.1"])]);
    assert_eq!(compare(&known, vec![heard("a", 9, &["192.0.2.1"])], 9, &known), Vec::<String>::new());
    let later = facts([heard("a", 9, &["192.0.2.2"])]);
    assert_eq!(compare(&known, vec![heard("a", 9, &["192.0.2.2"])], 9, &later), Vec::<String>::new());
}

#[test]
fn events_newer_than_the_list_show_that_the_watch_works() {
    let (before, later) = (facts([heard("a", 7, &["192.0.2.1"])]), facts([heard("a", 12, &["192.0.2.3"])]));
    assert_eq!(compare(&before, vec![heard("a", 9, &["192.0.2.2"])], 9, &later), Vec::<String>::new());
    // The list lacks the object, and it was recreated in the meantime.
    assert_eq!(compare(&before, Vec::new(), 9, &later), Vec::<String>::new());
    // The watch has delivered a version since, but not that of the list.
    let between = facts([heard("a", 8, &["192.0.2.3"])]);
    let reported = compare(&before, vec![heard("a", 9, &["192.0.2.2"])], 9, &between);
    assert!(
        reported[0].ends_with("EndpointSlice shop/a at resourceVersion 9 has not arrived by watch"),
        "{reported:?}"
    );
}

#[test]
fn objects_that_only_one_side_has() {
    let known = facts([heard("a", 7, &["192.0.2.1"])]);
    let reported = compare(&known, vec![heard("b", 8, &["192.0.2.2"])], 9, &known);
    assert_eq!(
        reported,
        [
            "EndpointSlice shop/b | resourceVersion 8: 192.0.2.2:8080/TCP Active | absent | EndpointSlice shop/b at \
             resourceVersion 8 has not arrived by watch",
            "EndpointSlice shop/a | absent at 192.0.2.21:6443, or left out | resourceVersion 7: 192.0.2.1:8080/TCP \
             Active | its removal, or the change that made it none of nodelb's, has not arrived by watch",
        ]
    );
    // First the object is newer than the list; then it has been deleted since.
    assert_eq!(compare(&known, Vec::new(), 6, &known), Vec::<String>::new());
    assert_eq!(compare(&known, Vec::new(), 9, &facts([])), Vec::<String>::new());
}

#[test]
fn unreadable_objects_are_reported_and_not_treated_as_deleted() {
    let known = facts([heard("a", 7, &["192.0.2.1"])]);
    let key = Key { namespace: "shop".into(), name: "a".into() };
    let reported =
        compare(&known, vec![ObjectEvent::Skipped { key: Some(key), reason: "ports: no".into() }], 9, &known);
    assert_eq!(reported, ["EndpointSlice shop/a | ports: no"]);
}
