//! The contents of the state file: the addresses that worked, and their cluster. Decides when to write the file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use nodelb_core::messages;
use nodelb_core::model::moment::Moment;

use crate::apiserver::address::{Address, Host, Server};
use crate::apiserver::authorities::Authorities;
use crate::apiserver::pool::{Candidate, MOST_LEARNED, Pool, Remembered};
use crate::apiserver::remember::{self, Memory};
use crate::apiserver::timeouts::PoolTimeouts;

#[derive(Debug)]
pub(super) struct Keeper {
    directory: PathBuf,
    timeouts: PoolTimeouts,
    /// The uid of `default/kubernetes`, from the file or from the latest session.
    pub(super) cluster: Option<String>,
    /// The parts of the file that must be written as soon as they change.
    saved: Option<Fingerprint>,
    save_at: Option<Moment>,
}

/// The certificate authorities, the uid and the servers in the file.
type Fingerprint = (Vec<String>, Option<String>, BTreeSet<Server>);

impl Keeper {
    pub(super) fn new(directory: PathBuf, timeouts: PoolTimeouts) -> Self {
        Self { directory, timeouts, cluster: None, saved: None, save_at: None }
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    /// The addresses in the file, if they belong to this cluster.
    pub(super) fn loaded(&mut self, memory: Memory, authorities: &Authorities) -> Vec<Remembered> {
        if !memory.is_of(authorities) {
            tracing::info!(
                message_id = %messages::CLUSTER_CHANGED,
                "the remembered apiserver addresses are not used: they are of a cluster with other certificate authorities"
            );
            return Vec::new();
        }
        self.cluster.clone_from(&memory.cluster);
        self.saved = Some(fingerprint(&memory));
        memory.apiservers
    }

    /// The time of the next write if the addresses do not change.
    pub(super) fn due(&self) -> Option<Moment> {
        self.save_at
    }

    /// Returns the work that updates the file, if this is due. The work may block.
    pub(super) fn save(
        &mut self,
        (now, unix): (Moment, u64),
        authorities: &Authorities,
        pool: &Pool,
        resolved: &BTreeMap<Address, Vec<SocketAddr>>,
    ) -> Option<impl FnOnce() -> Result<(), String> + Send + 'static> {
        // Before an address has worked in this run, there is nothing to add and no proof that the cluster is the same.
        if pool.candidates().iter().all(|candidate| candidate.worked.is_none()) {
            return None;
        }
        let worked = |candidate: &Candidate| {
            let ago = candidate.worked.map(|worked| now.0.saturating_sub(worked.0) / 1_000);
            ago.map(|ago| unix.saturating_sub(ago)).or(candidate.worked_before)
        };
        let mut apiservers = Vec::new();
        for candidate in pool.candidates() {
            let Some(worked) = worked(candidate) else { continue };
            apiservers.extend(by_address(candidate, resolved).map(|server| Remembered { server, worked }));
        }
        apiservers.truncate(2 * MOST_LEARNED);
        let memory = Memory { authorities: authorities.names(), cluster: self.cluster.clone(), apiservers };
        let fingerprint = fingerprint(&memory);
        if self.saved.as_ref() == Some(&fingerprint) && self.save_at.is_none_or(|at| now < at) {
            self.save_at.get_or_insert(now.plus(self.timeouts.save_every));
            return None;
        }
        self.saved = Some(fingerprint);
        self.save_at = Some(now.plus(self.timeouts.save_every));
        let directory = self.directory.clone();
        Some(move || {
            remember::save(&directory, &memory)
                .map_err(|error| format!("writing into {}: {error}", directory.display()))
        })
    }
}

fn fingerprint(memory: &Memory) -> Fingerprint {
    let servers = memory.apiservers.iter().map(|remembered| remembered.server.clone()).collect();
    (memory.authorities.clone(), memory.cluster.clone(), servers)
}

/// Replaces a name with its addresses, because the name may not resolve after the next start.
fn by_address<'a>(
    candidate: &'a Candidate,
    resolved: &'a BTreeMap<Address, Vec<SocketAddr>>,
) -> impl Iterator<Item = Server> + 'a {
    let Server { address, tls_server_name } = &candidate.server;
    let (itself, name) = match &address.host {
        Host::Ip(_) => (Some(candidate.server.clone()), None),
        Host::Name(name) => (None, Some(tls_server_name.as_ref().unwrap_or(name))),
    };
    let led_to = name.and_then(|_| resolved.get(address)).into_iter().flatten();
    let led_to = led_to.map(move |at| Server { address: Address::from(*at), tls_server_name: name.cloned() });
    itself.into_iter().chain(led_to)
}
