use serde_json::json;

use super::*;

fn object(name: &str, version: u32, port: u16) -> Value {
    let metadata = json!({"namespace": "shop", "name": name, "resourceVersion": version.to_string()});
    json!({"kind": "Service", "metadata": metadata, "spec": {"port": port}})
}

fn reported(event: &Event) -> String {
    let text = super::super::line::Line::event(std::time::SystemTime::UNIX_EPOCH, event.clone()).to_text();
    text.trim_end().trim_start_matches("1970-01-01T00:00:00.000Z ").to_owned()
}

#[test]
fn missed_events_are_found_by_the_next_list() {
    let mut known = Cache::default();
    known.begin_list();
    for name in ["a", "b"] {
        assert!(known.listed("Service", object(name, 1, 80)).is_some());
    }
    assert!(known.end_list("Service").is_empty());
    assert_eq!(
        reported(&known.changed("Service", object("a", 2, 81))),
        "Service shop/a MODIFIED rv=2: spec.port 80 -> 81"
    );
    known.begin_list();
    assert!(known.listed("Service", object("a", 2, 81)).is_none(), "as it was");
    let added = known.listed("Service", object("c", 4, 90)).unwrap();
    assert_eq!(reported(&added), "Service shop/c ADDED rv=4 (listed): spec.port +90");
    let gone: Vec<String> = known.end_list("Service").iter().map(reported).collect();
    assert_eq!(gone, ["Service shop/b DELETED rv=1 (listed): spec.port -80"]);
    assert_eq!(reported(&known.deleted("Service", &object("a", 9, 81))), "Service shop/a DELETED rv=9");
    assert_eq!(known.len(), 1);
}

#[test]
fn no_more_are_kept_than_fit() {
    let mut known = Cache::default();
    for number in 0..MOST + 10 {
        known.changed("Service", object(&format!("s{number}"), 1, 80));
    }
    assert_eq!(known.len(), MOST);
}
