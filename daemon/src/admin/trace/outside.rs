//! The sentences about clients outside the node.

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::ipsec::Policies;
use nodelb_core::model::service::FrontendKind;
use nodelb_core::packets::admission::Refusal;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::text::listed;
use nodelb_core::trace::is_of_service_outside;
use nodelb_report::explain::explanation::{Client, ConnectResult, Explanation};
use nodelb_report::explain::outside::DropReason;
use nodelb_report::explain::rows::OutsideAccess;

use super::phrases;
use crate::devices::mode::{Activity, Decision};

/// How many backends a sentence names.
const SHOWN: usize = 4;

/// Whether clients outside the node are served at the address, or why not.
pub(super) fn access(explanation: &Explanation, decision: Option<&Decision>) -> Option<String> {
    let kind = explanation.claims.first().map_or(FrontendKind::Static, |row| row.kind);
    let text = match explanation.outside?.access {
        OutsideAccess::Served => "served",
        OutsideAccess::NoLocalBackend => "served, but only by backends on this node, and none is usable",
        OutsideAccess::Draining => "not served now: nodelb translates no new connections from outside the node",
        OutsideAccess::Off if is_off(explanation) => return Some(format!("not served: {}", why_off(decision))),
        OutsideAccess::Off => "not served: nodelb does not translate connections from outside the node",
        OutsideAccess::Loopback => {
            "not served: every backend has a loopback address, which only processes of this node reach; give the backends \
             an address of this node"
        }
        OutsideAccess::Refused => "not served: the address is refused",
        OutsideAccess::NodeOnly if kind == FrontendKind::ClusterIP => {
            "not served: a ClusterIP is for clients on the node, unless packets.cluster-ips is true"
        }
        OutsideAccess::NoSourceRange => {
            "served, but the service has no source range of the address's family, so that no client is admitted"
        }
        OutsideAccess::NodeOnly => "not served: the service file does not say outside = true",
    };
    Some(text.into())
}

/// Why no program is loaded. The decision is about programs that could not be.
pub(super) fn why_off(decision: Option<&Decision>) -> &str {
    decision.map_or("packets.mode is off", |decision| &decision.reason)
}

/// Whether no program is loaded.
fn is_off(explanation: &Explanation) -> bool {
    explanation.hooks.is_empty() && !is_sctp(explanation)
}

fn has_affinity(explanation: &Explanation) -> bool {
    explanation.found.as_ref().is_some_and(|found| found.affinity_seconds > 0)
}

/// What may prevent the ring from deciding. The programs know which backend a client with session affinity had, and a trace
/// does not.
pub(super) fn unless(explanation: &Explanation) -> &'static str {
    let has_ring = explanation.outside.is_some_and(|outside| outside.has_ring);
    match has_ring && has_affinity(explanation) {
        true => ", unless this node keeps the client at another backend (session affinity)",
        false => "",
    }
}

/// How the backend of a new connection is selected.
pub(super) fn choice(explanation: &Explanation) -> Option<String> {
    let outside = explanation.outside.filter(|outside| outside.access == OutsideAccess::Served)?;
    let by = match has_affinity(explanation) {
        true => "the address of the client",
        false => "the address and the port of the client",
    };
    let is_sent_on = explanation.found.as_ref().is_some_and(|found| found.forward != Forward::Translate);
    Some(match (outside.selected, outside.has_ring) {
        (Some(backend), true) => {
            let unless = unless(explanation);
            format!("{backend}: {by} and the ring of the service decide, on every node alike{unless}")
        }
        (Some(backend), false) => format!("{backend}, the only one"),
        (None, true) => format!("{by} and the ring of the service decide; from=ADDRESS:PORT names the backend"),
        (None, false) if is_sent_on => "at random: the slots have no room for its ring (datapath.max-slots)".into(),
        (None, false) => {
            "at random: packets.choice, or the slots have no room for its ring (datapath.max-slots)".into()
        }
    })
}

