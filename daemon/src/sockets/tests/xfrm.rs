use super::*;
use crate::sockets::netfilter::tests::encode;

/// `struct xfrm_userpolicy_info` of a policy from 203.0.113.2 port 80 to 203.0.113.11.
fn info(direction: u8, action: u8) -> Vec<u8> {
    let mut bytes = vec![0; POLICY];
    bytes[TARGET..TARGET + 4].copy_from_slice(&[203, 0, 113, 11]);
    bytes[SOURCE..SOURCE + 4].copy_from_slice(&[203, 0, 113, 2]);
    bytes[SOURCE_PORT..SOURCE_PORT + 4].copy_from_slice(&[0, 80, 0xff, 0xff]);
    bytes[FAMILY..FAMILY + 2].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[TARGET_PREFIX..=PROTOCOL].copy_from_slice(&[32, 24, 6]);
    bytes[PRIORITY..PRIORITY + 4].copy_from_slice(&7_u32.to_ne_bytes());
    bytes[DIRECTION..=ACTION].copy_from_slice(&[direction, action]);
    bytes
}

#[test]
fn a_policy_with_a_template_protects_what_it_selects() {
    let template = encode(TEMPLATES, &[0; 64]);
    let policy = policy(&[info(1, 0), template].concat()).unwrap();
    assert_eq!((policy.direction, policy.priority, policy.is_protected), (PolicyDirection::Out, 7, true));
    let Selector { source, target, source_port, target_port, protocol, family } = policy.selector;
    assert_eq!((source.addr.to_string(), source.prefix), ("203.0.113.0".to_owned(), 120));
    assert_eq!((target.addr.to_string(), target.prefix), ("203.0.113.11".to_owned(), 128));
    assert_eq!((source_port.port, source_port.mask, target_port.mask, protocol), (80, 0xffff, 0, 6));
    assert_eq!(family, Family::Ipv4);
}

#[test]
fn only_a_policy_without_a_template_that_allows_protects_nothing() {
    let is_protected = |action| policy(&info(0, action)).unwrap().is_protected;
    assert_eq!([is_protected(0), is_protected(BLOCK)], [false, true]);
}

#[test]
fn policies_for_other_packets_are_left_out() {
    let with = |attribute: Vec<u8>| policy(&[info(1, BLOCK), attribute].concat());
    assert!(with(encode(TYPE, &[1])).is_none(), "a sub policy");
    assert!(with(encode(INTERFACE_ID, &7_u32.to_ne_bytes())).is_none(), "of a device");
    assert!(policy(&info(3, BLOCK)).is_none(), "of a socket");
    let whole = info(1, BLOCK);
    for length in 0..whole.len() {
        assert!(policy(&whole[..length]).is_none(), "{length} bytes");
    }
}

#[test]
fn packets_without_a_policy_may_be_blocked() {
    assert_eq!(rest_of(&[2, 2, 2]), []);
    let rest = rest_of(&[0, 0, BLOCK]);
    assert_eq!(rest.len(), 2, "of both families");
    assert!(rest.iter().all(|it| it.direction == PolicyDirection::Out && it.is_protected));
}
