use super::*;

fn decoder() -> Decoder {
    Decoder::new(Kind::EndpointSlice)
}

const SLICE: &str = r#"{"metadata":{"name":"web-1","namespace":"shop","uid":"0b5a6c7e-0000-4000-8000-00000000000a",
    "resourceVersion":"42","labels":{"kubernetes.io/service-name":"web"},"managedFields":[
    {"manager":"kube-controller-manager","time":"2026-01-02T03:04:06Z"},{"manager":"kubectl","time":"2026-01-02T03:04:05Z"}]},
    "addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}],"ports":[{"name":"http","port":8080}]}"#;

#[test]
fn an_event_tells_what_it_is_and_who_wrote_it() {
    let event = format!("{{\"type\":\"MODIFIED\",\"object\":{SLICE}}}");
    let Ok(Event::ObjectEvent(heard, Version(42))) = decoder().event(event.as_bytes()) else {
        panic!("something at 42")
    };
    let ObjectEvent::Upsert(item) = heard else { panic!("an upsert") };
    assert_eq!(item.identity.key, Key { namespace: "shop".into(), name: "web-1".into() });
    let Some(Object::Slice(slice)) = item.object else { panic!("a slice") };
    assert_eq!(&*slice.origin.object, "EndpointSlice shop/web-1");
    assert_eq!((&*slice.origin.writer, slice.origin.written), ("kube-controller-manager", Some(1_767_323_046)));
    assert_eq!(&*slice.origin.resource_version, "42");
}

#[test]
fn a_bookmark_may_end_the_list() {
    let end = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    assert_eq!(decoder().event(end), Ok(Event::Bookmark { version: Version(7), is_end_of_list: true }));
    let plain = br#"{"type":"BOOKMARK","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"8","creationTimestamp":null}}}"#;
    assert_eq!(decoder().event(plain), Ok(Event::Bookmark { version: Version(8), is_end_of_list: false }));
}

