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

/// An entry of the length of `struct ipt_entry`, and a verdict as its target.
#[test]
fn the_policy_of_forward_is_the_verdict_of_its_last_entry() {
    const LENGTH: u16 = 112;
    let table = |verdict: i32| {
        let mut entry = vec![0; usize::from(LENGTH) + TARGET];
        entry[V4_ENTRY..V4_ENTRY + 2].copy_from_slice(&LENGTH.to_ne_bytes());
        entry.extend(verdict.to_ne_bytes());
        let mut info = [0; INFO];
        info[FORWARD_POLICY..FORWARD_POLICY + 4].copy_from_slice(&8_u32.to_ne_bytes());
        Table { info, entries: [vec![0; HEAD + 8], entry].concat() }
    };
    let mut dropping = table(DROP);
    assert!(drops(&dropping, V4_ENTRY));
    dropping.entries.pop();
    assert!(!drops(&dropping, V4_ENTRY), "a truncated answer");
    assert!(!drops(&table(-2), V4_ENTRY), "NF_ACCEPT");
}
