//! The policies of IPsec on this node (`ip xfrm policy`), and which packets they protect.
//!
//! The network stack looks policies up for each packet, which the packet programs send past it. The programs follow the
//! same lists (`bpf/ipsec.h`): in each direction, the first policy that fits decides. As an answer goes the other way, each
//! policy also counts for the opposite packets.

use crate::model::addr::{Addr, Family, L4Addr};
use crate::model::source_range::SourceRange;
use crate::model::uplink::UplinkEntry;

/// Which packets a policy is for; in the order of `enum` in `linux/xfrm.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyDirection {
    In,
    Out,
    Forward,
}

impl PolicyDirection {
    pub const ALL: [Self; 3] = [Self::In, Self::Out, Self::Forward];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub direction: PolicyDirection,
    /// The kernel looks up those with smaller numbers first; of equal ones, the one that was listed first.
    pub priority: u32,
    pub selector: Selector,
    /// Whether such packets are not sent in clear text: the policy has a template, or blocks them.
    pub is_protected: bool,
}

/// The packets that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    pub family: Family,
    pub source: SourceRange,
    pub target: SourceRange,
    pub source_port: PortMask,
    pub target_port: PortMask,
    /// The number of the IP protocol; 0: any.
    pub protocol: u8,
}

/// The ports with these bits, of those that the mask has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMask {
    pub port: u16,
    pub mask: u16,
}

impl PortMask {
    const fn contains(self, port: u16) -> bool {
        (self.port ^ port) & self.mask == 0
    }
}

impl Selector {
    /// All packets of a family.
    pub fn everything(family: Family) -> Self {
        let prefix = if family == Family::Ipv4 { 96 } else { 0 };
        let all = SourceRange::new(Addr::unspecified(family), prefix);
        let (source_port, target_port) = (PortMask::default(), PortMask::default());
        Self { family, source: all, target: all, source_port, target_port, protocol: 0 }
    }

    const fn reversed(self) -> Self {
        let Self { source, target, source_port, target_port, .. } = self;
        Self { source: target, target: source, source_port: target_port, target_port: source_port, ..self }
    }

    fn selects(&self, source: L4Addr, target: L4Addr) -> bool {
        self.family == target.addr.family()
            && self.source.contains(source.addr)
            && self.target.contains(target.addr)
            && self.source_port.contains(source.port)
            && self.target_port.contains(target.port)
            && (self.protocol == 0 || self.protocol == target.protocol.number())
    }
}

/// A policy for packets in one of its two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    pub selector: Selector,
    /// The bit of the list in which the first rule that fits decides.
    pub list: u8,
    pub is_protected: bool,
}

/// The list of what is not in a list that was cut.
const CUT: u8 = 1 << 6;

/// The rules that the programs follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    pub rules: Vec<PolicyRule>,
    /// Whether there were more than fit, so that every address counts as protected.
    pub is_cut: bool,
}

impl Policies {
    /// The rules of these policies, in the order in which the kernel lists them; at most `most`.
    pub fn new(policies: &[Policy], most: usize) -> Self {
        let mut lists: Vec<Vec<(Selector, bool)>> = Vec::new();
        for direction in PolicyDirection::ALL {
            let mut of: Vec<&Policy> = policies.iter().filter(|it| it.direction == direction).collect();
            of.sort_by_key(|it| it.priority);
            // What only lets packets pass changes nothing behind the last one that does not.
            let last = of.iter().rposition(|it| it.is_protected).map_or(0, |at| at + 1);
            of.truncate(last);
            let as_is: Vec<_> = of.iter().map(|it| (it.selector, it.is_protected)).collect();
            let reversed = of.iter().map(|it| (it.selector.reversed(), it.is_protected)).collect();
            // Policies are usually the same in both directions.
            for list in [as_is, reversed] {
                if !list.is_empty() && !lists.contains(&list) {
                    lists.push(list);
                }
            }
        }
        let mut bit = 1;
        let mut rules = Vec::new();
        for list in lists {
            rules.extend(list.into_iter().map(|(selector, is_protected)| PolicyRule {
                selector,
                list: bit,
                is_protected,
            }));
            bit <<= 1;
        }
        let is_cut = rules.len() > most;
        if is_cut {
            rules.truncate(most.saturating_sub(2));
            let all = [Family::Ipv4, Family::Ipv6].map(Selector::everything);
            rules.extend(all.map(|selector| PolicyRule { selector, list: CUT, is_protected: true }));
        }
        Self { rules, is_cut }
    }

    /// Whether packets from one of these to the other, or the opposite ones, are not sent or accepted in clear text.
    pub fn protect(&self, source: L4Addr, target: L4Addr) -> bool {
        let mut decided = 0;
        for rule in &self.rules {
            if decided & rule.list == 0 && rule.selector.selects(source, target) {
                if rule.is_protected {
                    return true;
                }
                decided |= rule.list;
            }
        }
        false
    }

    /// Whether packets to the backend are protected that have the node's address on one of these uplinks.
    pub fn protect_to<'a>(&self, backend: L4Addr, uplinks: impl IntoIterator<Item = &'a UplinkEntry>) -> bool {
        let own = uplinks.into_iter().flat_map(|it| [it.v4, it.v6]).flatten();
        let mut sources = own.filter(|own| own.family() == backend.addr.family() && *own != backend.addr);
        sources.any(|own| self.protect(L4Addr { addr: own, port: 0, ..backend }, backend))
    }
}

#[cfg(test)]
#[path = "tests/ipsec.rs"]
mod tests;
