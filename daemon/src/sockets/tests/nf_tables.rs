use super::*;
use crate::sockets::netfilter::tests::encode;

#[test]
fn the_name_of_a_chain_is_not_that_of_its_table() {
    let chain = [encode(1, b"nat\0"), encode(CHAIN_NAME, b"KUBE-SERVICES\0")].concat();
    assert_eq!(name(&chain, CHAIN_NAME).as_deref(), Some(CHAIN));
    assert_eq!(name(&chain, CHAIN_TABLE).as_deref(), Some("nat"));
    assert_eq!(name(&encode(1, b"nat\0"), CHAIN_NAME), None);
}
