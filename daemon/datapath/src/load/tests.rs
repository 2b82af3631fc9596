use super::*;

fn refused_with(number: i32, log: &str) -> OpenError {
    refusal(libbpf_rs::Error::from_raw_os_error(number), log)
}

#[test]
fn what_is_short_may_pass_and_what_the_verifier_says_does_not() {
    for short in [libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::EAGAIN, libc::EINTR, libc::ENOSPC] {
        let error = refused_with(short, "");
        assert!(matches!(error, OpenError::Refused { may_pass: true, .. }), "{error:?}");
    }
    for said in [libc::EINVAL, libc::EACCES, libc::E2BIG, libc::EPERM] {
        let error = refused_with(said, "processed 9 insns");
        assert!(matches!(error, OpenError::Refused { may_pass: false, .. }), "{error:?}");
    }
    for log in
        ["fd 19 is not pointing to valid bpf_map\nprocessed 0 insns", "libbpf: map 'slots': failed to create: -EMFILE"]
    {
        let error = refused_with(libc::EINVAL, log);
        assert!(matches!(error, OpenError::Refused { may_pass: true, .. }), "{error:?}");
    }
    assert!(matches!(refused_with(libc::EPERM, ""), OpenError::Forbidden { .. }));
    assert!(matches!(refused_with(libc::ENOSYS, ""), OpenError::Lacks { .. }));
}
