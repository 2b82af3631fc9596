//! The full account of a connection: the programs that see it, the frontend that matches or almost matches, the view
//! and the reason for it, the result for each backend, and the end. [`nodelb_core::trace`] decides; this module
//! gives the reasons: facts only, and the callers that display an explanation provide the texts.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::explain::kept::why_kept;
use crate::explain::outside::{self, DropReason};
use crate::explain::ranges::Admitted;
use crate::explain::reports::{backends, distinct, frontends};
use crate::explain::rows::{BackendReport, FrontendReport, OutsideAccess};
use crate::filter::Filter;
use nodelb_core::claims::Claim;
use nodelb_core::compile::select::Choice;
use nodelb_core::datapath::MapError;
use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::{FrontendKind, ServiceName, TrafficPolicy};
use nodelb_core::packets::admission::{Admission, Refusal};
use nodelb_core::packets::choice;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{EntryKey, FrontendEntry, MapState, backends_of};
use nodelb_core::state::status::Status;
use nodelb_core::trace::{Verdict, destination, lookup_frontend, lookup_outside, trace, trace_outside};

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Client {
    /// A process in the node's own network namespace.
    Host,
    /// A process of this node in another network namespace.
    Pod,
    /// Another host: its packets arrive on a network device.
    Outside,
}

impl Client {
    /// Whether the address is the loopback address of the client's own network namespace, which is not the node's.
    pub(crate) fn has_own(self, to: L4Addr) -> bool {
        self == Self::Pod && to.addr.is_loopback()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub to: L4Addr,
    pub from: Client,
    pub client_address: Option<ClientAddress>,
    /// The programs that see the client connect, or its packets; none for SCTP, nor for packets from outside while the
    /// packet path is off.
    pub hooks: &'static [&'static str],
    /// The frontend that matches, even if the maps do not contain it yet.
    pub found: Option<MatchedFrontend>,
    /// Every claim to the address in order of precedence, including those that wait or were refused.
    pub claims: Vec<FrontendReport>,
    /// The facts that almost match, if no frontend matches.
    pub near: Vec<NearMatch>,
    /// Every backend of the frontend's service port, by address.
    pub backends: Vec<Candidate>,
    pub admitted: Admitted,
    /// What applies to a client outside the node; `None` for other clients.
    pub outside: Option<OutsideAccount>,
    pub result: ConnectResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideAccount {
    /// Whether such clients are served at the address, or why not. For an address without a claim, whether they are
    /// served at all.
    pub access: OutsideAccess,
    /// The backend that the client gets unless it has a connection, or session affinity, to another one; `None` if that
    /// is left to chance, or depends on a port of the client that is not given.
    pub selected: Option<L4Addr>,
    /// Whether the service has a ring, so that the client's address and port determine the backend.
    pub has_ring: bool,
}

/// A client that was given as an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    pub addr: Addr,
    pub port: Option<u16>,
    /// Whether nodelb knows the location of the address. An unknown one counts as another host, but may be a pod of
    /// this node that is no backend.
    pub is_known: bool,
    /// Whether the service's source ranges contain the address, which the maps may not have; `None` if it does not
    /// restrict its clients.
    pub is_in_source_ranges: Option<bool>,
}

/// The frontend that an address matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedFrontend {
    /// The key of the frontend: the address of the connection, or the unspecified address of a NodePort.
    pub at: L4Addr,
    pub view: ViewKind,
    pub why: ViewReason,
    /// The session affinity timeout in seconds; 0 for none.
    pub affinity_seconds: u32,
    /// How packets of clients outside reach backends on other machines.
    pub forward: Forward,
    /// Whether the realised state contains what the sources request.
    pub is_in_kernel: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum ViewKind {
    Cluster,
    /// The selected backends on this node.
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewReason {
    /// The internal traffic policy, which applies to addresses inside the cluster.
    InternalPolicy(TrafficPolicy),
    /// A client on the node uses every backend at an external address, regardless of the external policy.
    ShortCut,
    /// The external traffic policy, which applies to clients outside the cluster.
    ExternalPolicy(TrafficPolicy),
    /// The backends are of the other family: only packets in tunnels reach them.
    OtherFamily,
}

/// A backend, and its role in the client's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub row: BackendReport,
    /// The number of its slots in the view, and the total number of slots. Each slot has the same probability.
    pub share: (usize, usize),
    /// Whether the backend is excluded only because it is not on this node.
    pub is_elsewhere: bool,
    /// Whether the address is a loopback address. The client reaches it in its own network namespace, not in the
    /// node's.
    pub is_clients_own: bool,
}

