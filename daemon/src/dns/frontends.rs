//! The frontends that the files describe. The latest snapshot may lack them when an answer is to be judged. Pure.

use std::collections::BTreeMap;

use nodelb_core::change::Change;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{ServiceName, ServicePort};

#[derive(Debug, Default)]
pub(super) struct Frontends {
    by_service: BTreeMap<ServiceName, Vec<L4Addr>>,
    /// The number of services of each.
    services: BTreeMap<L4Addr, usize>,
}

impl Frontends {
    pub(super) fn has(&self, address: L4Addr) -> bool {
        self.services.contains_key(&address)
    }

    /// Records the services that these changes of the file source are about.
    pub(super) fn note(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::UpsertService(service) => {
                    let of_port = |port: &ServicePort| -> Vec<L4Addr> {
                        port.frontends.iter().map(|spec| spec.l4(port.protocol)).collect()
                    };
                    self.replace(&service.name, service.ports.iter().flat_map(of_port).collect());
                }
                Change::RemoveService(name, _) => self.replace(name, Vec::new()),
                _ => {}
            }
        }
    }

    fn replace(&mut self, service: &ServiceName, frontends: Vec<L4Addr>) {
        frontends.iter().for_each(|address| *self.services.entry(*address).or_default() += 1);
        for address in self.by_service.remove(service).unwrap_or_default() {
            let left = self.services.remove(&address).unwrap_or_default().saturating_sub(1);
            if left > 0 {
                self.services.insert(address, left);
            }
        }
        if !frontends.is_empty() {
            self.by_service.insert(service.clone(), frontends);
        }
    }
}
