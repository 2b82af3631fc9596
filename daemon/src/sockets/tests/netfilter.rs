use super::*;

/// An attribute as the kernel writes it.
pub(in crate::sockets) fn encode(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A message with these attributes.
pub(in crate::sockets) fn message(kind: u16, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + NFGENMSG + attributes.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &[2, 0, 0, 0], attributes].concat()
}

fn taken(datagram: &[u8]) -> (bool, Vec<Vec<u8>>) {
    let mut values = Vec::new();
    let is_end =
        read(datagram, 4, &mut |attributes| values.extend(attribute(attributes, 3).map(<[u8]>::to_vec))).unwrap();
    (is_end, values)
}

#[test]
fn attributes_are_read_until_the_end() {
    let object = |text: &[u8]| message(7, &[encode(1, b"other"), encode(0x8003, text)].concat());
    let datagram = [object(b"one"), object(b"two")].concat();
    assert_eq!(taken(&datagram), (false, vec![b"one".to_vec(), b"two".to_vec()]), "more follow");
    assert_eq!(
        taken(&[object(b"one"), message(NLMSG_DONE, &[]), object(b"two")].concat()),
        (true, vec![b"one".to_vec()])
    );
    for length in 0..datagram.len() {
        assert!(taken(&datagram[..length]).1.len() < 2, "nothing is read from truncated messages");
    }
    assert_eq!(attribute(&encode(3, b"long")[..6], 3), None);
    assert_eq!(attribute(&[0, 0, 1, 0, 8, 0, 3, 0, 1, 2, 3, 4], 3), Some(&[1, 2, 3, 4][..]), "a length of 0");
}

#[test]
fn a_refusal_is_an_error_and_a_kernel_without_the_kind_has_no_objects() {
    let answer = |code: i32| {
        let [a, b, c, d] = (-code).to_ne_bytes();
        let mut error = message(NLMSG_ERROR, &[]);
        error[HEADER..].copy_from_slice(&[a, b, c, d]);
        read(&error, 4, &mut |_: &[u8]| panic!("no object"))
    };
    assert_eq!(answer(libc::EPERM).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert!(answer(libc::EOPNOTSUPP).unwrap());
}