/// A fact that almost matches an address without a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NearMatch {
    /// The kernel serves the address with these backends, as before the start, and why.
    Kept(Vec<L4Addr>, String),
    /// The address is served, but at these ports and protocols.
    OtherPorts(Vec<L4Addr>),
    /// The port is a NodePort of this service, but NodePorts are not answered on the address.
    NotAnsweredOn(ServiceName),
    /// NodePorts are answered at this loopback address only for the node's own processes, and the client is none.
    NodesLoopback(ServiceName),
    /// The port is a NodePort of this service and should be answered on the address, but the maps do not contain the
    /// address. Includes the error if the maps did not accept it.
    NotInKernel(ServiceName, Option<MapError>),
    /// NodePorts are answered on the address, but no NodePort has this number.
    NoSuchNodePort,
    /// The address lies between these two ClusterIPs, which share its prefix. It is probably a ClusterIP of an unknown
    /// service.
    Between(L4Addr, L4Addr),
    Sctp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::VariantNames)]
pub enum ConnectResult {
    /// The connection goes to one of this number of backends.
    Forwarded(usize),
    /// The connection fails immediately.
    Refused(Refusal),
    /// The connection is not translated.
    PassedThrough,
    Dropped(DropReason),
    /// The connection goes to one of this number of backends if the source ranges admit the client. Its address is not
    /// given.
    Depends(usize),
}

impl ConnectResult {
    /// The end of a connection attempt that ends like this for an admitted client.
    pub(crate) fn restricted(self, admission: Admission, from: Client) -> Self {
        match (self, admission) {
            (Self::PassedThrough, _) | (_, Admission::All | Admission::Range(_)) => self,
            (Self::Forwarded(backends), Admission::Unknown) => Self::Depends(backends),
            (_, Admission::Unknown) => self,
            (_, Admission::No) if from == Client::Outside => Self::Dropped(DropReason::NotAdmitted),
            (_, Admission::No) => Self::Refused(Refusal::NotAdmitted),
        }
    }
}

/// The kind of client that has the address: this node, a pod of this node that is a backend of some service, or a
/// backend on another node. `None` for every other address, because a pod of this node that is no backend cannot be
/// distinguished from a remote host.
pub fn client_at(snapshot: &Snapshot, addr: Addr) -> Option<Client> {
    let node = snapshot.facts.node();
    if addr.is_loopback() || node.addresses.contains(&addr) {
        return Some(Client::Host);
    }
    let mut rows = backends(snapshot, &Filter { address: Some(addr), ..Filter::default() });
    rows.retain(|row| !row.node.is_empty() && !node.name.is_empty());
    let is_here = |row: &BackendReport| *row.node == *node.name;
    match rows.iter().any(is_here) {
        true => Some(Client::Pod),
        false => (!rows.is_empty()).then_some(Client::Outside),
    }
}

/// The account of a connection from the client with this address, and with this port, if it is given.
pub fn explain_from(snapshot: &Snapshot, to: L4Addr, (addr, port): (Addr, Option<u16>)) -> Explanation {
    let known = client_at(snapshot, addr);
    let explanation = account(snapshot, to, known.unwrap_or(Client::Outside), Some((addr, port)));
    let owner = explanation.found.as_ref().and(explanation.claims.first());
    let service = owner.filter(|row| row.kind == FrontendKind::LoadBalancer).map(|row| &row.service);
    let ranges = service.and_then(|name| snapshot.facts.owner(name)?.0.source_ranges.as_ref());
    let is_in_source_ranges = ranges.map(|nets| nets.iter().any(|net| net.contains(&addr.ip())));
    Explanation {
        client_address: Some(ClientAddress { addr, port, is_known: known.is_some(), is_in_source_ranges }),
        ..explanation
    }
}

/// The account of a connection from this kind of client to the address.
pub fn explain(snapshot: &Snapshot, named: L4Addr, from: Client) -> Explanation {
    account(snapshot, named, from, None)
}

