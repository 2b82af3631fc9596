//! NodePorts that a process of this node has bound: unless nodelb translates the connections from outside the node, they
//! reach that process, not the service. Owns the search for them and the messages about them; `bpf/bind.h` prevents the bind in the first place.
//!
//! Searches when other NodePorts are served than before, and once a minute, because the kernel does not report new
//! listeners; once a second while one is known.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::uplink::Translation;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{FrontendEntry, MapState, Realised, ServiceEntry, ServiceId};
use nodelb_core::trace::taken_nodeports;
use nodelb_host::clock::until;
use nodelb_host::messages;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use nodelb_host::sock_diag::{self, AF_INET, AF_INET6, InetDiagMessage, SockDiag, StateFlags};
use nodelb_sources::OwnerHandle;

/// NodePorts, each with the process that has bound it.
type Bound = BTreeMap<L4Addr, Arc<str>>;

/// The search is repeated after this time even if nothing changes.
const EVERY: Duration = Duration::from_secs(60);

/// The same while a process is known to have bound a NodePort: what is reported about it must not outlast it.
const AGAIN: Duration = Duration::from_secs(1);

/// Time between the first change of the NodePorts and the search: changes rarely come alone.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct BoundPorts {
    snapshot: watch::Receiver<Arc<Snapshot>>,
    changes: mpsc::Sender<Vec<Change>>,
    overlap: Option<Overlap>,
}

impl BoundPorts {
    /// Searches for the NodePorts that the snapshot serves, and reports the result to the owner task.
    pub(crate) fn new(OwnerHandle { changes, snapshot, .. }: OwnerHandle) -> Self {
        Self { snapshot, changes, overlap: None }
    }

    /// Also checks the kernel's range of ephemeral ports, if NodePorts are protected.
    pub(crate) fn with_overlap(self, overlap: Option<Overlap>) -> Self {
        Self { overlap, ..self }
    }

    /// Runs until `stop` resolves, or until the owner task has ended.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) {
        until(stop, self.poll()).await;
    }

    async fn poll(&mut self) {
        let mut reported = Logged::default();
        loop {
            if let Some(overlap) = &mut self.overlap {
                overlap.poll();
            }
            let served = served(&self.snapshot.borrow_and_update());
            let found = find_bound(served.clone()).await;
            if let Some(bound) = reported.take(found, &served)
                && self.changes.send(vec![Change::Bound(bound)]).await.is_err()
            {
                return;
            }
            let every = if reported.bound.is_empty() { EVERY } else { AGAIN };
            if self.wait(&served, every).await.is_err() {
                return;
            }
        }
    }

    async fn wait(&mut self, served: &Served, every: Duration) -> Result<(), watch::error::RecvError> {
        let latest = Instant::now() + every;
        loop {
            tokio::select! {
                () = sleep_until(latest) => return Ok(()),
                changed = self.snapshot.changed() => changed?,
            }
            // The snapshots within this time are compared once, however many there are.
            sleep(PAUSE).await;
            if self::served(&self.snapshot.borrow_and_update()) != *served {
                return Ok(());
            }
        }
    }
}

/// What the result of a search depends on, apart from the sockets: [`nodeports`], and whether connections from outside the
/// node are translated.
type Served = (MapState, Translation);

fn served(snapshot: &Snapshot) -> Served {
    (nodeports(snapshot), snapshot.facts.translation)
}

