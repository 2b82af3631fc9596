//! `/drops`: why packets of clients outside the node were dropped, answered or passed on without a translation.

use std::cmp::Reverse;

use nodelb_core::snapshot::Snapshot;
use nodelb_datapath::packets::{DropCount, REASONS};
use nodelb_report::rows::{CountedRow, DropRow, Drops};
use nodelb_report::time::{Clocks, Time};

use super::connections::requested_ids;
use super::query::{Problem, Query, unreadable};
use super::state::AdminState;

/// What the reasons mean, in the order of [`REASONS`].
const DESCRIPTIONS: [&str; REASONS.len()] = [
    "a header is cut short, or cannot be read or written",
    "the time to live ended at this node; with forward = \"direct\", another node may have sent the packet here: do both list the same backends?",
    "larger than the MTU of the device by which the packet would leave",
    "a fragment that arrived before the first one, or of a connection that nodelb does not know",
    "the service has no usable backend: see nodelb backends",
    "the policy is Local, and no usable backend is on this node",
    "the client is not in loadBalancerSourceRanges",
    "no source port is free towards the backend: see packets.snat-ports",
    "this node has no route to the backend or to the client",
    "net.ipv4.ip_forward, or its IPv6 equivalent, is 0 on the device",
    "the maps of connections are full: see packets.max-connections and packets.max-handshakes",
    "a TCP packet of a connection that nodelb does not know; passed: it continues, or packets.unknown is \"pass\"",
    "more than 1,000 answers in a second on one CPU for a service and a reason; another row contains the packet, too",
    "the client has an address of this node, there is no route to it, or (rp_filter is 1) its packets arrive by another \
     device than leads back to it",
    "as mtu, but the sender permits fragments: a redirected packet cannot be split; the sender gets the ICMP error",
    "more than 2,048 datagrams in fragments in a second between this node and one other address",
    "the source is the address and port of a service, from which nothing begins a connection: the answers would go round",
    "to an address of a service that no device of this node has, but to no port and protocol of a service: see nodelb frontends",
    "an ICMP echo request (ping) to an address of a service that no device of this node has",
    "an ICMP error about a datagram that anyone may have made up: not from its receiver, with a false MTU, or more than seven in a second for a flow",
    "a policy of IPsec on this node protects such packets, which nodelb would send in clear text: see ip xfrm policy",
    "the route to the backend or to the client has an encapsulation (ip route), which packets cannot get past the network stack",
    "a tunnel to a backend here, of a host that is not in packets.tunnel-sources",
];

/// Returns one row per service, reason and verdict, with the largest number of packets first, and one row about all of
/// them.
pub(super) fn drops(state: &AdminState, query: &Query, now: Clocks) -> Result<Drops, Problem> {
    let snapshot = state.snapshot();
    let drops = state.packets.as_ref().map(|packets| (packets.drops)()).transpose().map_err(unreadable)?;
    let mut drops = drops.unwrap_or_default();
    let not_listed = drops.packets.saturating_sub(packets_of(&drops.counts));
    if let Some(ids) = requested_ids(&snapshot, query) {
        drops.counts.retain(|count| count.service.is_some_and(|id| ids.contains(&id)));
    }
    let packets = if query.filter.service.is_some() { packets_of(&drops.counts) } else { drops.packets };
    drops.counts.sort_by_key(|count| (Reverse(count.packets), count.reason, count.verdict, count.service));
    let ago = |seconds: u32| Time(now.time.0.saturating_sub(u64::from(seconds) * 1000));
    let counted = CountedRow { since: ago(drops.age), packets, not_listed };
    Ok(Drops { drops: drops.counts.iter().map(|count| row(count, &snapshot, ago)).collect(), counted })
}

fn packets_of(counts: &[DropCount]) -> u64 {
    counts.iter().map(|count| count.packets).sum()
}

fn row(count: &DropCount, snapshot: &Snapshot, ago: impl Fn(u32) -> Time) -> DropRow {
    let service =
        count.service.map(|id| snapshot.service_of(id).unwrap_or_else(|| format!("(deleted service {})", id.0)));
    let description = REASONS.iter().zip(DESCRIPTIONS).find(|(reason, _)| **reason == count.reason);
    DropRow {
        reason: count.reason.to_string(),
        verdict: count.verdict.name().into(),
        service,
        packets: count.packets,
        first: ago(count.first),
        last: ago(count.last),
        description: description.map(|(_, text)| text.into()),
    }
}

#[cfg(test)]
#[path = "tests/drops.rs"]
mod tests;
