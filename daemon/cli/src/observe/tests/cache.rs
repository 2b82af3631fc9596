use nodelb_kube::api::decode::Version;
use serde_json::json;

use super::*;

fn object(name: &str, version: u32, port: u16) -> Value {
    let metadata = json!({"namespace": "shop", "name": name, "resourceVersion": version.to_string()});
    json!({"kind": "Service", "metadata": metadata, "spec": {"port": port}})
}

fn text(event: &Event) -> String {
    let text = super::super::line::Line::event(nodelb_report::time::Time(0), event.clone()).to_text();
    text.trim_end().trim_start_matches("1970-01-01T00:00:00.000Z ").to_owned()
}

fn apply(cache: &mut Cache, event: ListWatchEvent<Value>) -> Vec<String> {
    cache.apply(event).iter().map(text).collect()
}

#[test]
fn a_list_shows_what_happened_while_there_was_no_watch() {
    use ListWatchEvent::{Delete, ListDone, ListStart, Upsert};
    let mut cache = Cache::new("Service");
    cache.apply(ListStart { is_rewound: false });
    for name in ["a", "b"] {
        assert_eq!(apply(&mut cache, Upsert(object(name, 1, 80))).len(), 1);
    }
    assert_eq!(apply(&mut cache, ListDone(Version(1))), [""; 0]);
    let changed = apply(&mut cache, Upsert(object("a", 2, 81)));
    assert_eq!(changed, ["Service shop/a MODIFIED rv=2: spec.port 80 -> 81"]);
    cache.apply(ListStart { is_rewound: false });
    assert_eq!(apply(&mut cache, Upsert(object("a", 2, 81))), [""; 0], "unchanged");
    let added = apply(&mut cache, Upsert(object("c", 4, 90)));
    assert_eq!(added, ["Service shop/c ADDED rv=4 (listed): spec.port +90"]);
    let gone = apply(&mut cache, ListDone(Version(4)));
    assert_eq!(gone, ["Service shop/b DELETED rv=1 (listed): spec.port -80"]);
    assert_eq!(apply(&mut cache, Delete(object("a", 9, 81))), ["Service shop/a DELETED rv=9"]);
    assert_eq!(cache.len(), 1);
}

#[test]
fn the_number_of_known_objects_is_bounded() {
    let mut cache = Cache::new("Service");
    for number in 0..MAX_OBJECTS + 10 {
        cache.apply(ListWatchEvent::Upsert(object(&format!("s{number}"), 1, 80)));
    }
    assert_eq!(cache.len(), MAX_OBJECTS);
}