/// How packets reach a backend on another machine, if they are not translated.
pub(super) fn forward(explanation: &Explanation) -> Option<String> {
    let is_served = explanation.outside.is_some_and(|outside| outside.access == OutsideAccess::Served);
    phrases::forward(explanation.from, explanation.found.as_ref().filter(|_| is_served)?.forward)
}

/// Whether no hook handles the protocol.
pub(super) fn is_sctp(explanation: &Explanation) -> bool {
    explanation.to.protocol == Protocol::Sctp
}

/// The end of a connection with dropped packets.
pub(super) fn dropped(reason: DropReason) -> String {
    match reason {
        DropReason::NoLocalBackend => {
            "dropped: the policy allows only backends on this node, and none of them is usable".into()
        }
        DropReason::NotForwarded => "dropped by the kernel: this node does not forward packets".into(),
        DropReason::LinkLocal => "dropped by the kernel: packets from a link-local address are not forwarded".into(),
        DropReason::NotAdmitted => "dropped: the client is not in loadBalancerSourceRanges".into(),
        DropReason::NotServed => format!("dropped: {NOT_SERVED}"),
        DropReason::Ipsec => "dropped: a policy of IPsec protects the packets, which nodelb cannot encrypt".into(),
        DropReason::ServedSource => {
            "dropped: the client has the address and port of a service, from which nothing begins a connection".into()
        }
    }
}

/// The end of a connection to a service without a usable backend, or to a port of its address that no service has.
pub(super) fn refused(to: L4Addr, is_served: bool) -> String {
    let answer = if to.protocol == Protocol::Tcp { "RST" } else { "ICMP port unreachable" };
    let why = if is_served { "no usable backend" } else { NOT_SERVED };
    format!("refused with {answer}: {why} (dropped without an answer if packets.answer is false)")
}

/// The end of a connection to an address that is not for clients outside the node.
pub(super) const NOT_OUTSIDE: &str = "passes: clients outside the node are not served at this address";

/// Why a connection to another port or protocol of a service's address does not pass.
const NOT_SERVED: &str = "no service has this port and protocol of the address, and only nodelb has the address; it passes \
    if a device of the node has it, or while another service proxy is present";

/// Makes the connection of a client outside the node to another port or protocol of a service's address one that is
/// refused, as by a host, or dropped, if the programs run.
pub(super) fn own(explanation: &mut Explanation, snapshot: &Snapshot, decision: Option<&Decision>) {
    let passes = explanation.from == Client::Outside && explanation.result == ConnectResult::PassedThrough;
    let is_on = decision.is_some_and(|decision| decision.activity == Activity::On);
    let addr = explanation.to.addr;
    let is_here = snapshot.facts.node().addresses.contains(&addr);
    if passes && is_on && !is_here && is_of_service_outside(&snapshot.realised, addr) {
        explanation.result = not_served(explanation.to.protocol);
    }
}

/// What the programs do at a port of a service's address that no service has.
pub(super) fn not_served(protocol: Protocol) -> ConnectResult {
    match protocol {
        Protocol::Sctp => ConnectResult::Dropped(DropReason::NotServed),
        Protocol::Tcp | Protocol::Udp => ConnectResult::Refused(Refusal::NoBackend),
    }
}

/// The end of a connection that is not translated.
pub(super) fn passed(explanation: &Explanation, decision: Option<&Decision>) -> String {
    let passes = match (explanation.outside.map(|outside| outside.access), decision) {
        (Some(OutsideAccess::Off), Some(decision)) if is_off(explanation) => {
            &format!("passes: nodelb does not translate packets from outside: {}", decision.reason)
        }
        (Some(OutsideAccess::Off), None) if is_off(explanation) => {
            "passes: nodelb does not translate packets from outside while packets.mode is off"
        }
        (Some(OutsideAccess::Off), _) => {
            "passes: nodelb does not translate connections from outside the node now (`nodelb devices` says why)"
        }
        _ => NOT_OUTSIDE,
    };
    match explanation.found.as_ref().and(explanation.claims.first()) {
        Some(row) if row.kind.is_external() || row.kind == FrontendKind::Static => {
            format!("{passes}; the packets reach the process that listens on {} here, if there is one", explanation.to)
        }
        Some(_) => format!("{passes}; a ClusterIP is not reachable from outside"),
        None => passes.into(),
    }
}