fn account(snapshot: &Snapshot, named: L4Addr, from: Client, client: Option<(Addr, Option<u16>)>) -> Explanation {
    let (to, range) = (destination(named), &snapshot.config.guard.nodeport_range);
    let look_up = |state| lookup_frontend(state, range, to).filter(|_| !from.has_own(to));
    let answering = look_up(&snapshot.answering);
    let mut claims = claims_to(snapshot, answering.map_or(named, |(at, _)| at));
    // Until every source has reported everything, connections may reach another service than the owner.
    let serves = |claim: &FrontendReport| claim.status.is_usable() || claim.status == Status::LastResort;
    let serving = claims.iter().position(serves).filter(|place| *place > 0);
    let answering = match serving {
        Some(place) => {
            claims[..=place].rotate_right(1);
            look_up(&snapshot.realised)
        }
        None => {
            answering.filter(|(at, _)| !snapshot.rows.get(at).is_some_and(|row| snapshot.stays_with_another(row, *at)))
        }
    };
    let found = answering.map(|(at, entry)| found(snapshot, at, entry, (claims.first(), from)));
    let backends = match (&found, claims.first(), answering) {
        (Some(found), Some(owner), Some((_, entry))) => candidates(snapshot, (owner, from), found, entry),
        _ => Vec::new(),
    };
    let near = if found.is_some() { Vec::new() } else { near(snapshot, to, from) };
    let outside = (from == Client::Outside).then(|| outside_account(snapshot, to, found.as_ref(), client));
    let address = client.map(|(addr, _)| addr);
    let admitted = admitted(snapshot, to, from, address);
    let mut result = result(&snapshot.realised, range, to, (from, address)).restricted(admitted.admission, from);
    let own = client.and_then(|(addr, port)| Some(L4Addr { addr, port: port?, ..to }));
    let is_served = |own| lookup_outside(&snapshot.realised, range, own).is_some();
    if from == Client::Outside && result != ConnectResult::PassedThrough && own.is_some_and(is_served) {
        result = ConnectResult::Dropped(DropReason::ServedSource);
    }
    let hooks = hooks(to, from, snapshot.config.packets.is_on);
    Explanation {
        to: named,
        from,
        client_address: None,
        hooks,
        found,
        claims,
        near,
        backends,
        admitted,
        outside,
        result,
    }
}

/// Whether the source ranges admit the client. A process of the node that is not bound to an address may get each address
/// of the node. The addresses of a pod are known only if one is given, as that of a bound socket.
fn admitted(snapshot: &Snapshot, to: L4Addr, from: Client, client: Option<Addr>) -> Admitted {
    let node = || snapshot.facts.node().addresses.iter().copied().filter(|addr| !addr.is_loopback()).collect();
    let sources: Option<Vec<Addr>> = client.map(|addr| vec![addr]).or_else(|| (from == Client::Host).then(node));
    Admitted::new(&snapshot.realised, &snapshot.config.guard.nodeport_range, to, sources.as_deref())
}

fn outside_account(
    snapshot: &Snapshot,
    to: L4Addr,
    found: Option<&MatchedFrontend>,
    client: Option<(Addr, Option<u16>)>,
) -> OutsideAccount {
    let row = found.and_then(|found| snapshot.rows.get(&found.at));
    let nowhere = if snapshot.config.packets.is_on { OutsideAccess::NodeOnly } else { OutsideAccess::Off };
    let access = row.zip(found).map_or(nowhere, |(row, found)| {
        let serving = (1..row.claims().len()).find(|place| snapshot.still_serves(row, *place, found.at));
        outside::access(snapshot, row, serving.unwrap_or(0), found.at)
    });
    let state = &snapshot.realised;
    let lead = lookup_outside(state, &snapshot.config.guard.nodeport_range, to).map(|(_, entry)| *entry);
    let service = lead.and_then(|lead| state.services.get(&lead.service));
    let selected = lead.zip(service).zip(client).and_then(|((lead, service), client)| {
        let view = service.view(lead.local);
        view.get(choice::selected(service, view, client, to)?).map(|slot| slot.addr)
    });
    OutsideAccount { access, selected, has_ring: service.is_some_and(|service| service.has_rings) }
}

/// The end of a connection attempt of a client, with its address if it is outside the node and was given as one.
pub(crate) fn result(
    state: &MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
    (from, address): (Client, Option<Addr>),
) -> ConnectResult {
    let verdict = match from {
        Client::Outside => trace_outside(state, nodeport_range, to, address),
        Client::Pod if from.has_own(destination(to)) => Verdict::PassedThrough,
        Client::Host | Client::Pod => trace(state, nodeport_range, to),
    };
    match verdict {
        Verdict::Forwarded(_, slots) => ConnectResult::Forwarded(backends_of(slots).count()),
        Verdict::Refused(_, Refusal::NoLocalBackend) if from == Client::Outside => {
            ConnectResult::Dropped(DropReason::NoLocalBackend)
        }
        Verdict::Refused(_, Refusal::NotAdmitted) if from == Client::Outside => {
            ConnectResult::Dropped(DropReason::NotAdmitted)
        }
        Verdict::Refused(_, refusal) => ConnectResult::Refused(refusal),
        Verdict::PassedThrough => ConnectResult::PassedThrough,
    }
}

