//! No new connection reaches a drained backend, and the end of a drain restores the state exactly.

use nodelb_core::change::Change;
use nodelb_core::model::drain::{self, DrainCause, Drains};
use proptest::prelude::*;

use crate::cases;
use crate::model::Host;
use crate::world::{changes, facts, settled};

/// The drained backends that the maps offer. No service is protected.
fn offered(host: &Host) -> Vec<String> {
    let snapshot = host.engine.snapshot(host.now);
    let mut offered = Vec::new();
    for (id, entry) in snapshot.realised.services.iter() {
        let Some(owner) = snapshot.owners.get(id) else { continue };
        let Some(drains) = snapshot.facts.drains(&owner.key.service) else { continue };
        let slots = entry.cluster.iter().chain(&*entry.local).map(|slot| slot.addr);
        let drained = slots.filter(|at| drain::find(drains, (at.addr, at.port)).is_some());
        offered.extend(drained.map(|at| format!("{} {at}", owner.key)));
    }
    offered
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn a_drained_backend_is_in_no_list(changes in changes(32), restarts in any::<bool>()) {
        let mut host = settled(&changes);
        prop_assert_eq!(offered(&host), Vec::<String>::new());
        if restarts {
            // As the daemon does: the drains before any source has reported anything.
            host.restart();
            host.send(changes.iter().filter(|change| matches!(change, Change::Drains(..))).cloned());
            for change in facts(&changes) {
                host.send([change]);
                host.round();
                prop_assert_eq!(offered(&host), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn the_end_of_drains_leaves_no_trace(changes in changes(32)) {
        let mut host = settled(&changes);
        for change in facts(&changes) {
            if let Change::Drains(name, ..) = change {
                host.send([Change::Drains(name, Drains::new(), Some(DrainCause::Ended("undrain by root".into())))]);
                host.settle();
            }
        }
        let others: Vec<Change> = changes.into_iter().filter(|change| !matches!(change, Change::Drains(..))).collect();
        let untouched = settled(&others);
        prop_assert_eq!(host.text(), untouched.text());
        prop_assert_eq!(host.engine.sizes(), untouched.engine.sizes());
    }
}