/// Makes the connection of a client outside the node one that the kernel drops, if it does not forward its packets and no
/// backend has an address of this node. Returns the sentence about it. `setting` is the one that disables forwarding.
pub(super) fn stop(explanation: &mut Explanation, snapshot: &Snapshot, setting: Option<&str>) -> Option<String> {
    let is_link_local = || explanation.client_address.is_some_and(|client| client.addr.is_never_forwarded());
    let (why, reason) = match setting {
        Some(setting) => (setting, DropReason::NotForwarded),
        None if is_link_local() => ("the client has a link-local address", DropReason::LinkLocal),
        None => return None,
    };
    let is_forwarded = matches!(explanation.result, ConnectResult::Forwarded(_) | ConnectResult::Depends(_));
    if explanation.from != Client::Outside || !is_forwarded {
        return None;
    }
    let mut used = explanation.backends.iter().filter(|candidate| candidate.share.0 > 0);
    let is_here = |addr: &Addr| snapshot.facts.node().addresses.contains(addr);
    if !used.any(|candidate| is_here(&candidate.row.address.addr)) {
        explanation.result = ConnectResult::Dropped(reason);
    }
    Some(format!("{why}: packets reach only backends with an address of this node, and the others are dropped"))
}

/// Makes the connection of a client outside the node one that is dropped, if a policy of IPsec protects its packets or those
/// to every backend. Returns the sentence about it.
pub(super) fn protect(explanation: &mut Explanation, snapshot: &Snapshot, policies: &Policies) -> Option<String> {
    let is_forwarded = matches!(explanation.result, ConnectResult::Forwarded(_) | ConnectResult::Depends(_));
    if explanation.from != Client::Outside || !is_forwarded {
        return None;
    }
    let to = explanation.to;
    let client = explanation.client_address.map(|it| L4Addr { addr: it.addr, port: it.port.unwrap_or(0), ..to });
    if let Some(client) = client.filter(|client| policies.protect(*client, to)) {
        explanation.result = ConnectResult::Dropped(DropReason::Ipsec);
        return Some(format!(
            "a policy of IPsec on this node protects packets between {} and {}",
            client.addr, to.addr
        ));
    }
    let used: Vec<L4Addr> = explanation.backends.iter().filter(|it| it.share.0 > 0).map(|it| it.row.address).collect();
    let is_protected = |backend: &&L4Addr| policies.protect_to(**backend, snapshot.realised.uplinks.values());
    let protected: Vec<&L4Addr> = used.iter().filter(is_protected).collect();
    if protected.is_empty() {
        return None;
    }
    if protected.len() == used.len() {
        explanation.result = ConnectResult::Dropped(DropReason::Ipsec);
    }
    Some(format!(
        "policies of IPsec on this node protect packets to {}: connections to these backends are dropped",
        listed(&protected, SHOWN)
    ))
}

/// Makes the connection of a client outside the node one that passes, if new ones are not translated now. Returns the
/// sentence about it.
pub(super) fn leave(explanation: &mut Explanation, decision: Option<&Decision>) -> Option<String> {
    if explanation.from != Client::Outside || explanation.result == ConnectResult::PassedThrough {
        return None;
    }
    // No device accepts the programs.
    if explanation.outside.is_some_and(|outside| outside.access == OutsideAccess::Off) {
        explanation.result = ConnectResult::PassedThrough;
    }
    let is_drained = explanation.outside.is_some_and(|outside| outside.access == OutsideAccess::Draining);
    let decision = decision.filter(|decision| match decision.activity {
        Activity::On => false,
        Activity::Files => is_drained,
        Activity::Draining | Activity::Off => true,
    })?;
    explanation.result = ConnectResult::PassedThrough;
    Some(format!(
        "passes: nodelb translates no new connections from outside the node to the service now ({}), so that another service proxy or \
         the process that listens on {} here gets the packets",
        decision.reason, explanation.to
    ))
}
