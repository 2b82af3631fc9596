//! The policies of IPsec: the first one that fits decides, in each direction, for packets and the opposite ones.

use super::*;

fn range(text: &str) -> SourceRange {
    SourceRange::from(crate::model::addr::parse_net(text).expect("a network"))
}

fn at(text: &str) -> L4Addr {
    L4Addr::new(
        Addr::from(text.parse::<std::net::IpAddr>().expect("an address")),
        80,
        crate::model::addr::Protocol::Tcp,
    )
}

fn policy(direction: PolicyDirection, (source, target): (&str, &str), is_protected: bool) -> Policy {
    let [source, target] = [source, target].map(range);
    let selector = Selector { source, target, ..Selector::everything(source.family()) };
    Policy { direction, priority: 10, selector, is_protected }
}

use PolicyDirection::{Forward, In, Out};

#[test]
fn a_policy_counts_for_packets_and_for_the_opposite_ones() {
    let policies = Policies::new(&[policy(Out, ("203.0.113.2/32", "203.0.113.11/32"), true)], 100);
    assert!(policies.protect(at("203.0.113.2"), at("203.0.113.11")));
    assert!(policies.protect(at("203.0.113.11"), at("203.0.113.2")));
    assert!(!policies.protect(at("203.0.113.2"), at("203.0.113.12")));
    assert!(!policies.protect(at("203.0.113.11"), at("203.0.113.11")));
}

#[test]
fn the_first_policy_of_a_direction_decides() {
    let lan = policy(Out, ("203.0.113.0/24", "203.0.113.0/24"), false);
    let all = policy(Out, ("203.0.113.0/24", "0.0.0.0/0"), true);
    let first = Policy { priority: 1, ..lan };
    let policies = Policies::new(&[all, first], 100);
    assert!(!policies.protect(at("203.0.113.2"), at("203.0.113.11")), "an exception comes before the rest");
    assert!(policies.protect(at("203.0.113.2"), at("198.51.100.1")));
    let policies = Policies::new(&[all, lan], 100);
    assert!(policies.protect(at("203.0.113.2"), at("203.0.113.11")), "of equal ones, the first that is listed");
    let inward = policy(In, ("203.0.113.11/32", "203.0.113.2/32"), true);
    let policies = Policies::new(&[all, first, inward], 100);
    assert!(policies.protect(at("203.0.113.2"), at("203.0.113.11")), "an exception is of one direction");
}

#[test]
fn symmetric_policies_take_the_room_of_one() {
    let pair = ("203.0.113.2/32", "203.0.113.11/32");
    let back = (pair.1, pair.0);
    let all = [policy(Out, pair, true), policy(In, back, true), policy(Forward, back, true)];
    assert_eq!(Policies::new(&all, 100).rules.len(), 2);
}

#[test]
fn policies_that_only_let_packets_pass_are_none() {
    let policies = Policies::new(&[policy(Out, ("0.0.0.0/0", "0.0.0.0/0"), false)], 100);
    assert_eq!(policies, Policies::default());
}

#[test]
fn a_policy_of_a_family_does_not_select_the_other() {
    let policies = Policies::new(&[policy(Out, ("::/0", "::/0"), true)], 100);
    assert!(policies.protect(at("2001:db8::1"), at("2001:db8::2")));
    assert!(!policies.protect(at("203.0.113.2"), at("203.0.113.11")));
    let policies = Policies::new(&[policy(Out, ("0.0.0.0/0", "0.0.0.0/0"), true)], 100);
    assert!(!policies.protect(at("2001:db8::1"), at("2001:db8::2")));
}

#[test]
fn ports_and_protocols_count() {
    let mut web = policy(Out, ("203.0.113.2/32", "203.0.113.11/32"), true);
    web.selector.target_port = PortMask { port: 80, mask: 0xffff };
    web.selector.protocol = 6;
    let policies = Policies::new(&[web], 100);
    let other = |it: L4Addr, port| L4Addr { port, ..it };
    assert!(policies.protect(other(at("203.0.113.2"), 4000), at("203.0.113.11")));
    assert!(policies.protect(at("203.0.113.11"), other(at("203.0.113.2"), 4000)), "the answer");
    assert!(!policies.protect(at("203.0.113.2"), other(at("203.0.113.11"), 81)));
    let datagram = |it: L4Addr| L4Addr { protocol: crate::model::addr::Protocol::Udp, ..it };
    assert!(!policies.protect(datagram(at("203.0.113.2")), datagram(at("203.0.113.11"))));
}

#[test]
fn of_policies_that_do_not_fit_everything_is_protected() {
    let many: Vec<Policy> =
        (0..20).map(|last| policy(Out, ("203.0.113.2/32", &format!("198.51.100.{last}/32")), true)).collect();
    let policies = Policies::new(&many, 10);
    assert!(policies.is_cut);
    assert_eq!(policies.rules.len(), 10);
    assert!(policies.protect(at("192.0.2.1"), at("192.0.2.2")));
    assert!(policies.protect(at("2001:db8::1"), at("2001:db8::2")));
}
