//! The measured parts of nodelb, with fixed inputs.

use std::hint::black_box;
use std::sync::Arc;

use imbl::OrdSet;
use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::compile::select::Checks;
use nodelb_core::compile::{CompileContext, compile};
use nodelb_core::config::PacketsConfig;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{Service, Slice, Source};
use nodelb_core::state::entries::MapState;
use nodelb_core::state::map_ops::{self, Touched};
use nodelb_core::table::apiservers::Apiservers;
use nodelb_kube::api::decode::{Decode, Decoder, Kind};
use nodelb_kube::api::objects as decoded;
use nodelb_kube::api::splitter::{Lines, Piece, Splitter};
use nodelb_kube::api::translate::{self, Reader};
use serde_json::{Value, json};

use crate::node::{Accepting, Node};
use crate::objects::{endpoint, name, service, slice};
use crate::services;

/// A part of nodelb.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Prepares the inputs; the result is what is measured.
    pub(crate) prepare: fn() -> Box<dyn FnMut()>,
}

/// The size of a chunk of a response, in bytes.
const CHUNK: usize = 16 << 10;
const SERVICES: u32 = 1_000;
const SLICES: u32 = 100;
const ENDPOINTS: u32 = 100;

pub(crate) const PARTS: &[Part] = &[
    Part { name: "split", what: "Cuts a list of 1,000 Services into objects", prepare: split },
    Part { name: "decode-services", what: "Decodes and translates 1,000 Services", prepare: decode_services },
    Part {
        name: "decode-slices",
        what: "Decodes and translates 100 EndpointSlices of 100 endpoints",
        prepare: decode_slices,
    },
    Part {
        name: "decode-events",
        what: "Cuts a watch into 100 events of such EndpointSlices, and decodes them",
        prepare: decode_events,
    },
    Part { name: "translate-services", what: "Translates 1,000 decoded Services", prepare: translate_services },
    Part { name: "translate-slices", what: "Translates 100 decoded EndpointSlices", prepare: translate_slices },
    Part {
        name: "compile",
        what: "Compiles 1,000 services of one endpoint, and one of 10,000",
        prepare: compile_services,
    },
    Part {
        name: "diff",
        what: "Compares 1,000 services with empty maps, and with maps that differ in each list",
        prepare: diff,
    },
    Part { name: "bulk-start", what: "A round with 10,000 new services of one endpoint each", prepare: bulk_start },
    Part {
        name: "one-endpoint",
        what: "100 rounds, in each of which a service of 10,000 endpoints gains or loses one",
        prepare: one_endpoint,
    },
];

