//! Which frontends clients outside the node may connect to, and which of these clients: the rules of kube-proxy, with
//! one exception. A service with source ranges of only one family admits no client of the other one.

use crate::model::addr::Family;
use crate::model::forward::Forward;
use crate::model::service::{FrontendKind, Service};
use crate::model::source_range::SourceRange;

/// The part of the packet path's configuration that the content of the maps depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketsConfig {
    /// Whether connections of clients outside the node are translated; configuration key `packets.mode`. If not, the
    /// maps of the packet path have no content.
    pub is_on: bool,
    /// Whether clients outside the node may connect to ClusterIPs; configuration key `packets.cluster-ips`.
    pub cluster_ips: bool,
    /// Whether a client's backend follows from its address and port; lists are then followed by rings; configuration
    /// key `packets.choice`.
    pub is_consistent: bool,
    /// Whether services may have direct return; configuration key `packets.direct-return`.
    pub direct_return: bool,
}

impl PacketsConfig {
    /// How packets reach the service's backends on other nodes.
    pub fn forward_of(self, service: &Service) -> Forward {
        if self.direct_return { service.forward } else { Forward::Translate }
    }
}

/// Whether clients outside the node may connect to an address of this kind, unless it is refused.
pub fn is_outside(service: &Service, kind: FrontendKind, packets: PacketsConfig) -> bool {
    packets.is_on
        && match kind {
            FrontendKind::NodePort | FrontendKind::LoadBalancer | FrontendKind::ExternalIP => true,
            FrontendKind::ClusterIP => packets.cluster_ips,
            FrontendKind::Static => service.is_outside,
        }
}

/// The clients of a family that may connect to the load balancer addresses of a service: those in these ranges, each
/// once and in order; `None` for all clients.
pub fn source_ranges(service: &Service, family: Family) -> Option<Vec<SourceRange>> {
    let ranges = service.source_ranges.as_ref()?.iter().copied().map(SourceRange::from);
    let mut ranges: Vec<SourceRange> = ranges.filter(|range| range.family() == family).collect();
    if ranges.iter().any(|range| range.is_everything()) {
        return None;
    }
    ranges.sort_unstable();
    ranges.dedup();
    Some(ranges)
}

/// Whether the source ranges of a service apply to an address of this kind.
pub fn has_ranges(kind: FrontendKind) -> bool {
    kind == FrontendKind::LoadBalancer
}

#[cfg(test)]
#[path = "tests/outside.rs"]
mod tests;
