//! The way of a packet that does not pass the network stack of this node.

use crate::connections::Connection;
use crate::hook_state::{Decision, HookState};
use crate::node::{Reason, Route, RouteQuery, Verdict};
use crate::reject::IcmpError;
use crate::rewrite;

/// Sends the translated frame by the device of the route. The packet of `state` is the frame before the translation; an
/// error about it goes to the sender if it cannot be forwarded.
pub(crate) fn redirect(state: &mut HookState<'_>, entry: &Connection, mut bytes: Vec<u8>) -> Decision {
    state.service = entry.service;
    if state.headers.ttl <= 1 {
        return state.answer_icmp(IcmpError::TimeExceeded, Reason::Ttl);
    }
    // The best route, wherever the client's packets come from.
    let (source, target) = (entry.to.source.addr, entry.to.target.addr);
    let query = RouteQuery { ifindex: state.packet.ifindex, source, target };
    let (ifindex, mtu) = match state.node.routes.route(&query) {
        Route::Device { ifindex, mtu, .. } => (ifindex, mtu),
        Route::NoForwarding => return state.discard(Reason::NoForwarding),
        Route::NotForwarded | Route::Unreachable => return state.discard(Reason::NoRoute),
    };
    if state.headers.length() > mtu as usize && !state.packet.is_gso {
        let reason = if state.headers.may_be_split { Reason::MtuNoDf } else { Reason::Mtu };
        return state.answer_icmp(IcmpError::TooBig(mtu), reason);
    }
    if let Some(id) = state.new_id {
        rewrite::write_id(&mut bytes, &state.headers, id);
    }
    rewrite::lower_ttl(&mut bytes, &state.headers);
    Decision { verdict: Verdict::Redirect { ifindex }, bytes, reason: None }
}
