use super::*;

#[test]
fn cgroup_v2_is_found_alone_and_next_to_v1() {
    let alone = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    assert_eq!(find_cgroup_root(alone), Some(PathBuf::from("/sys/fs/cgroup")));
    let next_to_v1 = "29 23 0:25 / /sys/fs/cgroup ro shared:3 - tmpfs tmpfs ro,mode=755
31 29 0:27 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory
32 29 0:28 / /sys/fs/cgroup/unified rw shared:6 - cgroup2 cgroup2 rw";
    assert_eq!(find_cgroup_root(next_to_v1), Some(PathBuf::from("/sys/fs/cgroup/unified")));
}

#[test]
fn the_mount_of_the_whole_hierarchy_wins_over_a_part() {
    let both = "40 1 0:28 /pods/a /part rw - cgroup2 none rw\n41 1 0:28 / /whole\\040tree rw - cgroup2 none rw";
    assert_eq!(find_cgroup_root(both), Some(PathBuf::from("/whole tree")));
}

#[test]
fn no_cgroup_v2_is_none() {
    assert_eq!(find_cgroup_root("31 29 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"), None);
    assert_eq!(find_cgroup_root(""), None);
}

#[test]
fn a_whole_bpffs_differs_from_a_directory_of_one() {
    let mounted = "50 1 0:30 / /sys/fs/bpf rw shared:9 - bpf bpf rw,mode=700
51 50 0:30 /nodelb /sys/fs/bpf/nodelb rw - bpf bpf rw,mode=700
52 1 0:31 / /sys/fs/other rw - tmpfs tmpfs rw";
    let is_whole = |place: &str| is_whole_bpffs(mounted, Path::new(place));
    assert!(is_whole("/sys/fs/bpf"));
    assert!(!is_whole("/sys/fs/bpf/nodelb"), "the unit has it mounted upon itself");
    assert!(!is_whole("/sys/fs/other") && !is_whole("/sys/fs"));
}
