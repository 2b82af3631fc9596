use serde_json::json;

use super::*;

fn services() -> &'static Resource {
    Resource::find("services").unwrap()
}

fn key(name: &str) -> Key {
    ("shop".into(), name.into())
}

#[test]
fn one_counter_and_a_log() {
    let mut store = Store::default();
    store.put(services(), &key("a"), json!({"metadata": {"name": "a"}}));
    store.put(services(), &key("a"), json!({"metadata": {"name": "a"}, "spec": {}}));
    store.put(Resource::find("nodes").unwrap(), &key("n"), json!({"metadata": {}}));
    store.remove(services(), &key("a")).unwrap();
    let events = store.since(services(), 0).unwrap();
    let seen: Vec<_> = events.iter().map(|event| (event.revision, event.kind)).collect();
    assert_eq!(seen, [(1, EventKind::Added), (2, EventKind::Modified), (4, EventKind::Deleted)]);
    assert_eq!(events[2].object.value["metadata"]["resourceVersion"], "4");
    assert_eq!(events[2].previous.as_ref().unwrap().value["metadata"]["resourceVersion"], "2");
    assert_eq!(store.since(services(), 3).unwrap().len(), 1);
}

#[test]
fn restored_from_a_backup() {
    let mut store = Store::default();
    store.put(services(), &key("a"), json!({"metadata": {}}));
    let backup = store.clone();
    store.put(services(), &key("b"), json!({"metadata": {}}));
    store.restore(&backup);
    assert_eq!((store.revision(), store.compacted()), (1, 1));
    assert_eq!(store.objects(services()).len(), 1);
    assert!(store.since(services(), 0).unwrap().is_empty());
}

#[test]
fn pages_are_of_one_moment_until_compaction() {
    let mut store = Store::default();
    store.put(services(), &key("a"), json!({"metadata": {}}));
    store.pin(services(), 1, store.objects(services()));
    store.remove(services(), &key("a")).unwrap();
    assert_eq!(store.pinned(services(), 1).unwrap().len(), 1);
    store.compact();
    assert!(store.pinned(services(), 1).is_none());
}
