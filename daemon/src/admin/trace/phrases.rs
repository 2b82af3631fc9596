//! The phrases of `/trace` with and without the daemon.

use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::forward::Forward;
use nodelb_core::packets::admission::Refusal;
use nodelb_core::text::listed;
use nodelb_report::explain::explanation::{Client, ConnectResult, ViewKind};
use nodelb_report::explain::ranges::Admitted;

/// The reason why a backend is not in the view `local`.
pub(super) const ELSEWHERE: &str = "on another node: the policy is Local";

/// The finding about the source ranges for a client without an address.
pub(super) const ONLY_SOME: &str =
    "loadBalancerSourceRanges admits only some clients; from=ADDRESS says which range admits one";

/// The maximum number of ranges in a verdict.
const RANGES: usize = 3;

/// The end of a verdict about backends that are used although they failed.
pub(super) const LAST_RESORT: &str = "; last resort: every backend failed its health checks";

/// The end of a connection of a client on the node to an IPv4 address with IPv6 backends.
pub(super) const OTHER_FAMILY: &str =
    "refused with EHOSTUNREACH (no route to host): only clients outside the node reach IPv6 backends from IPv4";

pub(super) fn errno(result: ConnectResult) -> Option<String> {
    let ConnectResult::Refused(errno) = result else { return None };
    Some(errno.to_string())
}

pub(super) fn backend_count(result: ConnectResult) -> Option<u64> {
    match result {
        ConnectResult::Forwarded(backends) | ConnectResult::Depends(backends) => Some(backends as u64),
        ConnectResult::Refused(_) | ConnectResult::PassedThrough | ConnectResult::Dropped(_) => None,
    }
}

pub(super) fn backends_of(view: ViewKind) -> &'static str {
    match view {
        ViewKind::Cluster => "cluster: every backend that is selected",
        ViewKind::Local => "local: backends on this node only",
    }
}

pub(super) fn affinity(from: Client, seconds: u32) -> String {
    match seconds {
        seconds if seconds > 0 && from == Client::Outside => format!(
            "ClientIP, {seconds} s: a client address that connected to this service less than {seconds} s ago gets the \
             same backend again, while it is in the view"
        ),
        0 => "none: a backend is chosen for each connection".into(),
        seconds => format!(
            "ClientIP, {seconds} s: a network namespace that connected to this service less than {seconds} s ago gets \
             the same backend again, while it is in the view"
        ),
    }
}

/// How packets of a client outside the node reach the backend; `None` if they are translated.
pub(super) fn forward(from: Client, forward: Forward) -> Option<String> {
    let how = match forward {
        _ if from != Client::Outside => return None,
        Forward::Translate => return None,
        Forward::Direct => "directly, to its link-layer address",
        Forward::Tunnel => "in a tunnel (IP in IP)",
    };
    Some(format!(
        "{forward}: the packets go unchanged to the backend, {how}; it answers the client itself, and the answers do not \
         pass this node. A backend on this node gets them translated"
    ))
}

pub(super) fn refused(why: Refusal) -> &'static str {
    match why {
        Refusal::NoBackend => "refused with ECONNREFUSED (connection refused): no usable backend",
        Refusal::NotAdmitted => {
            "refused with EHOSTUNREACH (no route to host): loadBalancerSourceRanges of the service contain no address of \
             the client"
        }
        Refusal::NoLocalBackend => {
            "refused with EHOSTUNREACH (no route to host): the policy allows only backends on this node, and none of \
             them is usable"
        }
    }
}

/// The end of a connection that only some clients may make.
pub(super) fn if_admitted(Admitted { ranges, .. }: &Admitted, forwarded: &str, from: Client) -> String {
    let otherwise = match from {
        Client::Outside => "dropped",
        Client::Host | Client::Pod => "refused with EHOSTUNREACH (no route to host)",
    };
    let ranges = listed(ranges, RANGES);
    format!("depends on the client: in {ranges} (loadBalancerSourceRanges) {forwarded}; otherwise {otherwise}")
}

pub(super) fn passed(to: L4Addr) -> String {
    format!("not a service address: connects to {to} directly")
}

/// The backends, each with the number of its slots.
pub(super) fn forwarded_to(shares: impl Iterator<Item = (L4Addr, usize)>) -> String {
    let shares: Vec<_> = shares.filter(|(_, slots)| *slots > 0).collect();
    match shares[..] {
        [] => "forwarded to what the kernel holds".into(),
        [(only, _)] => format!("forwarded to {only}"),
        [(_, first), ..] => {
            let is_equal = shares.iter().all(|(_, slots)| *slots == first);
            let how = if is_equal { "with equal probability" } else { "by the shares below" };
            format!("forwarded to one of {} backends, {how}", shares.len())
        }
    }
}

pub(super) fn drained(backend: L4Addr, drain: impl std::fmt::Display) -> String {
    format!("{backend} is {drain}: it gets no new connections")
}
