use nodelb_core::model::node::NodeObject;
use nodelb_core::model::service::Slice;

use super::*;

fn decoder() -> Decoder {
    Decoder::new(Kind::EndpointSlice)
}

fn upserted(event: ListWatchEvent) -> Box<Object> {
    let ListWatchEvent::Upsert(object) = event else { panic!("{event:?}") };
    object
}

fn slice(event: ListWatchEvent) -> Slice {
    let Some(Change::UpsertSlice(slice)) = upserted(event).change else { panic!("not a slice") };
    slice
}

const SLICE: &str = r#"{"metadata":{"name":"web-1","namespace":"shop","uid":"0b5a6c7e-0000-4000-8000-00000000000a",
    "resourceVersion":"42","labels":{"kubernetes.io/service-name":"web"},"managedFields":[
    {"manager":"kube-controller-manager","time":"2026-01-02T03:04:06Z"},{"manager":"kubectl","time":"2026-01-02T03:04:05Z"}]},
    "addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}],"ports":[{"name":"http","port":8080}]}"#;

#[test]
fn an_event_contains_its_object_and_the_writer() {
    let event = format!("{{\"type\":\"MODIFIED\",\"object\":{SLICE}}}");
    let object = upserted(decoder().event(event.as_bytes()).expect("an event"));
    assert_eq!((&object.key, object.version), (&Key { namespace: "shop".into(), name: "web-1".into() }, Version(42)));
    let slice = slice(ListWatchEvent::Upsert(object));
    assert_eq!(&*slice.origin.object, "EndpointSlice shop/web-1");
    assert_eq!((&*slice.origin.writer, slice.origin.written), ("kube-controller-manager", Some(1_767_323_046)));
    assert_eq!(&*slice.origin.resource_version, "42");
}

#[test]
fn a_bookmark_may_end_the_list() {
    let end = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    assert_eq!(decoder().event(end), Ok(ListWatchEvent::ListDone(Version(7))));
    let plain = br#"{"type":"BOOKMARK","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"8","creationTimestamp":null}}}"#;
    assert_eq!(decoder().event(plain), Ok(ListWatchEvent::Bookmark(Version(8))));
}

