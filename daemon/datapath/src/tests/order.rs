use super::*;

#[test]
fn a_record_has_the_programs_of_a_hook_in_their_order() {
    let mut record = [0; RECORD];
    record[0] = 7;
    record[4] = 21;
    record[8..13].copy_from_slice(b"other");
    // The second one is being detached.
    record[44] = 23;
    record[48..64].copy_from_slice(b"sixteen_bytes_xx");
    assert_eq!(parse(&record), (7, vec![(21, "other".into()), (23, "sixteen_bytes_xx".into())]));
}

fn program(is_first: bool, id: u32, of_nodelb: Option<&str>) -> SocketProgram {
    SocketProgram { is_first, hook: "connect4", id, name: String::new(), of_nodelb: of_nodelb.map(PathBuf::from) }
}

/// Of two nodelb in one cgroup, the one that ran first said nothing.
#[test]
fn another_nodelb_that_runs_after_this_one_is_named() {
    let foreign = [1, 3].map(|id| (id, PathBuf::from("/sys/fs/bpf/b"))).into();
    let found = [(true, 1), (true, 2), (false, 3)].map(|(is_first, id)| program(is_first, id, None));
    let [other, after] = [program(true, 2, None), program(false, 3, Some("/sys/fs/bpf/b"))];
    assert_eq!(after.to_string(), "program 3 at connect4 of the nodelb in /sys/fs/bpf/b");
    assert_eq!(with_pin_directories(found.into(), &foreign), [other, after]);
}

#[test]
fn programs_in_front_are_those_before_that_of_nodelb() {
    let program = |is_first, id| program(is_first, id, None);
    let listed = |ids: &[u32]| ids.iter().map(|id| (*id, String::new())).collect();
    assert_eq!(others("connect4", 2, listed(&[2])), []);
    assert_eq!(others("connect4", 2, listed(&[1, 2, 3])), [program(true, 1), program(false, 3)]);
    // So many programs that nodelb's is not among the first: all of those run before it.
    assert_eq!(others("connect4", 9, listed(&[1, 2])), [program(true, 1), program(true, 2)]);
}
