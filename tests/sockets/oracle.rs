//! What must happen to a connection, worked out from the maps' content alone.

use std::ops::RangeInclusive;

use nodelb_core::addr::{Addr, Family, L4Addr};
use nodelb_core::state::MapState;

/// What happens to a client on this node that dials an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It goes where it was dialled.
    PassesThrough,
    /// It reaches one of these.
    OneOf(Vec<L4Addr>),
    /// It fails with this error number.
    Refused(i32),
}

pub(super) fn answer(state: &MapState, nodeports: &RangeInclusive<u16>, to: L4Addr) -> Answer {
    let any = match to.addr.family() {
        Family::Ipv4 => Addr::UNSPECIFIED_V4,
        Family::Ipv6 => Addr::UNSPECIFIED_V6,
    };
    let nodeport = || {
        let is_here = nodeports.contains(&to.port) && state.node_addrs.contains(&to.addr);
        is_here.then(|| state.frontends.get(&L4Addr { addr: any, ..to })).flatten()
    };
    let Some(frontend) = state.frontends.get(&to).or_else(nodeport) else { return Answer::PassesThrough };
    let Some(service) = state.services.get(&frontend.service) else { return Answer::Refused(econnrefused()) };
    let list = if frontend.inside_local { &service.local } else { &service.cluster };
    if !list.is_empty() {
        return Answer::OneOf(list.iter().map(|slot| slot.addr).collect());
    }
    Answer::Refused(if service.has_backends { nix::errno::Errno::EHOSTUNREACH as i32 } else { econnrefused() })
}

fn econnrefused() -> i32 {
    nix::errno::Errno::ECONNREFUSED as i32
}
