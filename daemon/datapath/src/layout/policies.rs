//! The entries of `ipsec_policies`.

use std::mem::offset_of;

use nodelb_core::model::addr::Family;
use nodelb_core::model::ipsec::{PolicyRule, PortMask};
use nodelb_core::model::source_range::SourceRange;

use crate::skeleton::packet::types;

const _: () = assert!(size_of::<types::ipsec_policy>() == 88);

pub(crate) type PolicyBytes = [u8; size_of::<types::ipsec_policy>()];

type KeyBytes = [u8; size_of::<types::packet_key>()];

pub(crate) fn policy(rule: &PolicyRule) -> PolicyBytes {
    bytes_of!(types::ipsec_policy {
        selector: selector(rule),
        mask: mask(rule),
        list: u32::from(rule.list).to_ne_bytes(),
        is_protected: u32::from(rule.is_protected).to_ne_bytes(),
    })
}

fn selector(PolicyRule { selector, .. }: &PolicyRule) -> KeyBytes {
    bytes_of!(types::packet_key {
        source: selector.source.addr.octets(),
        target: selector.target.addr.octets(),
        source_port_be: selector.source_port.port.to_be_bytes(),
        target_port_be: selector.target_port.port.to_be_bytes(),
        protocol: [selector.protocol],
        side: [u8::from(selector.family == Family::Ipv4)],
    })
}

fn mask(PolicyRule { selector, .. }: &PolicyRule) -> KeyBytes {
    let range = |range: SourceRange| u128::MAX.checked_shl(128 - u32::from(range.prefix)).unwrap_or(0).to_be_bytes();
    let port = |it: PortMask| it.mask.to_be_bytes();
    bytes_of!(types::packet_key {
        source: range(selector.source),
        target: range(selector.target),
        source_port_be: port(selector.source_port),
        target_port_be: port(selector.target_port),
        protocol: [if selector.protocol == 0 { 0 } else { u8::MAX }],
        side: [1],
    })
}