/// The object with what an apiserver adds to it.
fn stored(mut object: Value, number: u32) -> String {
    let metadata = &mut object["metadata"];
    metadata["uid"] = format!("7c0f5f3e-0000-4000-8000-{number:012x}").into();
    metadata["resourceVersion"] = (1_000_000 + number).to_string().into();
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    metadata["managedFields"] = json!([{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app.kubernetes.io/name": {}}}, "f:spec": {"f:ports": {}}}}]);
    object.to_string()
}

fn service_objects() -> Vec<String> {
    let address = |number| format!("10.96.{}.{}", number / 250, 1 + number % 250);
    (0..SERVICES).map(|number| stored(service(&name(number), &address(number)), number)).collect()
}

fn slice_objects() -> Vec<String> {
    let of = |number| {
        let endpoints: Vec<Value> = (0..ENDPOINTS).map(|place| endpoint(number, place)).collect();
        stored(slice(&name(number), "many", &endpoints), number)
    };
    (0..SLICES).map(of).collect()
}

fn split() -> Box<dyn FnMut()> {
    let list = format!(
        "{{\"kind\":\"ServiceList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"1\"}},\"items\":[{}]}}",
        service_objects().join(",")
    );
    Box::new(move || {
        let (mut splitter, mut found) = (Splitter::default(), 0);
        for chunk in list.as_bytes().chunks(CHUNK) {
            splitter.feed(chunk, |piece| found += u32::from(matches!(piece, Piece::Object(_)))).unwrap();
        }
        assert_eq!(found, SERVICES);
    })
}

fn decode(kind: Kind, objects: Vec<String>) -> Box<dyn FnMut()> {
    Box::new(move || {
        let mut decoder = Decoder::new(kind);
        for object in &objects {
            black_box(decoder.item(object.as_bytes()));
        }
    })
}

fn decode_services() -> Box<dyn FnMut()> {
    decode(Kind::Service, service_objects())
}

fn decode_slices() -> Box<dyn FnMut()> {
    decode(Kind::EndpointSlice, slice_objects())
}

fn decode_events() -> Box<dyn FnMut()> {
    let events = slice_objects().into_iter().map(|object| format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n"));
    let response: String = events.collect();
    Box::new(move || {
        let (mut lines, mut decoder) = (Lines::default(), Decoder::new(Kind::EndpointSlice));
        for chunk in response.as_bytes().chunks(CHUNK) {
            let decode = |piece: Piece<'_>| {
                let Piece::Object(event) = piece else { panic!("not an event") };
                black_box(decoder.event(event).unwrap());
            };
            lines.feed(chunk, decode).unwrap();
        }
    })
}

fn reader() -> Reader {
    Reader::new(Source::Kubernetes, "Service production/service".into())
}

fn translate_services() -> Box<dyn FnMut()> {
    let objects: Vec<decoded::Service> =
        service_objects().iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let mut reader = reader();
    Box::new(move || objects.iter().for_each(|object| drop(black_box(translate::service(object, &mut reader)))))
}

fn translate_slices() -> Box<dyn FnMut()> {
    let objects: Vec<decoded::EndpointSlice> =
        slice_objects().iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let mut reader = reader();
    Box::new(move || objects.iter().for_each(|object| drop(black_box(translate::slice(object, &mut reader)))))
}

/// Services with their slices: 1,000 of one endpoint, and one of 10,000.
fn described() -> Vec<(Service, Arc<Slice>)> {
    let sizes = std::iter::repeat_n(1, SERVICES as usize).chain([10_000]);
    let of = |(number, size)| {
        let backends = (0..size).map(services::backend);
        let (Change::UpsertService(service), Change::UpsertSlice(slice)) =
            (services::service(number, Protocol::Udp), services::slice(number, Protocol::Udp, backends))
        else {
            unreachable!("they are a service and a slice")
        };
        (service, Arc::new(slice))
    };
    (0..).zip(sizes).map(of).collect()
}

fn compile_services() -> Box<dyn FnMut()> {
    let described = described();
    Box::new(move || {
        let context = CompileContext {
            node: &NodeFacts::default(),
            node_addrs: &OrdSet::new(),
            guard: &Guard::default(),
            apiservers: &Apiservers::default(),
            checks: Checks::default(),
            drains: None,
            packets: PacketsConfig::default(),
        };
        for (service, slice) in &described {
            black_box(compile(service, std::slice::from_ref(slice), &context));
        }
    })
}

fn diff() -> Box<dyn FnMut()> {
    let state = |first: u32| {
        let mut node = Node::new(Accepting);
        let changes = (0..SERVICES).flat_map(|number| {
            let backends = [services::backend(first + number)].into_iter();
            [services::service(number, Protocol::Udp), services::slice(number, Protocol::Udp, backends)]
        });
        node.apply(changes.chain([services::synced()]));
        node.engine.snapshot(Moment(0)).desired
    };
    let (empty, before, desired) = (MapState::default(), state(1_000_000), state(0));
    let mut touched = Touched {
        services: desired.services.keys().copied().collect(),
        frontends: desired.frontends.keys().copied().collect(),
        ..Touched::default()
    };
    Box::new(move || {
        touched.settle();
        for realised in [&empty, &before] {
            let ops: usize = map_ops::puts(&desired, realised, &touched).iter().map(Vec::len).sum();
            assert!(ops >= SERVICES as usize);
        }
    })
}

fn bulk_start() -> Box<dyn FnMut()> {
    let (mut node, mut changes) = (Node::new(Accepting), services::single_endpoint_services(10_000));
    Box::new(move || node.apply(changes.drain(..)))
}

fn one_endpoint() -> Box<dyn FnMut()> {
    let mut node = Node::new(Accepting);
    let of = |count: u32| services::slice(0, Protocol::Udp, (0..count).map(services::backend));
    node.apply([services::service(0, Protocol::Udp), of(10_000), services::synced()]);
    let mut changes: Vec<Change> = (0..100).map(|round| of(10_001 - round % 2)).collect();
    Box::new(move || changes.drain(..).for_each(|change| node.apply([change])))
}