/// Returns the NodePorts that are served and protected, and the addresses that serve them. A NodePort that an earlier
/// nodelb left on one of this daemon's own ports is not among them: it is about to be removed, and the listener is
/// intended.
fn nodeports(snapshot: &Snapshot) -> MapState {
    let state = &snapshot.realised;
    let each = [Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6].into_iter().flat_map(|any| {
        let (first, last) = (L4Addr::new(any, 0, Protocol::Tcp), L4Addr::new(any, u16::MAX, Protocol::Sctp));
        state.frontends.range(first..=last).map(|(address, entry)| (*address, *entry))
    });
    let is_kept_free =
        |entry: &FrontendEntry| !state.services.get(&entry.service).is_some_and(|service| service.may_be_bound);
    let each =
        each.filter(|(nodeport, entry)| is_kept_free(entry) && snapshot.config.guard.own_port(*nodeport).is_none());
    let mut nodeports =
        MapState { frontends: each.collect(), node_addrs: state.node_addrs.clone(), ..MapState::default() };
    let outside = state.outside.iter().filter(|(nodeport, _)| nodeports.frontends.contains_key(*nodeport));
    nodeports.outside = outside.map(|(nodeport, entry)| (*nodeport, *entry)).collect();
    // Their backends do not matter here.
    let owner =
        |id: ServiceId| ServiceEntry { tag: state.services.get(&id).and_then(|it| it.tag), ..Default::default() };
    nodeports.services = nodeports.outside.values().map(|it| (it.service, Arc::new(owner(it.service)))).collect();
    nodeports
}

/// What has been logged so far, so that each message is logged once.
#[derive(Debug, Default)]
struct Logged {
    bound: Bound,
    trouble: Option<String>,
}

impl Logged {
    /// Logs what is new, and returns the bound NodePorts if they differ from the previous ones.
    fn take(&mut self, found: io::Result<Bound>, (served, translation): &Served) -> Option<Bound> {
        let bound = match found {
            Ok(bound) => bound,
            Err(error) => {
                let trouble = error.to_string();
                if self.trouble.as_ref() != Some(&trouble) {
                    warn!(
                        message_id = %messages::NODEPORTS_UNKNOWN,
                        "cannot check whether a process has bound a NodePort (sock_diag: {trouble}); retrying"
                    );
                    self.trouble = Some(trouble);
                }
                return None;
            }
        };
        self.trouble = None;
        for (nodeport, who) in &bound {
            if self.bound.get(nodeport) != Some(who) {
                warn!(message_id = %messages::NODEPORT_BOUND, frontend = %nodeport, "NodePort {nodeport}: {who}");
            }
        }
        let gone = self.bound.keys().filter(|nodeport| !bound.contains_key(nodeport));
        for nodeport in gone.filter(|nodeport| served.frontends.contains_key(*nodeport)) {
            info!(
                message_id = %messages::NODEPORT_FREE,
                frontend = %nodeport, "NodePort {nodeport}: the process has released it; {}",
                released(outside_translation(served, *nodeport, *translation))
            );
        }
        let is_new = self.bound != bound;
        self.bound.clone_from(&bound);
        is_new.then_some(bound)
    }
}

/// Reads the sockets of this network namespace, if any NodePort is served.
async fn find_bound((served, translation): Served) -> io::Result<Bound> {
    if served.frontends.is_empty() {
        return Ok(Bound::new());
    }
    spawn_blocking(move || {
        let mut finds = Finds::default();
        let mut diag = SockDiag::open()?;
        for family in [AF_INET, AF_INET6] {
            // A connected UDP socket receives only what its peer sends.
            for (protocol, state) in [(Protocol::Tcp, StateFlags::LISTEN), (Protocol::Udp, StateFlags::CLOSE)] {
                let request = sock_diag::all(family, protocol.number(), state);
                diag.dump(&request, |socket| finds.add(&served, protocol, socket))?;
            }
        }
        Ok(finds.into_bound(&served, translation))
    })
    .await
    .unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// The sockets found at each NodePort; the first by address represents all of them.
#[derive(Debug, Default)]
struct Finds(BTreeMap<L4Addr, (L4Addr, u32)>);

impl Finds {
    fn add(&mut self, served: &Realised, protocol: Protocol, socket: &InetDiagMessage) {
        let id = &socket.header.socket_id;
        let at = L4Addr::new(id.source_address.into(), id.source_port, protocol);
        for nodeport in taken_nodeports(served, at, socket.only_v6) {
            let new = (at, socket.header.uid);
            self.0.entry(nodeport).and_modify(|first| *first = new.min(*first)).or_insert(new);
        }
    }

    fn into_bound(self, served: &Realised, translation: Translation) -> Bound {
        let text = |(nodeport, (at, uid))| {
            (nodeport, text(at, uid, outside_translation(served, nodeport, translation)).into())
        };
        self.0.into_iter().map(text).collect()
    }
}

/// What is done with new connections of clients outside the node to the NodePort; `None` if it is not for them.
fn outside_translation(served: &Realised, nodeport: L4Addr, translation: Translation) -> Option<Translation> {
    served.outside.get(&nodeport).map(|entry| translation.of(served.source_of(entry.service)))
}

/// The present effect of a process that has bound the NodePort. `None`: nodelb never translates connections to it.
fn text(at: L4Addr, uid: u32, translation: Option<Translation>) -> String {
    let letter = if at.protocol == Protocol::Udp { 'u' } else { 't' };
    let effect = match translation {
        Some(Translation::On) => "nodelb translates connections from outside the node, so that they reach the service",
        Some(Translation::Files | Translation::Draining | Translation::Off) => {
            "nodelb does not translate new connections from outside the node now (`nodelb devices`), so that they reach \
             that process, not the service"
        }
        None => "connections from outside the node reach that process, not the service",
    };
    format!(
        "a process of uid {uid} has bound {at}: {effect}. \
         Find it with `ss -ln{letter}p sport = :{}`, then stop it or change the NodePort",
        at.port
    )
}

fn released(translation: Option<Translation>) -> &'static str {
    match translation {
        Some(Translation::On) => "connections from outside the node reach the service",
        Some(Translation::Draining) => {
            "new connections from outside the node do not reach the service through nodelb, which drains (`nodelb devices`)"
        }
        _ => "nodelb does not translate connections from outside the node to it",
    }
}

const LOCAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Reads the kernel's settings and logs when NodePorts become part of the ports: both may change while nodelb runs.
#[derive(Debug)]
pub(crate) struct Overlap {
    nodeports: RangeInclusive<u16>,
    logged: Option<String>,
}

impl Overlap {
    pub(crate) fn new(nodeports: RangeInclusive<u16>) -> Self {
        Self { nodeports, logged: None }
    }

    /// Logs an overlap that differs from the last one.
    pub(super) fn poll(&mut self) {
        let read = |path| fs::read_to_string(path).ok();
        if let (Some(local), Some(reserved)) = (read(LOCAL), read(RESERVED)) {
            self.take(&local, &reserved);
        }
    }

    fn take(&mut self, local: &str, reserved: &str) {
        let found = overlap_of(&self.nodeports, local, reserved);
        if let Some(text) = found.as_ref().filter(|_| found != self.logged) {
            warn!(message_id = %messages::NODEPORTS_UNPROTECTED, "{text}");
        }
        self.logged = found;
    }
}

/// Returns the consequence for NodePorts that the kernel may choose as a port, with the remedy, if there are any. The
/// settings apply to IPv6, too.
fn overlap_of(nodeports: &RangeInclusive<u16>, local: &str, reserved: &str) -> Option<String> {
    let mut ends = local.split_whitespace().map(|end| end.parse::<u16>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    let spared: Vec<RangeInclusive<u16>> = reserved.trim().split(',').filter_map(range).collect();
    let mut shared = (first.max(*nodeports.start())..=last.min(*nodeports.end()))
        .filter(|port| !spared.iter().any(|range| range.contains(port)));
    let lowest = shared.next()?;
    let highest = shared.next_back().unwrap_or(lowest);
    let (start, end) = (nodeports.start(), nodeports.end());
    let before = if spared.is_empty() { String::new() } else { format!("{},", reserved.trim()) };
    let remedy = if nodeports.contains(&first) && nodeports.contains(&last) {
        // All of them would leave the kernel no port.
        "Reserve those that services have in net.ipv4.ip_local_reserved_ports".to_owned()
    } else {
        format!("Reserve them: `sysctl net.ipv4.ip_local_reserved_ports={before}{start}-{end}`")
    };
    Some(format!(
        "the ephemeral port range of the kernel (net.ipv4.ip_local_port_range {first}-{last}) includes NodePorts \
         {lowest} to {highest}: unless nodelb translates packets (packets.mode), a process that gets the \
         port of a service as its ephemeral port receives the connections from outside the node instead of the service. \
         {remedy}"
    ))
}

/// Parses `30000-32767`, or one port.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
#[path = "tests/bound.rs"]
mod tests;