#[test]
fn an_error_event_has_a_code_even_where_it_names_none() {
    let gone = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
    assert_eq!(decoder().event(gone), Ok(Event::Error { code: 410, message: "Expired too old".into() }));
    assert_eq!(
        decoder().event(br#"{"type":"ERROR","object":[]}"#),
        Ok(Event::Error { code: 500, message: String::new() })
    );
}

#[test]
fn what_is_no_event_is_refused() {
    for text in ["{}", r#"{"type":"ADDED"}"#, r#"{"type":"SHOUTED","object":{}}"#, r#"{"type":1,"object":{}}"#, "[]"] {
        assert!(decoder().event(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn an_object_that_makes_no_sense_is_skipped_by_name() {
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
        let (ObjectEvent::Skipped { key, .. }, _) = decoder().item(text.as_bytes()) else {
            panic!("{text} is skipped")
        };
        assert_eq!(key.is_some(), is_named, "{text}");
    }
}

#[test]
fn a_deletion_needs_no_sense_but_a_name() {
    let event =
        br#"{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"b","resourceVersion":"9"},"ports":7}}"#;
    let Ok(Event::ObjectEvent(heard, Version(9))) = decoder().event(event) else { panic!("something at 9") };
    assert!(matches!(heard, ObjectEvent::Delete(_)));
}

/// The decoder first tries to decode the whole event, and then only its object. A field of the wrong type triggers the
/// second case.
#[test]
fn an_object_that_makes_no_sense_is_skipped_with_its_event() {
    let event = r#"{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"b"},"ports":7}}"#;
    let Ok(Event::ObjectEvent(ObjectEvent::Skipped { key, .. }, version)) = decoder().event(event.as_bytes()) else {
        panic!()
    };
    assert_eq!((key, version), (Some(Key { namespace: "b".into(), name: "a".into() }), Version(0)));
    for event in ["ADDED", "DELETED"].map(|kind| format!("{{\"object\":7,\"type\":\"{kind}\"}}")) {
        let Ok(Event::ObjectEvent(ObjectEvent::Skipped { key, .. }, _)) = decoder().event(event.as_bytes()) else {
            panic!()
        };
        assert_eq!(key, None);
    }
    let event = format!("{{\"object\":{SLICE},\"more\":[1],\"type\":\"DELETED\"}}");
    let Ok(Event::ObjectEvent(ObjectEvent::Delete(identity), Version(42))) = decoder().event(event.as_bytes()) else {
        panic!()
    };
    assert_eq!(&*identity.key.name, "web-1");
}

#[test]
fn writers_are_kept_once() {
    let mut decoder = decoder();
    let mut writer = |text: &str| match decoder.item(text.as_bytes()).0 {
        ObjectEvent::Upsert(item) => match item.object {
            Some(Object::Slice(slice)) => slice.origin.writer,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(&writer(SLICE), &writer(SLICE)));
}

#[test]
fn uids_differ_only_where_both_are_known() {
    let (a, b) = (Uid::of("0b5a6c7e-0000-4000-8000-00000000000a"), Uid::of("0b5a6c7e-0000-4000-8000-00000000000b"));
    assert!(a.is_other(b) && !a.is_other(a) && !a.is_other(Uid::of("")));
    assert!(Uid::of("not hexadecimal").is_other(Uid::of("not hexadecimal either")));
}

#[test]
fn a_shell_is_a_list_with_a_version() {
    let text = br#"{"kind":"ServiceList","items":[],"metadata":{"resourceVersion":"12","continue":"abc","remainingItemCount":3}}"#;
    assert_eq!(shell(text), Ok(Shell { version: Version(12), next: "abc".into() }));
    assert!(shell(br#"{"kind":"Status","metadata":{}}"#).is_err(), "a Status is no list");
    assert!(shell(b"7").is_err());
}

#[test]
fn a_node_tells_its_zone_and_no_more_than_it_says() {
    let mut decoder = Decoder::new(Kind::Node);
    let node = br#"{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"z1"}},"status":{"images":[]}}"#;
    let (ObjectEvent::Upsert(item), _) = decoder.item(node) else { panic!("an upsert") };
    assert_eq!(item.object, Some(Object::Node(NodeObject { zone: "z1".into(), ..NodeObject::default() })));
}

#[test]
fn what_is_shown_has_no_control_characters() {
    let text = r#"{"metadata":{"name":"a","namespace":"b","resourceVersion":"1\nx","labels":{"kubernetes.io/service-name":"a\u001b"},
        "managedFields":[{"manager":"x\nnodelb: all is well\u001b[2J","time":"2026-01-02T03:04:06Z"}]},"addressType":"IPv4",
        "endpoints":[{"addresses":["192.0.2.1"],"zone":"z\n","nodeName":"n\r"},{"addresses":["\n"]}],"ports":[{"name":"p\n","port":1}]}"#;
    let (ObjectEvent::Upsert(item), _) = decoder().item(text.as_bytes()) else { panic!("an upsert") };
    let (Some(Object::Slice(slice)), notices) = (item.object, item.notices) else { panic!("a slice") };
    assert_eq!(&*slice.origin.writer, "x\u{fffd}nodelb: all is well\u{fffd}[2J");
    let port = &slice.ports[0];
    let backend = &port.backends[0];
    let (node, zone) = (backend.node.clone().expect("named"), backend.zone.clone().expect("named"));
    let shown = [&*slice.origin.resource_version, &*slice.service.name, &*port.name, &*node, &*zone, &notices.join("")];
    assert!(shown.iter().all(|text| !text.contains(char::is_control)), "{shown:?}");
    let node = br#"{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"z\n"}}}"#;
    let (ObjectEvent::Upsert(item), _) = Decoder::new(Kind::Node).item(node) else { panic!("an upsert") };
    assert_eq!(item.object, Some(Object::Node(NodeObject { zone: "z\u{fffd}".into(), ..NodeObject::default() })));
}

#[test]
fn the_cluster_is_identified_by_its_own_service() {
    let mut decoder = Decoder::new(Kind::Service);
    let service = |namespace: &str| {
        format!(
            r#"{{"metadata":{{"name":"kubernetes","namespace":"{namespace}","uid":"0b5a-1"}},"spec":{{"clusterIP":"None"}}}}"#
        )
    };
    _ = decoder.item(service("shop").as_bytes());
    assert_eq!(decoder.take_cluster(), None);
    _ = decoder.item(service("default").as_bytes());
    assert_eq!((decoder.take_cluster().as_deref(), decoder.take_cluster()), (Some("0b5a-1"), None));
}