fn claims_to(snapshot: &Snapshot, at: L4Addr) -> Vec<FrontendReport> {
    let mut rows = frontends(snapshot, &Filter { address: Some(at.addr), ..Filter::default() });
    rows.retain(|row| row.address == at);
    rows
}

fn found(
    snapshot: &Snapshot,
    at: L4Addr,
    entry: &FrontendEntry,
    (owner, from): (Option<&FrontendReport>, Client),
) -> MatchedFrontend {
    let is_local = if from == Client::Outside { entry.outside_local } else { entry.inside_local };
    let service = snapshot.desired.services.get(&entry.service);
    let is_same_outside = snapshot.realised.outside.get(&at) == snapshot.desired.outside.get(&at);
    let is_same = snapshot.realised.frontends.get(&at) == Some(entry)
        && snapshot.desired.frontends.get(&at) == Some(entry)
        && (from != Client::Outside || is_same_outside)
        && snapshot.realised.services.get(&entry.service) == service;
    MatchedFrontend {
        at,
        view: if is_local { ViewKind::Local } else { ViewKind::Cluster },
        why: match claim_at(snapshot, at) {
            Some(claim) if claim.is_other_family && from != Client::Outside => ViewReason::OtherFamily,
            _ => why_view(snapshot, owner, from),
        },
        affinity_seconds: service.map_or(0, |service| service.affinity_seconds),
        forward: outside::forward(service.map(|service| &**service), at, OutsideAccess::Served),
        is_in_kernel: is_same,
    }
}

fn claim_at(snapshot: &Snapshot, at: L4Addr) -> Option<&Claim> {
    Some(snapshot.rows.get(&at)?.owner()?.0)
}

fn why_view(snapshot: &Snapshot, owner: Option<&FrontendReport>, from: Client) -> ViewReason {
    let kind = owner.map_or(FrontendKind::Static, |row| row.kind);
    let service = owner.and_then(|row| snapshot.facts.owner(&row.service));
    let policies = service.map(|(service, _)| (service.internal_policy, service.external_policy));
    let (internal, external) = policies.unwrap_or_default();
    match from {
        Client::Outside if kind == FrontendKind::ClusterIP => ViewReason::InternalPolicy(internal),
        Client::Outside => ViewReason::ExternalPolicy(external),
        Client::Host | Client::Pod if kind.is_external() => ViewReason::ShortCut,
        Client::Host | Client::Pod => ViewReason::InternalPolicy(internal),
    }
}

fn candidates(
    snapshot: &Snapshot,
    (owner, from): (&FrontendReport, Client),
    found: &MatchedFrontend,
    entry: &FrontendEntry,
) -> Vec<Candidate> {
    let slots = snapshot.realised.services.get(&entry.service).map_or(&[][..], |entry| match found.view {
        ViewKind::Cluster => &entry.cluster,
        ViewKind::Local => &entry.local,
    });
    let mut rows = backends(snapshot, &Filter::for_service(&owner.service));
    let family = claim_at(snapshot, owner.address).map_or(owner.address.addr.family(), |claim| claim.key.family);
    let protocol = owner.address.protocol;
    rows.retain(|row| {
        row.port == owner.port && row.address.protocol == protocol && row.address.addr.family() == family
    });
    let mut places: BTreeMap<L4Addr, usize> = BTreeMap::new();
    slots.iter().for_each(|slot| *places.entry(slot.addr).or_default() += 1);
    let needs_local = found.view == ViewKind::Local && found.why != ViewReason::OtherFamily;
    let candidate = |row: BackendReport| {
        let places = places.get(&row.address).copied().unwrap_or_default();
        let is_chosen = matches!(row.choice, Choice::Selected | Choice::Held);
        let is_elsewhere = needs_local && is_chosen && places == 0;
        let is_clients_own = from == Client::Pod && row.address.addr.is_loopback();
        Candidate { share: (places, slots.len()), is_elsewhere, is_clients_own, row }
    };
    rows.into_iter().map(candidate).collect()
}

