//! What happens to a connection, told in full: who sees it, which frontend it meets or just misses, which view and why,
//! what becomes of each backend, and how it ends. [`crate::explain::trace`] decides; this says on what grounds. Facts only, no
//! prose: the words are whoever's that shows them.

use std::fmt;

use crate::compile::select::Choice;
use crate::datapath::MapError;
use crate::explain::reports::{backends, frontends};
use crate::explain::rows::{BackendReport, FrontendReport};
use crate::explain::trace::{Errno, Verdict, destination, lookup_frontend, verdict};
use crate::filter::Filter;
use crate::model::addr::{Addr, Family, L4Addr, Protocol};
use crate::model::service::{FrontendKind, ServiceName, TrafficPolicy};
use crate::snapshot::Snapshot;
use crate::state::entries::{FrontendEntry, backends_of};

/// Who dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A process in the node's own network namespace.
    Host,
    /// A process of this node in another network namespace.
    Pod,
    /// A host elsewhere: its packets come in over a device.
    Outside,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Pod => "pod",
            Self::Outside => "outside",
        })
    }
}

/// The whole story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// What is dialled.
    pub to: L4Addr,
    /// By whom.
    pub from: Client,
    /// The address that the client was named by, if it was.
    pub caller: Option<Caller>,
    /// The programs that see the client dial; none for packets from outside and for SCTP.
    pub hooks: &'static [&'static str],
    /// The frontend that answers, or would answer.
    pub found: Option<Found>,
    /// Every claim to the address, also of those that wait or were refused, in line.
    pub claims: Vec<FrontendReport>,
    /// What comes close, if no frontend answers.
    pub near: Vec<Near>,
    /// Every backend of the frontend's service port, by address.
    pub backends: Vec<Candidate>,
    /// How it ends.
    pub end: End,
}

/// A client that is named by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its address.
    pub addr: Addr,
    /// Whether nodelb knows where it is. One that it does not know counts as a host elsewhere, and may be a pod of this
    /// node that is no backend.
    pub is_known: bool,
    /// Whether the service takes connections from there; `None` where it does not restrict who may connect.
    pub is_in_source_ranges: Option<bool>,
}

/// The frontend an address leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The address it is kept under: the one dialled, or the unspecified one of a NodePort.
    pub at: L4Addr,
    /// Which view the client gets.
    pub view: View,
    /// Why that one.
    pub why: Why,
    /// Seconds for which a client keeps its backend; 0 for none.
    pub affinity_seconds: u32,
    /// Whether the kernel has, as far as successful operations tell, what the sources ask for.
    pub is_in_kernel: bool,
}

/// The views of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Every selected backend.
    Cluster,
    /// Those on this node.
    Local,
}

/// Why a client gets a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The internal traffic policy, which holds at addresses of the cluster's inside.
    InternalPolicy(TrafficPolicy),
    /// At an external address, a client on the node takes the short cut to every backend, whatever the external policy.
    ShortCut,
    /// The external traffic policy, which holds for clients from outside.
    ExternalPolicy(TrafficPolicy),
}

/// A backend, and what the view the client gets makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// As `/backends` shows it.
    pub row: BackendReport,
    /// Its places in the view, and how many there are; each is as likely as any other.
    pub share: (usize, usize),
    /// Whether it would be chosen if it were on this node.
    pub is_elsewhere: bool,
    /// Whether it is a loopback address, which the client takes for its own network namespace's and not for the node's.
    pub is_clients_own: bool,
}

/// What comes close to an address that no frontend answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Near {
    /// The address is served, but at these ports and protocols.
    OtherPorts(Vec<L4Addr>),
    /// The port is a NodePort of this service, but NodePorts are not answered on the address.
    NotAnsweredOn(ServiceName),
    /// NodePorts are answered at this loopback address for the node's own processes only, and the client is none.
    NodesLoopback(ServiceName),
    /// The port is a NodePort of this service, and to be answered on the address, but the kernel does not have the
    /// address. With the error if it did not take it.
    NotInKernel(ServiceName, Option<MapError>),
    /// NodePorts are answered on the address, and there is none of this number.
    NoSuchNodePort,
    /// It lies between these two ClusterIPs, which begin alike: it looks like a service's that is not known.
    Between(L4Addr, L4Addr),
    /// SCTP is not translated.
    Sctp,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Goes to one of so many backends.
    Forwarded(usize),
    /// Fails at once.
    Refused(Errno),
    /// Goes where the address says.
    PassedThrough,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forwarded(_) => Self::NAMES[0],
            Self::Refused(_) => Self::NAMES[1],
            Self::PassedThrough => Self::NAMES[2],
        })
    }
}

