use super::*;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
}

/// A chain of a table, as the kernel lists it.
fn chain(table: &str, name: &str) -> Vec<u8> {
    let attributes =
        [attribute(1, format!("{table}\0").as_bytes()), attribute(CHAIN_NAME, format!("{name}\0").as_bytes())];
    message(10 << 8 | 3, &[&[2, 0, 0, 0], &attributes.concat()[..]].concat())
}

#[test]
fn names_are_read_from_the_answer() {
    let datagram = [chain("nat", "PREROUTING"), chain("nat", "KUBE-SERVICES")].concat();
    let mut found = BTreeSet::new();
    assert!(!take(&datagram, CHAIN_NAME, &mut found).unwrap(), "more follow");
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["KUBE-SERVICES", "PREROUTING"]);
    assert!(take(&message(DONE, &[0; 4]), CHAIN_NAME, &mut found).unwrap());
    for length in 0..datagram.len() {
        take(&datagram[..length], CHAIN_NAME, &mut found).unwrap();
    }
    assert_eq!(found.len(), 2, "nothing is read from truncated messages");
}

#[test]
fn a_refusal_is_an_error_and_a_kernel_without_nftables_has_no_rules() {
    let answer = |code: i32| take(&message(ERROR, &(-code).to_ne_bytes()), 1, &mut BTreeSet::new());
    assert_eq!(answer(libc::EPERM).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert!(answer(libc::EOPNOTSUPP).unwrap());
}
