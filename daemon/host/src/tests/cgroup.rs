use super::*;

const MOUNTS: &str = "\
24 1 0:22 / /proc rw - proc proc rw
31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
";

#[test]
fn the_own_cgroup_is_below_the_mount() {
    let path = |cgroup: &str| path_in(cgroup, MOUNTS).map(|path| path.display().to_string());
    assert_eq!(path("0::/user.slice/a\n").as_deref(), Some("/sys/fs/cgroup/user.slice/a"));
    assert_eq!(path("1:cpu:/x\n0::/\n").as_deref(), Some("/sys/fs/cgroup/"));
    assert_eq!(path("1:cpu:/x\n"), None, "no cgroup v2");
    let bound = MOUNTS.replace(" / /sys/fs/cgroup", " /user.slice /sys/fs/cgroup");
    assert_eq!(path_in("0::/user.slice/a", &bound).unwrap(), Path::new("/sys/fs/cgroup/a"));
    assert_eq!(path_in("0::/system.slice", &bound), None, "not below the mount");
    let both = format!("30 24 0:27 /../out /run/out rw - cgroup2 cgroup2 rw\n{MOUNTS}");
    assert_eq!(path_in("0::/system.slice", &both).unwrap(), Path::new("/sys/fs/cgroup/system.slice"));
}

#[test]
fn this_test_is_in_its_own_cgroup_and_what_cannot_be_compared_is_not_blamed() {
    let own = own().unwrap();
    assert!(!is_outside(&own));
    assert!(!is_outside(Path::new("/proc")), "not a cgroup");
    assert!(!is_outside(Path::new("/none")));
}
