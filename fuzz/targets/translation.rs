//! Sends arbitrary objects, one JSON object per line, through decoder, store, table and compiler to
//! maps in memory: no panic, no forbidden address in the maps, and no leak after all of them are
//! deleted.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::{Engine, EngineSizes};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_kube::api::decode::{Decode, Decoder, Kind, ListWatchEvent, Version};
use nodelb_kube::api::scope::Scope;
use nodelb_kube::source::store::{InMaps, Store};

const LIMITS: Limits = Limits { frontends: 64, services: 16, slots: 256, affinity: 16, outside: 0, source_ranges: 0 };

struct Node {
    store: Store,
    engine: Engine,
    maps: MemoryDatapath,
    now: Moment,
}

impl Node {
    fn new() -> Self {
        let maps = MemoryDatapath::new(LIMITS);
        let sources = BTreeSet::from([Source::Kubernetes]);
        let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
        let engine = Engine::new(config, maps.dump().expect("memory can always be read"));
        Self { store: Store::new(&Kind::SERVED.map(Scope::all), InMaps::default()), engine, maps, now: Moment(0) }
    }

    fn send(&mut self, kind: Kind, event: ListWatchEvent) {
        let mut changes: Vec<Change> = Vec::new();
        let number = usize::from(kind != Kind::Service);
        _ = self.store.apply(number, event, &mut changes);
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.now = self.now.plus(10_000);
        self.engine.reconcile(&mut self.maps, self.now);
    }

    fn list(&mut self, objects: &[u8], with_objects: bool) {
        for kind in [Kind::Service, Kind::EndpointSlice] {
            let mut decoder = Decoder::new(kind);
            self.send(kind, ListWatchEvent::ListStart { is_rewound: false });
            for object in objects.split(|byte| *byte == b'\n').filter(|_| with_objects) {
                self.send(kind, decoder.item(object));
            }
            self.send(kind, ListWatchEvent::ListDone(Version(1)));
        }
    }

    fn sizes(&mut self) -> EngineSizes {
        for _ in 0..100 {
            self.now = self.now.plus(10_000);
            self.engine.reconcile(&mut self.maps, self.now);
        }
        self.engine.sizes()
    }
}

fuzz_target!(|objects: &[u8]| {
    let mut node = Node::new();
    node.list(objects, true);
    let held = node.maps.dump().expect("memory can always be read");
    for slot in held.services.values().flat_map(|entry| entry.cluster.iter().chain(entry.local.iter())) {
        let addr = slot.addr.addr;
        let is_bad = addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || slot.addr.port == 0;
        assert!(!is_bad, "a connection would be sent to {}", slot.addr);
    }
    for address in held.frontends.keys() {
        assert!(!address.addr.is_loopback() && !address.addr.is_multicast(), "{address} would be translated");
    }
    // Twice, because a list that lacks most objects is not accepted the first time.
    (0..2).for_each(|_| node.list(objects, false));
    let mut empty = Node::new();
    empty.list(objects, false);
    assert_eq!(node.sizes(), empty.sizes());
});
