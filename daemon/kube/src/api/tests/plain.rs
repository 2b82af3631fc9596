use std::fmt::Debug;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde::de::IgnoredAny;

use super::*;
use crate::api::objects::Envelope;
use crate::api::objects::{EndpointSlice, Node, Service};

/// As an apiserver writes it, with all that a Service may have.
const SERVICE: &str = r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","namespace":"shop","uid":"0b5a6c7e-0000-4000-8000-00000000000a","resourceVersion":"42","generation":3,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web","topology.kubernetes.io/zone":"a"},"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"kind\":\"Service\"}\n","docs":"https://example.com/?a=1\u0026b=2","nodelb.io/health-check":"tcp"},"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}}]},"spec":{"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":"http","nodePort":30080}],"selector":{"app":"web"},"clusterIP":"192.0.2.1","clusterIPs":["192.0.2.1","2001:db8::1"],"type":"LoadBalancer","externalIPs":["198.51.100.1"],"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":60}},"loadBalancerSourceRanges":["203.0.113.0/24"],"internalTrafficPolicy":"Cluster","externalTrafficPolicy":"Local","healthCheckNodePort":30081},"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.2","ipMode":"VIP","ports":null}]}}}"#;

const SLICE: &str = r#"{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"web-1","generateName":"web-","namespace":"shop","labels":{"kubernetes.io/service-name":"web"},"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-02T03:04:05Z"},"ownerReferences":[{"kind":"Service","controller":true}]},"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","namespace":"shop","name":"web-a","uid":"0b5a"},"nodeName":"n1","zone":"a"},{"addresses":["192.0.2.2"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","namespace":"shop","name":"web-b","uid":"0b5b"},"nodeName":"n2","zone":"b"},{"addresses":["192.0.2.3","192.0.2.4"],"conditions":{"ready":false},"hostname":"c","nodeName":null,"hints":{"forZones":[{"name":"a"}],"forNodes":null}},{"addresses":["192.0.2.5"],"conditions":null,"hints":{"forZones":[{"name":"a"}]}},{"addresses":["192.0.2.6"],"conditions":null,"hints":{"forZones":[{"name":"a"}]}},{"addresses":[],"deprecatedTopology":{"a":"b"}},{}],"ports":[{"name":"","port":8080,"protocol":"TCP","appProtocol":null},{"name":"dns","port":null}]}"#;

const NODE: &str = r#"{"metadata":{"name":"n1","deletionTimestamp":"2026-01-02T03:04:05Z","labels":{"topology.kubernetes.io/zone":"a"}},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}],"images":[{"sizeBytes":1.5e3}],"capacity":{"cpu":"4"}}}"#;

/// What is decoded here is what `serde_json` decodes. Returns whether it is decoded here.
fn agrees<T: for<'a> FromPlain<'a> + Debug + PartialEq>(text: &str) -> bool {
    let plain = decode::<T>(text);
    if let Some(plain) = &plain {
        assert_eq!(plain, &serde_json::from_str::<T>(text).unwrap_or_else(|error| panic!("{error}: {text}")), "{text}");
    }
    let event = format!("{{\"type\":\"ADDED\",\"object\":{text}}}");
    // Other texts may begin with an object, and go on with further fields of the event.
    if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        let in_event = decode::<Envelope<'_, T>>(&event);
        assert_eq!(in_event.is_some(), plain.is_some(), "{text}");
        assert_eq!(in_event.map(|event| event.object), plain, "{text}");
    }
    agrees_as_event::<T>(&event);
    agrees_as_event::<T>(text);
    decode::<T>(text).is_some()
}

fn agrees_as_event<T: for<'a> FromPlain<'a> + Debug + PartialEq>(text: &str) {
    if let Some(plain) = decode::<Envelope<'_, T>>(text) {
        let json: Envelope<'_, T> = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!((plain.kind, plain.object), (json.kind, json.object), "{text}");
    }
}

fn all_agree(text: &str) -> [bool; 3] {
    [agrees::<Service>(text), agrees::<EndpointSlice>(text), agrees::<Node>(text)]
}

/// Otherwise, events would take three times as long, and no other test would fail.
#[test]
fn objects_of_an_apiserver_are_plain() {
    assert!(agrees::<Service>(SERVICE) && agrees::<EndpointSlice>(SLICE));
    assert!(!agrees::<Node>(NODE), "a fraction is left to serde_json");
    assert!(agrees::<Node>(&NODE.replace("1.5e3", "1500")));
    let bookmark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}"#;
    assert!(decode::<Envelope<'_, EndpointSlice>>(bookmark).is_some());
}

/// A field of what is ignored may be repeated a million times in one object.
#[test]
fn a_pattern_does_not_grow_with_repeated_fields() {
    let reference =
        |count| format!("{{\"endpoints\":[{{\"targetRef\":{{{}}}}}]}}", vec!["\"uid\":\"\""; count].join(","));
    assert!(agrees::<EndpointSlice>(&reference(8)));
    assert!(!agrees::<EndpointSlice>(&reference(9)));
}

/// The text is not an object, but what it makes of an event is one. Found by the property test below.
#[test]
fn an_object_with_further_fields_of_its_event() {
    assert!(!agrees::<EndpointSlice>("{},\"a\":null"));
}