#[test]
fn an_error_event_has_a_code_even_if_the_server_sends_none() {
    let gone = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
    assert_eq!(decoder().event(gone), Err(LinkError::Gone("Expired too old".into())));
    assert_eq!(
        decoder().event(br#"{"type":"ERROR","object":[]}"#),
        Err(LinkError::Status { code: 500, message: String::new() })
    );
}

#[test]
fn something_other_than_an_event_is_rejected() {
    for text in ["{}", r#"{"type":"ADDED"}"#, r#"{"type":"SHOUTED","object":{}}"#, r#"{"type":1,"object":{}}"#, "[]"] {
        assert!(matches!(decoder().event(text.as_bytes()), Err(LinkError::Broken(_))), "{text}");
    }
}

#[test]
fn an_invalid_object_is_skipped_by_name() {
    let cases = [
        (r#"{"metadata":{"name":"a","namespace":"b"},"ports":7}"#, true),
        (r#"{"metadata":{"name":"a","namespace":"b"},"ports":[{"port":"http"}]}"#, true),
        (r#"{"metadata":{"name":"a","namespace":"b"},"ports":[{"port":99999}]}"#, true),
        (r#"{"metadata":{"name":7}}"#, false),
        (r#"{"metadata":{"name":""}}"#, false),
        (r#"{"metadata":{"name":"a b"}}"#, false),
        (r#"{"metadata":{"name":"a","namespace":"../b"}}"#, false),
        ("7", false),
    ];
    for (text, is_named) in cases {
        let ListWatchEvent::Skipped { key, .. } = decoder().item(text.as_bytes()) else { panic!("{text} is skipped") };
        assert_eq!(key.is_some(), is_named, "{text}");
    }
}

#[test]
fn a_deletion_needs_only_a_name() {
    let event =
        br#"{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"b","resourceVersion":"9"},"ports":7}}"#;
    let Ok(ListWatchEvent::Delete(object)) = decoder().event(event) else { panic!("a deletion") };
    assert_eq!(object.version, Version(9));
}

/// The decoder first tries to decode the whole event, and then only its object. A field of the wrong type triggers the
/// second case.
#[test]
fn an_invalid_object_is_skipped_with_its_event() {
    let event = r#"{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"b"},"ports":7}}"#;
    let Ok(ListWatchEvent::Skipped { key, .. }) = decoder().event(event.as_bytes()) else { panic!() };
    assert_eq!(key, Some(Key { namespace: "b".into(), name: "a".into() }));
    for event in ["ADDED", "DELETED"].map(|kind| format!("{{\"object\":7,\"type\":\"{kind}\"}}")) {
        let Ok(ListWatchEvent::Skipped { key, .. }) = decoder().event(event.as_bytes()) else { panic!() };
        assert_eq!(key, None);
    }
    let event = format!("{{\"object\":{SLICE},\"more\":[1],\"type\":\"DELETED\"}}");
    let Ok(ListWatchEvent::Delete(object)) = decoder().event(event.as_bytes()) else { panic!() };
    assert_eq!((&*object.key.name, object.version), ("web-1", Version(42)));
}

#[test]
fn names_are_kept_once() {
    let mut decoder = decoder();
    let objects = [(); 2].map(|()| upserted(decoder.item(SLICE.as_bytes())));
    let key = objects[0].key.clone();
    let [first, second] = objects.map(|object| slice(ListWatchEvent::Upsert(object)));
    assert!(Arc::ptr_eq(&key.name, &first.name.name));
    for (a, b) in [
        (&first.origin.writer, &second.origin.writer),
        (&first.name.namespace, &second.service.namespace),
        (&first.ports[0].name, &second.ports[0].name),
    ] {
        assert!(Arc::ptr_eq(a, b), "{a}");
    }
}

#[test]
fn uids_differ_only_where_both_are_known() {
    let (a, b) =
        (Uid::parse("0b5a6c7e-0000-4000-8000-00000000000a"), Uid::parse("0b5a6c7e-0000-4000-8000-00000000000b"));
    assert!(a.is_other(b) && !a.is_other(a) && !a.is_other(Uid::parse("")));
    assert!(Uid::parse("not hexadecimal").is_other(Uid::parse("not hexadecimal either")));
}

#[test]
fn a_list_has_a_version() {
    let text = br#"{"kind":"ServiceList","items":[],"metadata":{"resourceVersion":"12","continue":"abc","remainingItemCount":3}}"#;
    let metadata = list_metadata(text).expect("a list");
    assert_eq!((&*metadata.resource_version, &*metadata.next), ("12", "abc"));
    assert!(list_metadata(br#"{"kind":"Status","metadata":{}}"#).is_err(), "a Status is not a list");
    assert!(list_metadata(b"7").is_err());
}

#[test]
fn a_node_has_a_zone() {
    let mut decoder = Decoder::new(Kind::Node);
    let node = br#"{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"z1"}},"status":{"images":[]}}"#;
    let change = Change::NodeObject(Some(NodeObject { zone: "z1".into(), ..NodeObject::default() }));
    assert_eq!(upserted(decoder.item(node)).change, Some(change));
}

#[test]
fn what_is_shown_has_no_control_characters() {
    let text = r#"{"metadata":{"name":"a","namespace":"b","resourceVersion":"1\nx","labels":{"kubernetes.io/service-name":"a\u001b"},
        "managedFields":[{"manager":"x\nnodelb: all is well\u001b[2J","time":"2026-01-02T03:04:06Z"}]},"addressType":"IPv4",
        "endpoints":[{"addresses":["192.0.2.1"],"zone":"z\n","nodeName":"n\r"},{"addresses":["\n"]}],"ports":[{"name":"p\n","port":1}]}"#;
    let object = upserted(decoder().item(text.as_bytes()));
    let (notices, slice) = (object.notices.clone(), slice(ListWatchEvent::Upsert(object)));
    assert_eq!(&*slice.origin.writer, "x\u{fffd}nodelb: all is well\u{fffd}[2J");
    let port = &slice.ports[0];
    let backend = &port.backends[0];
    let (node, zone) = (backend.node.clone().expect("named"), backend.zone.clone().expect("named"));
    let shown = [&*slice.origin.resource_version, &*slice.service.name, &*port.name, &*node, &*zone, &notices.join("")];
    assert!(shown.iter().all(|text| !text.contains(char::is_control)), "{shown:?}");
    let node = br#"{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"z\n"}}}"#;
    let change = Change::NodeObject(Some(NodeObject { zone: "z\u{fffd}".into(), ..NodeObject::default() }));
    assert_eq!(upserted(Decoder::new(Kind::Node).item(node)).change, Some(change));
}

#[test]
fn service_default_kubernetes_identifies_the_cluster() {
    let mut decoder = Decoder::new(Kind::Service);
    let service = |namespace: &str| {
        format!(
            r#"{{"metadata":{{"name":"kubernetes","namespace":"{namespace}","uid":"0b5a-1"}},"spec":{{"clusterIP":"None"}}}}"#
        )
    };
    let mut cluster = |namespace: &str| upserted(decoder.item(service(namespace).as_bytes())).cluster;
    assert_eq!(cluster("shop"), None);
    assert_eq!(cluster("default").as_deref(), Some("0b5a-1"));
}

/// A string that nodelb ignores need not be text; one that it reads must be.
#[test]
fn bytes_that_are_not_text_matter_only_where_they_are_read() {
    let with = |from: &str, to: &[u8]| {
        let (before, after) = SLICE.split_once(from).expect("it contains it");
        [before.as_bytes(), to, after.as_bytes()].concat()
    };
    let ignored = with("\"ports\":", b"\"other\":\"\xff\",\"ports\":");
    assert_eq!(slice(decoder().item(&ignored)), slice(decoder().item(SLICE.as_bytes())));
    let read = decoder().item(&with("192.0.2.1", b"\xff"));
    assert!(matches!(&read, ListWatchEvent::Skipped { key: Some(key), .. } if &*key.name == "web-1"), "{read:?}");
}
