use super::*;
use crate::filters::HEADER;

/// The descriptor is not the one of a program: the kernel reads it only after the device.
fn any_descriptor() -> std::fs::File {
    std::fs::File::open("/dev/null").unwrap()
}

#[test]
fn the_acknowledgment_has_the_error() {
    let answer = |code: i32| {
        let mut bytes = message(ERROR, 0, [0; 4], &[]);
        bytes[HEADER..HEADER + 4].copy_from_slice(&code.to_ne_bytes());
        result(&bytes)
    };
    assert!(answer(0).unwrap().is_ok());
    assert_eq!(answer(-libc::EPERM).unwrap().unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert!(result(&message(libc::RTM_NEWTFILTER, 0, [0; 4], &[])).is_none(), "an event");
    assert!(result(&[0; 7]).is_none(), "truncated");
}

#[test]
fn requests_have_their_lengths() {
    use std::os::fd::AsFd;
    let file = any_descriptor();
    let attributes = [attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &options(file.as_fd()))].concat();
    for request in [
        qdisc(7, libc::RTM_NEWQDISC, CREATE),
        filter(7, Direction::Out, libc::RTM_NEWTFILTER, CREATE, &attributes),
        filter(7, Direction::In, libc::RTM_DELTFILTER, 0, &attribute(TCA_KIND, b"bpf\0")),
    ] {
        assert_eq!(u32::from_ne_bytes(*request.first_chunk().unwrap()) as usize, request.len());
        assert_eq!(request.len() % 4, 0);
        assert_eq!(request[HEADER + 4..HEADER + 8], 7_u32.to_ne_bytes());
    }
}

/// Either the right to change devices is missing, or there is no such device.
#[test]
fn the_kernel_refuses_changes_at_no_device() {
    use std::os::fd::AsFd;
    let file = any_descriptor();
    let none = u32::MAX >> 1;
    for change in [FilterChange::AddQdisc, FilterChange::Replace(Direction::In), FilterChange::Remove(Direction::Out)] {
        let refused = InThisProcess.change(none, change, Some(file.as_fd())).unwrap_err();
        assert!(matches!(refused.raw_os_error(), Some(libc::EPERM | libc::ENODEV)), "{change:?}: {refused}");
    }
    let without = InThisProcess.change(none, FilterChange::Replace(Direction::In), None).unwrap_err();
    assert_eq!(without.kind(), io::ErrorKind::InvalidInput);
}
