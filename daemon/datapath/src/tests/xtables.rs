use super::*;

/// The target that begins a chain.
fn head(chain: &str) -> Vec<u8> {
    let mut target = [&64_u16.to_ne_bytes()[..], b"ERROR"].concat();
    target.resize(32, 0);
    target.extend(chain.as_bytes());
    target.resize(64, 0);
    target
}

#[test]
fn a_chain_is_found_by_its_beginning_and_not_by_a_comment() {
    let entries = [vec![0; HEAD], head("INPUT-OF-MINE"), head("KUBE-SERVICES"), head("ERROR")].concat();
    assert!(has(&entries, "KUBE-SERVICES"));
    assert!(!has(&entries, "KUBE") && !has(&entries, "KUBE-SERVICES-2"));
    let comment = [&b"comment\0"[..], b"jump to KUBE-SERVICES\0"].concat();
    assert!(!has(&comment, "KUBE-SERVICES"));
    assert!(!has(&head("KUBE-SERVICES")[..40], "KUBE-SERVICES"), "a truncated answer");
}

#[test]
fn without_the_module_there_is_no_table() {
    assert!(!has_table("/proc/self/net/no_such_tables_names").unwrap());
}
