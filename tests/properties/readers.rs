//! A BPF program that has loaded a view or a service id may still use it after the owner of the maps has published a
//! new one: the data that it reads must not change meanwhile. The rounds take time, so the clock advances.

use std::collections::BTreeMap;

use nodelb_core::datapath::Limits;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{ServiceId, Slot};
use nodelb_core::state::runs::{REST_MILLIS, Run};
use proptest::prelude::*;

use crate::cases;
use crate::memory_maps;
use crate::model::Host;
use crate::world::{SOURCES, changes, guard};

/// A program that loaded its data while the maps still referred to it.
struct Reader {
    what: Read,
    /// The end of the round that removed the last reference.
    left: Moment,
}

enum Read {
    View(Run, Vec<Slot>),
    Id(ServiceId, String),
}

/// Data that a program may have loaded before the round.
struct Before {
    views: BTreeMap<ServiceId, [Run; 2]>,
    names: BTreeMap<ServiceId, String>,
}

impl Before {
    fn of(host: &Host) -> Self {
        let names = host.engine.snapshot(host.now);
        let names = names.ports().map(|(id, key)| (id, key.to_string())).collect();
        Self { views: host.maps.maps.views().collect(), names }
    }

    /// Programs that still use what this round has unpublished.
    fn readers(self, host: &Host, slots: &BTreeMap<ServiceId, [Vec<Slot>; 2]>) -> Vec<Reader> {
        let after = Self::of(host);
        let mut readers = Vec::new();
        for (id, runs) in &self.views {
            for (which, run) in runs.iter().enumerate() {
                if run.len > 0 && after.views.get(id).is_none_or(|runs| runs[which] != *run) {
                    let what = Read::View(*run, slots[id][which].clone());
                    readers.push(Reader { what, left: host.now });
                }
            }
        }
        for (id, name) in self.names.into_iter().filter(|(id, _)| !after.names.contains_key(id)) {
            readers.push(Reader { what: Read::Id(id, name), left: host.now });
        }
        readers
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn data_in_use_by_a_program_does_not_change(
        rounds in prop::collection::vec((changes(6), 0..3_000_u64, 0..1_500_u64), 2..12),
        slots in 4..64_u32,
        services in 3..12_u32,
    ) {
        let limits = Limits { frontends: 64, services, slots, affinity: 1, outside: 0, source_ranges: 0 };
        let mut host = Host::new(memory_maps::create(limits, None), SOURCES, guard());
        host.send_synced();
        host.round();
        let mut readers: Vec<Reader> = Vec::new();
        for (changes, takes, pause) in rounds {
            let before = Before::of(&host);
            let slots = before.views.iter().map(|(id, runs)| (*id, runs.map(|run| host.maps.maps.slots_at(run)))).collect();
            // `Host::round` advances the clock before it starts.
            let began = host.now.plus(1);
            host.send(changes);
            host.round_millis = takes;
            host.round();
            // The writes happened after the start of the round: readers that left less than a grace
            // period before may still read.
            for Reader { what, left } in &readers {
                if left.plus(REST_MILLIS) <= began {
                    continue;
                }
                match what {
                    Read::View(run, slots) => prop_assert_eq!(&host.maps.maps.slots_at(*run), slots, "{:?}", run),
                    Read::Id(id, name) => {
                        let owner = host.engine.snapshot(host.now).service_of(*id);
                        prop_assert!(owner.as_ref().is_none_or(|owner| owner == name), "{} was {}, is {:?}", id, name, owner);
                    }
                }
            }
            readers.extend(before.readers(&host, &slots));
            host.now = host.now.plus(pause);
        }
    }
}