#[test]
fn what_is_not_plain_is_left_to_serde_json() {
    for text in [
        "",
        " {}",
        "{} ",
        "{}}",
        "[]",
        "7",
        "{,}",
        "{\"a\":1,}",
        "{\"a\" :1}",
        "{\"a\":01}",
        "{\"a\":-1}",
        "{\"a\":1.0}",
        "{\"a\":tru}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u00g1\"}",
        "{\"a\":\"\\u041\"}",
        "{\"a\":\"\\u004",
        "{\"a\":\"\n\"}",
        "{\"a\":[1,]}",
        "{\"a\":[1}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a",
        "{\"ports\":7}",
        "{\"metadata\":{\"name\":\"\\n\"}}",
        "{\"metadata\":{},\"metadata\":{}}",
        "{\"endpoints\":[{\"zone\":\"a\",\"zone\":\"b\"}]}",
        "{\"endpoints\":[{\"zone\":7}]}",
        "{\"ports\":[{\"port\":99999}]}",
    ] {
        let [_, slice, _] = all_agree(text);
        assert!(!slice, "{text}");
    }
}

#[test]
fn nesting_does_not_exhaust_the_stack() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(agrees::<EndpointSlice>(&nested(MAX_DEPTH as usize)));
    assert!(!agrees::<EndpointSlice>(&nested(MAX_DEPTH as usize + 1)));
    let object = format!("{{\"a\":{}", "{\"a\":[".repeat(1 << 20));
    assert!(decode::<EndpointSlice>(&object).is_none());
}

#[test]
fn too_many_endpoints_are_left_to_serde_json() {
    let slice = |count| format!("{{\"endpoints\":[{}]}}", vec!["{}"; count].join(","));
    assert!(agrees::<EndpointSlice>(&slice(10_000)));
    assert!(!agrees::<EndpointSlice>(&slice(10_001)));
}

#[test]
fn the_end_of_a_text_is_found_at_each_place() {
    for length in 0..20 {
        for mark in ["\"", "\\", "\u{1f}", "\0", "\n"] {
            for other in [" ", "!", "#", "[", "]", "\u{7f}", "é", "\u{10ffff}"] {
                let text = other.repeat(length);
                for after in ["", "\"", "\\\\\\\\\\\\\\\\\\"] {
                    assert_eq!(
                        end_of_text(format!("{text}{mark}{after}").as_bytes(), 0),
                        text.len(),
                        "{text:?}{mark:?}"
                    );
                }
                assert_eq!(end_of_text(text.as_bytes(), 0), text.len());
            }
        }
    }
}

/// Parts of JSON that change its meaning when they are put somewhere in it.
const PARTS: &[&str] = &[
    "null",
    "true",
    "7",
    "-7",
    "0",
    "07",
    "1.5",
    "65536",
    "18446744073709551616",
    "\"\"",
    "\"a\"",
    "\"",
    "\\",
    "\\\"",
    "\\u0041",
    "\\ud800",
    "\n",
    " ",
    "\u{1}",
    "é",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "{}",
    "[]",
    "\"zone\":\"z\",",
    "\"nodeName\":null,",
    "\"conditions\":{},",
    "\"endpoints\":[],",
    "\"type\":\"x\",",
    "\"object\":{},",
    "\"metadata\":null,",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_changed_object_is_decoded_as_by_serde_json(
        text in select(vec![SERVICE, SLICE, NODE]),
        changes in prop::collection::vec((any::<Index>(), 0_usize..12, select(PARTS), any::<Option<(Index, Index)>>()), 1..4),
    ) {
        let mut text: Vec<char> = text.chars().collect();
        for (at, removed, part, copied) in changes {
            let at = at.index(text.len() + 1);
            let end = text.len().min(at + removed);
            // A copy of another part may contain the same field again.
            let put: Vec<char> = match copied {
                Some((from, to)) if !text.is_empty() => {
                    let (from, to) = (from.index(text.len()), to.index(text.len()));
                    text[from.min(to)..from.max(to)].to_vec()
                }
                _ => part.chars().collect(),
            };
            text.splice(at..end, put);
        }
        let text: String = text.into_iter().collect();
        all_agree(&text);
        agrees_as_event::<EndpointSlice>(&text);
    }

    /// Values are swapped with each other, so that most texts are valid.
    #[test]
    fn other_values_are_decoded_as_by_serde_json(
        values in prop::collection::vec((any::<Index>(), any::<Index>(), any::<bool>()), 1..6),
    ) {
        let mut text = SLICE.to_owned();
        for (at, from, is_whole) in values {
            let places: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
            let value = |at: usize| {
                let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<IgnoredAny>();
                values.next().and_then(Result::ok).map(|_| &text[at..at + values.byte_offset()])
            };
            let (at, from) = (places[at.index(places.len())], places[from.index(places.len())]);
            let (Some(old), Some(new)) = (value(at), value(from)) else { continue };
            if new.len() > 2_000 {
                continue;
            }
            let new = if is_whole { new.to_owned() } else { format!("{old},\"nodeName\":{new}") };
            text.replace_range(at..at + old.len(), &new);
        }
        all_agree(&text);
    }
}