impl End {
    /// How they print.
    pub const NAMES: [&'static str; 3] = ["Forwarded", "Refused", "PassedThrough"];
}

impl View {
    /// How they print.
    pub const NAMES: [&'static str; 2] = ["cluster", "local"];
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

/// Who an address stands for: this node, a pod of this node that is some service's backend, or a backend elsewhere.
/// `None` for everybody else: pods of this node that are no backends look like somebody elsewhere.
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

/// What happens when the client with this address connects, and why.
pub fn story_of(snapshot: &Snapshot, to: L4Addr, addr: Addr) -> Story {
    let known = client_at(snapshot, addr);
    let story = story(snapshot, to, known.unwrap_or(Client::Outside));
    let owner = story.found.as_ref().and(story.claims.first());
    let service = owner.filter(|row| row.kind == FrontendKind::LoadBalancer).map(|row| &row.service);
    let ranges = service.and_then(|name| snapshot.facts.owner(name)?.0.source_ranges.as_ref());
    let is_in_source_ranges = ranges.map(|nets| nets.iter().any(|net| net.contains(&addr.ip())));
    Story { caller: Some(Caller { addr, is_known: known.is_some(), is_in_source_ranges }), ..story }
}

/// What happens when this client dials this address, and why.
pub fn story(snapshot: &Snapshot, named: L4Addr, from: Client) -> Story {
    let to = destination(named);
    let answering = lookup_frontend(&snapshot.answering, &snapshot.config.guard.nodeport_range, to);
    let answering = answering.filter(|_| !(from == Client::Pod && to.addr.is_loopback()));
    let claims = claims_to(snapshot, answering.map_or(named, |(at, _)| at));
    let found = answering.map(|(at, entry)| found(snapshot, at, entry, (claims.first(), from)));
    let backends = match (&found, claims.first(), answering) {
        (Some(found), Some(owner), Some((_, entry))) => candidates(snapshot, (owner, from), found, entry),
        _ => Vec::new(),
    };
    let near = if found.is_some() { Vec::new() } else { near(snapshot, to, from) };
    let end = end(snapshot, to, from, found.is_some());
    Story { to: named, from, caller: None, hooks: hooks(to, from), found, claims, near, backends, end }
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
) -> Found {
    let is_local = if from == Client::Outside { entry.outside_local } else { entry.inside_local };
    let service = snapshot.desired.services.get(&entry.service);
    let is_same = snapshot.realised.frontends.get(&at) == Some(entry)
        && snapshot.realised.services.get(&entry.service) == service;
    Found {
        at,
        view: if is_local { View::Local } else { View::Cluster },
        why: why_view(snapshot, owner, from),
        affinity_seconds: service.map_or(0, |service| service.affinity_seconds),
        is_in_kernel: is_same,
    }
}

fn why_view(snapshot: &Snapshot, owner: Option<&FrontendReport>, from: Client) -> Why {
    let kind = owner.map_or(FrontendKind::Static, |row| row.kind);
    let service = owner.and_then(|row| snapshot.facts.owner(&row.service));
    let policies = service.map(|(service, _)| (service.internal_policy, service.external_policy));
    let (internal, external) = policies.unwrap_or_default();
    match from {
        Client::Outside if kind == FrontendKind::ClusterIP => Why::InternalPolicy(internal),
        Client::Outside => Why::ExternalPolicy(external),
        Client::Host | Client::Pod if kind.is_external() => Why::ShortCut,
        Client::Host | Client::Pod => Why::InternalPolicy(internal),
    }
}

fn candidates(
    snapshot: &Snapshot,
    (owner, from): (&FrontendReport, Client),
    found: &Found,
    entry: &FrontendEntry,
) -> Vec<Candidate> {
    let slots = snapshot.desired.services.get(&entry.service).map_or(&[][..], |entry| match found.view {
        View::Cluster => &entry.cluster,
        View::Local => &entry.local,
    });
    let mut rows = backends(snapshot, &Filter::of_service(&owner.service));
    let (family, protocol) = (owner.address.addr.family(), owner.address.protocol);
    rows.retain(|row| {
        row.port == owner.port && row.address.protocol == protocol && row.address.addr.family() == family
    });
    let candidate = |row: BackendReport| {
        let places = slots.iter().filter(|slot| slot.addr == row.address).count();
        let is_chosen = matches!(row.choice, Choice::Selected | Choice::Held);
        let is_elsewhere = found.view == View::Local && is_chosen && places == 0;
        let is_clients_own = from == Client::Pod && row.address.addr.is_loopback();
        Candidate { share: (places, slots.len()), is_elsewhere, is_clients_own, row }
    };
    rows.into_iter().map(candidate).collect()
}

fn end(snapshot: &Snapshot, to: L4Addr, from: Client, is_found: bool) -> End {
    if from == Client::Outside || !is_found {
        return End::PassedThrough;
    }
    match verdict(snapshot, to) {
        Verdict::Forwarded(_, slots) => End::Forwarded(backends_of(slots).count()),
        Verdict::Refused(_, errno) => End::Refused(errno),
        Verdict::PassedThrough => End::PassedThrough,
    }
}

fn near(snapshot: &Snapshot, to: L4Addr, from: Client) -> Vec<Near> {
    if to.protocol == Protocol::Sctp {
        return vec![Near::Sctp];
    }
    let mut near = Vec::new();
    let others = snapshot.desired.frontends.range(L4Addr::all_at(to.addr));
    let others: Vec<L4Addr> = others.map(|(at, _)| *at).collect();
    if !others.is_empty() {
        near.push(Near::OtherPorts(others));
    }
    near.extend(near_node_port(snapshot, to, from));
    if near.is_empty() {
        near.extend(neighbours(snapshot, to));
    }
    near
}

fn near_node_port(snapshot: &Snapshot, to: L4Addr, from: Client) -> Option<Near> {
    let is_answered_on = snapshot.desired.node_addrs.contains(&to.addr);
    let owner = snapshot.rows.get(&to.wildcard()).and_then(|row| row.claims().first());
    let is_in_kernel = snapshot.realised.node_addrs.contains(&to.addr);
    match owner.map(|claim| claim.key.service.clone()) {
        Some(service) if is_answered_on && !is_in_kernel => {
            Some(Near::NotInKernel(service, snapshot.failed_node_addrs.get(&to.addr).cloned()))
        }
        Some(service) if is_answered_on && from == Client::Pod => Some(Near::NodesLoopback(service)),
        Some(service) if !is_answered_on => {
            snapshot.facts.node().addresses.contains(&to.addr).then_some(Near::NotAnsweredOn(service))
        }
        None if is_answered_on && snapshot.config.guard.nodeport_range.contains(&to.port) => Some(Near::NoSuchNodePort),
        _ => None,
    }
}

/// The ClusterIPs before and after the address, if all three begin alike: 16 bits of IPv4, 64 of IPv6.
fn neighbours(snapshot: &Snapshot, to: L4Addr) -> Option<Near> {
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
    Some(Near::Between(before, after))
}

/// A UDP socket dials by connect() or names its peer at each sendmsg().
fn hooks(to: L4Addr, from: Client) -> &'static [&'static str] {
    match (from, to.protocol, to.addr.family()) {
        (Client::Outside, ..) | (_, Protocol::Sctp, _) => &[],
        (_, Protocol::Tcp, Family::Ipv4) => &["connect4"],
        (_, Protocol::Tcp, Family::Ipv6) => &["connect6"],
        (_, Protocol::Udp, Family::Ipv4) => &["connect4", "sendmsg4"],
        (_, Protocol::Udp, Family::Ipv6) => &["connect6", "sendmsg6"],
    }
}

#[cfg(test)]
mod tests;
