//! The file in the state directory with apiserver addresses that worked, which is preserved when nodelb or the node
//! restarts. Defines its format and when it is written. The supervisor checks whether the contents are still valid.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nodelb_core::model::moment::Moment;
use nodelb_host::messages;
use serde::{Deserialize, Serialize};

use super::pool::{Candidate, MOST_LEARNED, Pool, RememberedServer};
use super::timeouts::PoolTimeouts;
use crate::apiserver::address::{Address, Host, Server};
use crate::apiserver::credentials::authorities::Authorities;
use nodelb_host::state_file::{self, Limits, Reading, StateFile};

const NAME: &str = "apiservers.json";

const VERSION: u32 = 1;

/// The maximum size of the file in bytes; much more than the maximum number of addresses needs.
const MAX_BYTES: usize = 256 << 10;

const WRITE_EVERY: Duration = Duration::from_secs(1);

/// The interval in milliseconds between writes if only the addresses' success times change, and between attempts to
/// write a file that cannot be written.
const SAVE_EVERY: u64 = 60_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointsState {
    /// The certificate authorities of the cluster ([`Authorities::names`]). A file of an earlier version has one name.
    #[serde(default)]
    pub authorities: Vec<String>,
    /// The uid of the Service `default/kubernetes`, if known.
    pub cluster: Option<String>,
    pub apiservers: Vec<RememberedServer>,
}

impl EndpointsState {
    pub fn is_of(&self, authorities: &Authorities) -> bool {
        self.authorities.iter().any(|known| authorities.include(known))
    }

    /// Whether only the addresses' success times or their order differ.
    fn has_same_servers(&self, other: &Self) -> bool {
        (&self.authorities, &self.cluster) == (&other.authorities, &other.cluster) && self.servers() == other.servers()
    }

    fn servers(&self) -> BTreeSet<&Server> {
        self.apiservers.iter().map(|remembered| &remembered.server).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    /// The name of the whole bundle; the only field that an earlier version reads.
    authority: String,
    #[serde(flatten)]
    state: EndpointsState,
}

/// What the previous run has stored.
pub type Stored = Reading<Option<EndpointsState>>;

/// Begins to read the file in the state directory.
pub fn begin(directory: &Path) -> Stored {
    let consequence = "the apiserver addresses in it are not used until it can be read";
    Reading::begin(directory.join(NAME), consequence, read)
}

fn read(path: &Path) -> io::Result<Option<EndpointsState>> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    Ok(form.map(|Form { authority, mut state, .. }| {
        if !state.authorities.contains(&authority) {
            state.authorities.push(authority);
        }
        state
    }))
}

fn write(path: &Path, state: EndpointsState) -> io::Result<()> {
    let authority = state.authorities.last().cloned().unwrap_or_default();
    state_file::write_json(path, MAX_BYTES, &Form { version: VERSION, authority, state })
}

/// Decides when the file is written.
pub(super) struct Saver {
    file: StateFile<EndpointsState>,
    /// The file, until it has been read, and not while the first login waits for it.
    pub(super) unread: Option<Stored>,
    /// The uid of `default/kubernetes`, from the file or from the latest session.
    pub(super) cluster: Option<String>,
    saved: Option<EndpointsState>,
    /// The time of the next write if only the addresses' success times change.
    pub(super) due: Option<Moment>,
}

impl Saver {
    pub(super) fn new(directory: &Path, timeouts: PoolTimeouts) -> Self {
        let consequence = "after a restart, only the configured apiservers are known";
        let retry = Duration::from_millis(SAVE_EVERY);
        let limits = Limits { every: WRITE_EVERY, retry, timeout: Duration::from_millis(timeouts.load) };
        let file = StateFile::start(directory.join(NAME), consequence, limits, write);
        Self { file, unread: Some(begin(directory)), cluster: None, saved: None, due: None }
    }

    /// The addresses in the file, if they belong to this cluster.
    pub(super) fn loaded(&mut self, state: EndpointsState, authorities: &Authorities) -> Vec<RememberedServer> {
        if !state.is_of(authorities) {
            tracing::info!(
                message_id = %messages::CLUSTER_CHANGED,
                "ignored the stored apiserver addresses: they belong to a cluster with other certificate authorities"
            );
            return Vec::new();
        }
        // A session may have reported another one, which is newer.
        self.cluster = self.cluster.take().or_else(|| state.cluster.clone());
        self.saved.insert(state).apiservers.clone()
    }

    /// Updates the file if this is due and it has been read. Never waits.
    pub(super) fn save(
        &mut self,
        (now, unix): (Moment, u64),
        authorities: &Authorities,
        pool: &Pool,
        resolved: &BTreeMap<Address, Vec<SocketAddr>>,
    ) {
        // Before an address has worked in this run, there is nothing to add and no proof that the cluster is the same.
        if self.unread.is_some() || pool.candidates().iter().all(|candidate| candidate.worked.is_none()) {
            return;
        }
        let worked = |candidate: &Candidate| {
            let ago = candidate.worked.map(|worked| now.0.saturating_sub(worked.0) / 1_000);
            ago.map(|ago| unix.saturating_sub(ago)).or(candidate.worked_before)
        };
        let mut apiservers = Vec::new();
        for candidate in pool.candidates() {
            let Some(worked) = worked(candidate) else { continue };
            apiservers.extend(by_address(candidate, resolved).map(|server| RememberedServer { server, worked }));
        }
        apiservers.truncate(2 * MOST_LEARNED);
        let state = EndpointsState { authorities: authorities.names(), cluster: self.cluster.clone(), apiservers };
        let next = now.plus(SAVE_EVERY);
        let has_same_servers = self.saved.as_ref().is_some_and(|saved| saved.has_same_servers(&state));
        if has_same_servers && self.due.is_none_or(|at| now < at) {
            self.due.get_or_insert(next);
            return;
        }
        self.due = Some(next);
        if self.saved.as_ref() != Some(&state) {
            self.saved = Some(state.clone());
            self.file.save(state);
        }
    }

    /// Waits until the last contents are written, within the time limit.
    pub(super) async fn close(self) {
        self.file.close().await;
    }
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

#[cfg(test)]
#[path = "tests/state_file.rs"]
pub(super) mod tests;
