//! The sentences about clients outside the node.

use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::service::FrontendKind;
use nodelb_core::packets::admission::Admission;
use nodelb_report::explain::explanation::{Client, ClientAddress, ConnectResult, DropReason, Explanation};
use nodelb_report::explain::rows::OutsideAccess;

use crate::devices::mode::{Activity, Decision};

/// Whether clients outside the node are served at the address, or why not.
pub(super) fn access(explanation: &Explanation) -> Option<String> {
    let kind = explanation.claims.first().map_or(FrontendKind::Static, |row| row.kind);
    let text = match explanation.outside?.access {
        OutsideAccess::Served | OutsideAccess::NoLocalBackend => "served",
        OutsideAccess::Off => "not served: packets.mode is off",
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

/// Whether the source ranges of the service admit the client.
pub(super) fn admission(explanation: &Explanation) -> Option<String> {
    let client = explanation.client_address.map(|ClientAddress { addr, .. }| addr.to_string());
    let client = client.unwrap_or_else(|| "the client".into());
    match explanation.outside?.admission? {
        Admission::All => None,
        Admission::Range(range) => Some(format!("{range} of loadBalancerSourceRanges admits {client}")),
        Admission::No => Some(format!("no range of loadBalancerSourceRanges admits {client}")),
        Admission::Unknown => {
            Some("loadBalancerSourceRanges admits only some clients; from=ADDRESS says which range admits one".into())
        }
    }
}

/// How the backend of a new connection is selected.
pub(super) fn choice(explanation: &Explanation) -> Option<String> {
    let outside = explanation.outside.filter(|outside| outside.access == OutsideAccess::Served)?;
    let affinity = explanation.found.as_ref().is_some_and(|found| found.affinity_seconds > 0);
    let by = if affinity { "the address of the client" } else { "the address and the port of the client" };
    Some(match (outside.selected, outside.has_ring) {
        (Some(backend), true) => format!("{backend}: {by} and the ring of the service decide, on every node alike"),
        (Some(backend), false) => format!("{backend}, the only one"),
        (None, true) => format!("{by} and the ring of the service decide; from=ADDRESS:PORT names the backend"),
        (None, false) => "at random (packets.choice)".into(),
    })
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
        DropReason::NotAdmitted => "dropped: the client is not in loadBalancerSourceRanges".into(),
    }
}

/// The end of a connection to a service without a usable backend.
pub(super) fn refused(to: L4Addr) -> String {
    let answer = if to.protocol == Protocol::Tcp { "RST" } else { "ICMP port unreachable" };
    format!("refused with {answer}: no usable backend (dropped without an answer if packets.answer is false)")
}

/// The end of a connection to an address that is not for clients outside the node.
pub(super) const NOT_SERVED: &str = "passes: clients outside the node are not served at this address";

/// The end of a connection that is not translated.
pub(super) fn passed(explanation: &Explanation) -> String {
    let is_off = explanation.outside.is_some_and(|outside| outside.access == OutsideAccess::Off);
    let passes = match is_off {
        true => "passes: nodelb does not translate packets from outside while packets.mode is off",
        false => NOT_SERVED,
    };
    match explanation.found.as_ref().and(explanation.claims.first()) {
        Some(row) if row.kind.is_external() || row.kind == FrontendKind::Static => {
            format!("{passes}; the packets reach the process that listens on {} here, if there is one", explanation.to)
        }
        Some(_) => format!("{passes}; a ClusterIP is not reachable from outside"),
        None => passes.into(),
    }
}

/// Makes the connection of a client outside the node one that passes, if new ones are not translated now. Returns the
/// sentence about it.
pub(super) fn leave(explanation: &mut Explanation, decision: Option<&Decision>) -> Option<String> {
    let decision = decision.filter(|decision| decision.activity != Activity::On)?;
    if explanation.from != Client::Outside || explanation.result == ConnectResult::PassedThrough {
        return None;
    }
    explanation.result = ConnectResult::PassedThrough;
    Some(format!(
        "passes: nodelb translates no new connections from outside the node now ({}), so that another service proxy or \
         the process that listens on {} here gets the packets",
        decision.reason, explanation.to
    ))
}
