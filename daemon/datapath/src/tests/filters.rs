use super::*;

fn part(header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = [header, body].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    part(&[length.to_ne_bytes(), kind.to_ne_bytes()].concat(), value)
}

fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    part(&[&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10]].concat(), body)
}

fn filter(handle: u32, options: &[u8]) -> Vec<u8> {
    let tcmsg = [[0; 4], [0; 4], handle.to_ne_bytes(), [0; 4], [0; 4]].concat();
    message(libc::RTM_NEWTFILTER, &[tcmsg, attribute_of(TCA_OPTIONS | 0x8000, options)].concat())
}

#[test]
fn filters_are_read_with_their_names() {
    let named = filter(1, &attribute_of(TCA_BPF_NAME, b"cil_from_netdev\0"));
    let datagram = [filter(0, &[]), named, filter(0x800, &attribute_of(1, &[0; 4]))].concat();
    let mut names = Vec::new();
    assert!(!parse(&datagram, &mut names).unwrap(), "more follow");
    assert_eq!(names, ["cil_from_netdev", ""]);
    assert!(parse(&message(DONE, &[0; 4]), &mut names).unwrap());
}

#[test]
fn a_device_without_the_qdisc_has_no_filters() {
    let refused = |code: i32| parse(&message(ERROR, &(-code).to_ne_bytes()), &mut Vec::new());
    assert!(refused(libc::ENODEV).unwrap() && refused(libc::EINVAL).unwrap());
    assert_eq!(refused(libc::EPERM).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(at_device(1).unwrap(), [""; 0], "the loopback device");
    assert_eq!(at_device(u32::MAX >> 1).unwrap(), [""; 0]);
}

#[test]
fn truncated_messages_end_the_list() {
    let whole = filter(1, &attribute_of(TCA_BPF_NAME, b"x\0"));
    for length in 0..whole.len() {
        let mut names = Vec::new();
        parse(&whole[..length], &mut names).unwrap();
        assert_eq!(names, [""; 0], "{length}");
    }
}
