//! The backends of a service port that new connections reach, where the maps do not contain what its source describes: the
//! source has not reported everything, or the maps did not accept a change.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::rows::BackendReport;
use nodelb_core::compile::select::Choice;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{BackendState, PortKey};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{ServiceEntry, backends_of};
use nodelb_core::state::owner::hash_of;

/// Changes the choices of the rows of a port to what connections get, and adds rows for backends that its source does not
/// describe.
pub(super) fn correct(snapshot: &Snapshot, key: &PortKey, rows: &mut Vec<BackendReport>) {
    let Some(entry) = entry(snapshot, key) else { return };
    let mut unknown: BTreeSet<L4Addr> = backends_of(&entry.cluster).map(|(address, _)| address).collect();
    for row in rows.iter_mut() {
        row.choice = match (unknown.remove(&row.address), row.choice) {
            (true, Choice::Selected) => Choice::Selected,
            (true, _) => Choice::Held,
            (false, Choice::Selected) => Choice::Pending,
            (false, choice) => choice,
        };
    }
    rows.extend(unknown.into_iter().map(|address| BackendReport {
        state: BackendState::Active,
        reason: Some("in use as before the start".into()),
        ..held_backend(key, address)
    }));
}

/// The row of a backend in use that no slice contains any more.
pub(super) fn held_backend(key: &PortKey, address: L4Addr) -> BackendReport {
    BackendReport {
        address,
        service: key.service.clone(),
        port: Arc::clone(&key.port),
        state: BackendState::NotReady,
        weight: 1,
        node: Arc::default(),
        zone: Arc::default(),
        choice: Choice::Held,
        is_drained: false,
        origin: Arc::default(),
        reason: None,
    }
}

/// The entry of the maps that connections to the addresses of the port lead to, if it differs from the desired one.
fn entry<'a>(snapshot: &'a Snapshot, key: &PortKey) -> Option<&'a ServiceEntry> {
    let (service, _) = snapshot.facts.owner(&key.service)?;
    let ports = service.ports.iter().filter(|port| port.name == key.port && port.protocol == key.protocol);
    let addresses = ports.flat_map(|port| port.frontends.iter().map(|frontend| frontend.l4(port.protocol)));
    let mut addresses = addresses.filter(|address| address.addr.family() == key.family);
    let address = addresses.find(|address| snapshot.realised.serves(*address, hash_of(&key.service)))?;
    let id = snapshot.realised.frontends.get(&address)?.service;
    let entry = snapshot.realised.services.get(&id)?;
    let is_as_desired = snapshot.desired.services.get(&id).is_some_and(|desired| desired.cluster == entry.cluster);
    (!is_as_desired).then_some(&**entry)
}
