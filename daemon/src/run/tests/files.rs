use super::*;

#[test]
fn the_node_s_own_addresses_and_loopback_ones_are_local() {
    let addr = |text: &str| text.parse::<Addr>().unwrap();
    let node = NodeFacts { addresses: [addr("192.0.2.1"), addr("2001:db8::1")].into(), ..NodeFacts::default() };
    for (text, expected) in [
        ("192.0.2.1", true),
        ("2001:db8::1", true),
        ("127.0.0.2", true),
        ("::1", true),
        ("192.0.2.2", false),
        ("2001:db8::2", false),
    ] {
        assert_eq!(is_local(&node, addr(text)), expected, "{text}");
        assert!(is_local(&NodeFacts::default(), addr(text)), "{text}, before the node's addresses are known");
    }
}
