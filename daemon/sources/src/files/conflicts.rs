//! Finds services of the directory that claim the same address; only one becomes the owner. For `nodelb check-config`,
//! before a file is put into the directory of a running daemon. Pure.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::Service;
use nodelb_core::text::listed;

use super::content::FileProblem;
use super::merge::{Contents, Merged};
use crate::document::Problem;

/// The maximum number of addresses in a problem about two services.
const SHOWN: usize = 3;

/// One problem for each two services that claim the same addresses, reported in the file of the one that would not get
/// them if both were new.
pub(super) fn find(contents: &Contents, merged: &Merged) -> Vec<FileProblem> {
    let mut services: Vec<&Arc<Service>> = merged.services.values().collect();
    services.sort_by_key(|service| (service.created.unwrap_or(0), &service.origin.object, &service.name));
    let mut owners: BTreeMap<L4Addr, &Arc<Service>> = BTreeMap::new();
    let mut problems = Vec::new();
    for service in services {
        let mut lost: BTreeMap<_, (&Arc<Service>, Vec<L4Addr>)> = BTreeMap::new();
        for port in &service.ports {
            for address in port.frontends.iter().map(|frontend| frontend.l4(port.protocol)) {
                let owner = *owners.entry(address).or_insert(service);
                if owner.name != service.name {
                    lost.entry(&owner.name).or_insert((owner, Vec::new())).1.push(address);
                }
            }
        }
        problems.extend(lost.into_values().map(|(owner, addresses)| problem(contents, service, owner, &addresses)));
    }
    problems
}

fn problem(contents: &Contents, service: &Service, owner: &Service, addresses: &[L4Addr]) -> FileProblem {
    let path = Path::new(&*service.origin.object);
    let line = contents.get(path).and_then(|content| {
        let found = content.services.iter().find(|found| found.value.name == service.name);
        found.and_then(|found| found.line)
    });
    let message = format!(
        "address conflict: {} of service {} is claimed by {} in {} too; only one of them is served there; remove \
         the address from one of the two",
        listed(addresses, SHOWN),
        service.name,
        owner.name,
        owner.origin.object
    );
    FileProblem { path: path.to_path_buf(), problem: Problem { line, message } }
}
