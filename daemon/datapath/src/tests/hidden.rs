use super::is_of_nodelb;
use crate::skeleton;

/// Another load balancer may have a program `connect4` and a map `services`.
#[test]
fn programs_are_recognised_by_their_source_files_and_by_no_name() {
    for object in [skeleton::object(), skeleton::with_layout(true, skeleton::object)] {
        assert!(is_of_nodelb(object), "the types of each object");
    }
    assert!(!is_of_nodelb(b"\0connect4\0services\0frontends\0/src/nodelb/bpf/sock.bpf.c\0"));
}
