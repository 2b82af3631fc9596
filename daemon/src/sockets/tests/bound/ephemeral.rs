use super::super::*;

#[test]
fn says_nothing_where_the_kernel_hands_out_others() {
    for (local, reserved) in [
        ("32768\t60999\n", "\n"),
        ("1024 29999", ""),
        ("15000 61000", "30000-32767"),
        ("15000 61000", "22,30000-31000,31001-32767,40000"),
        ("nonsense", ""),
    ] {
        assert_eq!(overlap_of(&(30_000..=32_767), local, reserved), None, "{local} {reserved}");
    }
}

#[test]
fn names_what_is_shared_and_the_remedy() {
    let all = overlap_of(&(30_000..=32_767), "15000\t61000\n", "\n").unwrap();
    assert!(all.contains("(net.ipv4.ip_local_port_range 15000-61000) includes NodePorts 30000 to 32767"), "{all}");
    assert!(all.contains("`sysctl net.ipv4.ip_local_reserved_ports=30000-32767`"), "{all}");
    let some = overlap_of(&(30_000..=32_767), "32000 61000", "8080,32010-32767\n").unwrap();
    assert!(some.contains("NodePorts 32000 to 32009"), "{some}");
    assert!(some.contains("reserved_ports=8080,32010-32767,30000-32767`"), "{some}");
    let one = overlap_of(&(30_000..=32_768), "32768 60999", "").unwrap();
    assert!(one.contains("NodePorts 32768 to 32768"), "{one}");
    let no_port_left = overlap_of(&(1..=65_535), "32768 60999", "").unwrap();
    assert!(
        no_port_left.ends_with("Reserve those that services have in net.ipv4.ip_local_reserved_ports"),
        "{no_port_left}"
    );
}

#[test]
fn an_overlap_that_comes_while_nodelb_runs_is_logged_once() {
    let mut overlap = Overlap::new(30_000..=32_767);
    overlap.take("32768 60999", "");
    assert_eq!(overlap.logged, None);
    overlap.take("15000 60999", "");
    let logged = overlap.logged.clone().unwrap();
    assert!(logged.contains("that gets the port of a service as its ephemeral port"), "{logged}");
    overlap.take("15000 60999", "");
    assert_eq!(overlap.logged.as_ref(), Some(&logged), "the same is not logged again");
    overlap.take("15000 60999", "30000-32767");
    assert_eq!(overlap.logged, None, "and is when it comes back");
}
