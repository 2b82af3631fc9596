use super::*;
use crate::sockets::netfilter::tests::encode;

#[test]
fn the_name_of_a_chain_is_not_that_of_its_table() {
    let chain = [encode(1, b"nat\0"), encode(CHAIN_NAME, b"KUBE-SERVICES\0")].concat();
    assert_eq!(name(&chain, CHAIN_NAME).as_deref(), Some(CHAIN));
    assert_eq!(name(&chain, CHAIN_TABLE).as_deref(), Some("nat"));
    assert_eq!(name(&encode(1, b"nat\0"), CHAIN_NAME), None);
}

#[test]
fn a_chain_that_drops_forwarded_packets_is_one_at_that_hook() {
    let chain = |hook: u32, policy: u32| {
        let place = encode(HOOK_NUMBER, &hook.to_be_bytes());
        [encode(CHAIN_HOOK, &place), encode(CHAIN_POLICY, &policy.to_be_bytes())].concat()
    };
    assert!(drops_forwarded(&chain(HOOK_FORWARD, POLICY_DROP)));
    assert!(!drops_forwarded(&chain(HOOK_FORWARD, 1)), "NF_ACCEPT");
    assert!(!drops_forwarded(&chain(1, POLICY_DROP)), "the chain INPUT");
    assert!(!drops_forwarded(&encode(CHAIN_NAME, b"KUBE-SERVICES\0")), "no base chain");
    assert!(!drops_forwarded(&chain(HOOK_FORWARD, POLICY_DROP)[..9]), "a truncated answer");
}

#[test]
fn a_chain_of_a_bridge_drops_no_packet_that_the_stack_forwards() {
    let place = encode(HOOK_NUMBER, &HOOK_FORWARD.to_be_bytes());
    let hook = [encode(CHAIN_HOOK, &place), encode(CHAIN_POLICY, &POLICY_DROP.to_be_bytes())].concat();
    let chain = [encode(CHAIN_TABLE, b"filter\0"), encode(CHAIN_NAME, b"FORWARD\0"), hook].concat();
    let name = "the chain FORWARD of the table filter".to_owned();
    let of = |family: i32| dropping(u8::try_from(family).unwrap(), &chain);
    assert_eq!(of(libc::NFPROTO_IPV4), Some(DroppingChain { name: name.clone(), family: Some(Family::Ipv4) }));
    assert_eq!(of(libc::NFPROTO_INET), Some(DroppingChain { name, family: None }));
    assert_eq!(of(libc::NFPROTO_BRIDGE), None);
    assert_eq!(dropping(2, &encode(CHAIN_NAME, b"FORWARD\0")), None);
}