fn near(snapshot: &Snapshot, to: L4Addr, from: Client) -> Vec<NearMatch> {
    if to.protocol == Protocol::Sctp {
        return vec![NearMatch::Sctp];
    }
    if let Some(kept) = kept(snapshot, to, from) {
        return vec![kept];
    }
    let mut near = Vec::new();
    let others = snapshot.desired.frontends.range(L4Addr::all_at(to.addr));
    let others: Vec<L4Addr> = others.map(|(at, _)| *at).collect();
    if !others.is_empty() {
        near.push(NearMatch::OtherPorts(others));
    }
    near.extend(near_node_port(snapshot, to, from));
    if near.is_empty() {
        near.extend(neighbours(snapshot, to));
    }
    near
}

fn kept(snapshot: &Snapshot, to: L4Addr, from: Client) -> Option<NearMatch> {
    let found = lookup_frontend(&snapshot.realised, &snapshot.config.guard.nodeport_range, to);
    let (at, entry) = found.filter(|_| !from.has_own(to))?;
    let service = snapshot.realised.services.get(&entry.service)?;
    let is_local = if from == Client::Outside { entry.outside_local } else { entry.inside_local };
    Some(NearMatch::Kept(distinct(service.view(is_local)), why_kept(snapshot, at, entry)))
}

fn near_node_port(snapshot: &Snapshot, to: L4Addr, from: Client) -> Option<NearMatch> {
    let is_answered_on = snapshot.desired.node_addrs.contains(&to.addr);
    let owner = snapshot.rows.get(&to.wildcard()).and_then(|row| row.claims().first());
    let is_in_kernel = snapshot.realised.node_addrs.contains(&to.addr);
    match owner.map(|claim| claim.key.service.clone()) {
        Some(service) if is_answered_on && !is_in_kernel => {
            Some(NearMatch::NotInKernel(service, snapshot.failures.get(&EntryKey::NodeAddress(to.addr)).cloned()))
        }
        Some(service) if is_answered_on && from == Client::Pod => Some(NearMatch::NodesLoopback(service)),
        Some(service) if !is_answered_on => {
            snapshot.facts.node().addresses.contains(&to.addr).then_some(NearMatch::NotAnsweredOn(service))
        }
        None if is_answered_on && snapshot.config.guard.nodeport_range.contains(&to.port) => {
            Some(NearMatch::NoSuchNodePort)
        }
        _ => None,
    }
}

/// The ClusterIPs before and after the address, if all three share a prefix: 16 bits of IPv4, 64 bits of IPv6.
fn neighbours(snapshot: &Snapshot, to: L4Addr) -> Option<NearMatch> {
    let prefix = |addr: Addr| match addr.family() {
        Family::Ipv4 => addr.octets()[..14].to_vec(),
        Family::Ipv6 => addr.octets()[..8].to_vec(),
    };
    let is_one = |at: &L4Addr| {
        let claims = snapshot.rows.get(at).map(|row| row.claims()).unwrap_or_default();
        claims.first().is_some_and(|claim| claim.kind == FrontendKind::ClusterIP) && prefix(at.addr) == prefix(to.addr)
    };
    let (first, last) = L4Addr::all_at(to.addr).into_inner();
    let before = snapshot.rows.range(..first).next_back().map(|(at, _)| *at).filter(is_one)?;
    let after = snapshot.rows.range(last..).next().map(|(at, _)| *at).filter(is_one)?;
    Some(NearMatch::Between(before, after))
}

/// The hooks that see the client, or its packets. A UDP socket chooses its destination by connect() or at each sendmsg().
fn hooks(to: L4Addr, from: Client, has_packets: bool) -> &'static [&'static str] {
    match (from, to.protocol, to.addr.family()) {
        (_, Protocol::Sctp, _) => &[],
        (Client::Outside, ..) if has_packets => &["packet_in"],
        (Client::Outside, ..) => &[],
        (_, Protocol::Tcp, Family::Ipv4) => &["connect4"],
        (_, Protocol::Tcp, Family::Ipv6) => &["connect6"],
        (_, Protocol::Udp, Family::Ipv4) => &["connect4", "sendmsg4"],
        (_, Protocol::Udp, Family::Ipv6) => &["connect6", "sendmsg6"],
    }
}

#[cfg(test)]
#[path = "tests/explanation.rs"]
mod tests;
