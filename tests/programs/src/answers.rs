//! What the host answers about a packet, and what it asks while a program runs.

use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::model::source_range::SourceRange;

use crate::headers::ETHERNET;
use crate::node::{Node, Packet, REASONS, Reason, Route, RouteQuery, Verdict};

/// Verdicts of the programs: `TCX_NEXT`, `TC_ACT_SHOT` and `TC_ACT_REDIRECT`.
const NEXT: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

/// `XDP_PASS`.
const XDP_PASS: i32 = 2;

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The frame afterwards; as it came if it is dropped.
    pub bytes: Vec<u8>,
    /// Why the packet was not translated or not forwarded; `None` if it was, or if it is no service's.
    pub reason: Option<Reason>,
    /// The backend that gets a packet which keeps its addresses (direct return).
    pub backend: Option<Addr>,
    /// The next hop that the program has named for a packet that it has redirected.
    pub next_hop: Option<Addr>,
    /// What the program itself has returned.
    pub code: i32,
    /// All reasons that were counted.
    pub reasons: Vec<Reason>,
    /// Whether the sum of the whole packet, which a device has computed, is not that of its bytes.
    pub has_wrong_sum: bool,
    /// Whether the packet is sent with the VLAN tag that it came with.
    pub has_vlan_tag: bool,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn addr_at(bytes: &[u8], at: usize) -> Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    Addr::from_octets(octets)
}

/// The result of `struct ran` of `host/serve.c`, which the frame follows.
const RAN: usize = 80;

pub(crate) fn outcome(packet: &Packet, program: u32, answer: &[u8]) -> Outcome {
    let (code, how, ifindex) = (u32_at(answer, 4).cast_signed(), u32_at(answer, 8), u32_at(answer, 12));
    let (dropped, passed) = (reasons(u32_at(answer, 36)), reasons(u32_at(answer, 40)));
    let (has_wrong_sum, has_backend) = (u32_at(answer, 44) != 0, u32_at(answer, 56) != 0);
    let verdict = match (code, how) {
        (NEXT, _) if program != 3 => Verdict::Next,
        (XDP_PASS, _) if program == 3 => Verdict::Next,
        (REDIRECT, 1) if program != 3 => Verdict::Reply,
        (REDIRECT, 1 | 2) => Verdict::Redirect { ifindex },
        (SHOT, _) if program != 3 => Verdict::Drop,
        (1, _) if program == 3 => Verdict::Drop,
        _ => panic!("the program has returned {code}, redirection {how}"),
    };
    // The kernel removes the header that a program has put in front for it.
    let is_bare = packet.l2_length == 0 && matches!(verdict, Verdict::Redirect { .. });
    let frame = &answer[if is_bare { RAN + ETHERNET } else { RAN }..];
    let bytes = if verdict == Verdict::Drop { packet.bytes.clone() } else { frame.to_vec() };
    let reason = match verdict {
        _ if dropped.contains(&Reason::AnswerRate) => Some(Reason::AnswerRate),
        Verdict::Next if bytes != packet.bytes => None,
        Verdict::Next => passed.first().copied(),
        Verdict::Drop | Verdict::Reply | Verdict::Redirect { .. } => dropped.first().copied(),
    };
    let backend = has_backend.then(|| addr_at(answer, 60));
    let next_hop = (how == 2 && u32_at(answer, 16) != 0).then(|| addr_at(answer, 20));
    let (reasons, has_vlan_tag) = ([dropped, passed].concat(), u32_at(answer, 76) != 0);
    Outcome { verdict, bytes, reason, backend, next_hop, code, reasons, has_wrong_sum, has_vlan_tag }
}

fn reasons(bits: u32) -> Vec<Reason> {
    REASONS.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0).map(|(_, reason)| *reason).collect()
}

/// `enum` of `BPF_FIB_LKUP_RET_*`.
const SUCCESS: u32 = 0;
const UNREACHABLE: u32 = 2;
const NOT_FORWARDED: u32 = 4;
const NO_FORWARDING: u32 = 5;
const ENCAPSULATED: u32 = 6;

/// The addresses of all routers.
const ROUTERS: [&str; 2] = ["169.254.0.1", "fe80::1"];

/// `struct route_answer` of `host/host.h`.
pub(crate) fn answer_about_route(node: &Node<'_>, encapsulated: &[SourceRange], question: &[u8]) -> Vec<u8> {
    let query =
        RouteQuery { ifindex: u32_at(question, 4), source: addr_at(question, 12), target: addr_at(question, 28) };
    let (result, route) = match node.routes.route(&query) {
        Route::Device { .. } if encapsulated.iter().any(|it| it.contains(query.target)) => (ENCAPSULATED, None),
        Route::Device { ifindex, mtu, preferred, is_neighbor, macs } => {
            (SUCCESS, Some((ifindex, mtu, preferred, is_neighbor, macs)))
        }
        Route::NotForwarded => (NOT_FORWARDED, None),
        Route::NoForwarding => (NO_FORWARDING, None),
        Route::Unreachable => (UNREACHABLE, None),
    };
    let (ifindex, mtu, preferred, is_neighbor, macs) = route.unwrap_or((0, 0, None, true, None));
    let octets = |addr: Option<Addr>| addr.map_or([0; 16], Addr::octets);
    let router = ROUTERS[usize::from(query.target.family() == Family::Ipv6)];
    let router = (!is_neighbor).then(|| router.parse().expect("an address"));
    let mut bytes = [result, ifindex, mtu, u32::from(preferred.is_some())].map(u32::to_ne_bytes).concat();
    bytes.extend(octets(preferred));
    bytes.extend(u32::from(router.is_some()).to_ne_bytes());
    bytes.extend(octets(router));
    bytes.extend(u32::from(macs.is_some()).to_ne_bytes());
    let (next, own) = macs.unwrap_or_default();
    bytes.extend(next);
    bytes.extend(own);
    bytes
}
