//! Failed health checks never empty a service that has a healthy backend, and recovery restores the
//! state exactly.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::compile::select::Choice;
use nodelb_core::model::health_check::Quarantine;
use nodelb_core::model::service::{BackendState, PortKey};
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use proptest::prelude::*;

use crate::cases;
use crate::model::Host;
use crate::world::{changes, facts, host};

fn host_after(changes: impl IntoIterator<Item = Change>) -> Host {
    let mut host = host();
    host.send(changes);
    host.send_synced();
    host.settle();
    host
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn unhealthy_backends_are_used_only_where_there_is_no_other(changes in changes(32)) {
        let host = host_after(changes);
        let snapshot = host.engine.snapshot(host.now);
        let rows = reports::backends(&snapshot, &Filter::default());
        let ports: BTreeSet<_> = rows.iter().map(|row| (&row.service, &row.port, row.address.protocol, row.address.addr.family())).collect();
        for port in ports {
            let of_port = |row: &&nodelb_report::explain::rows::BackendReport| {
                (&row.service, &row.port, row.address.protocol, row.address.addr.family()) == port
            };
            let usable = |state| rows.iter().filter(of_port).filter(move |row| row.choice != Choice::Refused && row.state == state);
            let selected = |state| usable(state).filter(|row| row.choice == Choice::Selected).count();
            let check = snapshot.facts.owner(port.0).and_then(|(service, _)| service.health_check.clone());
            let [active, terminating, quarantined] =
                [BackendState::Active, BackendState::Terminating, BackendState::Quarantined].map(|state| usable(state).count());
            prop_assert!(check.is_some() || quarantined == 0, "in quarantine without a check");
            if active > 0 {
                prop_assert!(selected(BackendState::Active) > 0);
                prop_assert_eq!(selected(BackendState::Terminating) + selected(BackendState::Quarantined), 0);
            } else if terminating > 0 {
                prop_assert_eq!((selected(BackendState::Terminating), selected(BackendState::Quarantined)), (terminating, 0));
            } else {
                let is_allowed = check.is_some_and(|check| check.last_resort);
                prop_assert_eq!(selected(BackendState::Quarantined), if is_allowed { quarantined } else { 0 });
            }
            // The next start knows of a backend in the maps whether it had passed its checks.
            let is_of_port = |key: &PortKey| (&key.service, &key.port, key.protocol, key.family) == port;
            let entry = snapshot.ports().find(|(_, key)| is_of_port(key)).and_then(|(id, _)| snapshot.realised.services.get(&id));
            let is_last_resort = entry.is_some_and(|entry| entry.is_last_resort);
            prop_assert_eq!(is_last_resort, selected(BackendState::Quarantined) > 0);
        }
    }

    /// Backends of every service fail and recover, interleaved with all other changes in any order.
    #[test]
    fn recovery_leaves_no_trace(changes in changes(32)) {
        let mut host = host_after(changes.clone());
        for change in facts(&changes) {
            if let Change::Quarantine(name, _) = change {
                host.send([Change::Quarantine(name, Quarantine::new())]);
                host.settle();
            }
        }
        let untouched = host_after(changes.into_iter().filter(|change| !matches!(change, Change::Quarantine(..))));
        prop_assert_eq!(host.text(), untouched.text());
        prop_assert_eq!(host.engine.sizes(), untouched.engine.sizes());
    }
}
