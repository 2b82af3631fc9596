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
    for short in ["-ENOMEM", "-E2BIG"] {
        let log = format!("libbpf: map 'slots': failed to create: {short}\nlibbpf: failed to load object 'sock_bpf'\n");
        let error = refused_with(libc::ENOMEM, &log);
        assert!(matches!(error, OpenError::NoMap { .. }), "{error:?}");
        assert!(error.to_string().contains("map slots ") && error.to_string().contains("lower datapath.max-slots"));
    }
    assert!(matches!(refused_with(libc::EPERM, ""), OpenError::Forbidden { .. }));
    assert!(matches!(refused_with(libc::ENOSYS, ""), OpenError::Lacks { .. }));
}

/// net.core.bpf_jit_enable may be 2, for debugging; a kernel with CONFIG_BPF_JIT_ALWAYS_ON permits only 1.
#[test]
fn a_jit_that_is_off_is_recognised() {
    assert!(is_jit_off(Some("0\n"), ""));
    for on in [Some("1\n"), Some("2\n"), Some(""), None] {
        assert!(!is_jit_off(on, "processed 9 insns"), "{on:?}");
    }
    // The message of kernel/bpf/verifier.c.
    let error = refused_with(libc::EINVAL, "callbacks are not allowed in non-JITed programs\nprocessed 900 insns");
    assert!(matches!(error, OpenError::NoJit { .. }), "{error:?}");
    assert!(error.to_string().contains("net.core.bpf_jit_enable to 1"), "{error}");
}

/// Purging the Debian package removes every map that outlives generations: a name that it does not know would leave its
/// directory behind.
#[test]
fn purge_knows_every_lasting_map() {
    let script = include_str!("../../../../packaging/deb/postrm");
    let line = script.lines().find(|line| line.contains("rm -f \"$1/tcp_sockets\""));
    let mut removed: Vec<&str> = line.expect("a line that removes them").split('"').skip(1).step_by(2).collect();
    removed.iter_mut().for_each(|path| *path = path.trim_start_matches("$1/"));
    assert_eq!(removed, PERSISTENT);
}
