use super::super::{Config, Problem};
use super::*;

fn problems(text: &str) -> Vec<String> {
    Config::parse(text).unwrap_err().iter().map(Problem::to_string).collect()
}

#[test]
fn every_key_can_be_set_and_printed_again() {
    let text = r#"
        [datapath]
        nodeport-range = "30000-31000"
        [packets]
        mode = "drain"
        devices = ["auto", "eth0", "wg*"]
        except = ["docker*"]
        pod-devices = ["tap*"]
        snat = "always"
        snat-ports = "31001-40000"
        choice = "random"
        cluster-ips = true
        unknown = "reset"
        answer = false
        max-connections = 1
        max-handshakes = 64
        max-outside = 1
        max-fragments = 64
        max-source-ranges = 1
        tcp-timeout = "1m"
        udp-timeout = "10s"
    "#;
    let config = Config::parse(text).unwrap();
    let packets = &config.packets;
    assert_eq!((packets.mode, packets.snat, packets.choice), (PacketMode::Drain, Snat::Always, Choice::Random));
    assert_eq!(packets.snat_ports.clone().resolve(&(1..=2), &(3..=4)), Ok(31_001..=40_000));
    assert_eq!(Config::parse(&config.to_toml()), Ok(config));
}

#[test]
fn masquerading_for_all_backends_requires_programs_at_pods() {
    let text = "[packets]\nmode = \"on\"\nsnat = \"always\"\n";
    let problems = Config::parse(text).unwrap_err();
    assert!(problems.iter().any(|it| it.message.contains("requires packets.pod-devices")), "{problems:?}");
    assert!(Config::parse(&format!("{text}pod-devices = [\"tap*\"]\n")).is_ok());
}

#[test]
fn a_star_in_a_device_name_means_any_characters() {
    let matches = |pattern: &str, name: &str| device_name(pattern).unwrap().matches(name);
    for (pattern, name) in [("eth0", "eth0"), ("eth*", "eth0"), ("eth*", "eth"), ("*", "x"), ("e*0", "enp3s0")] {
        assert!(matches(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [("eth0", "eth00"), ("eth*", "veth0"), ("e*0", "eth1"), ("auto", "auto")] {
        assert!(!matches(pattern, name), "{pattern} {name}");
    }
    for text in ["", "a b", "a/b", "a:b", "..", "eth?", "a-name-that-is-too-long"] {
        assert!(device_name(text).unwrap_err().contains("is not the name of a device"), "{text}");
    }
}

#[test]
fn the_automatic_range_is_the_largest_gap() {
    let auto = |local, nodeports| SnatPorts::Auto.resolve(&local, &nodeports);
    assert_eq!(auto(32_768..=60_999, 30_000..=32_767), Ok(10_000..=29_999));
    assert_eq!(auto(10_000..=40_000, 30_000..=32_767), Ok(40_001..=65_535));
    assert_eq!(auto(1024..=50_000, 60_000..=60_001), Ok(50_001..=59_999));
    // The first of two that are equal.
    assert_eq!(auto(20_000..=55_535, 1..=1), Ok(10_000..=19_999));
    assert_eq!(auto(14_096..=65_535, 1..=1), Ok(10_000..=14_095));
    // Processes get nearly all ports: the programs find out which are free.
    assert_eq!(auto(14_095..=65_535, 30_000..=32_767), Ok(32_768..=65_535));
    let refused = auto(32_768..=60_999, 10_010..=65_000).unwrap_err();
    for part in ["10010-65000", "datapath.nodeport-range", "packets.snat-ports"] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn a_range_may_overlap_local_ports_with_a_warning() {
    let ports = snat_ports("30000-40000").unwrap();
    let range = ports.resolve(&(40_000..=50_000), &(1..=2)).unwrap();
    assert_eq!(range, 30_000..=40_000);
    assert!(SnatPorts::overlap(&range, &(40_000..=50_000)).unwrap().contains("40000-50000"));
    assert_eq!(SnatPorts::overlap(&range, &(40_001..=50_000)), None);
}

#[test]
fn ranges_that_cannot_be_used_are_refused() {
    let refused = |range: &str| problems(&format!("[packets]\nsnat-ports = \"{range}\"\n")).join(" ");
    assert!(refused("32767-40000").contains("contains ports of datapath.nodeport-range (30000-32767)"));
    assert!(refused("1-2000").contains("below 1024"));
    assert!(refused("2000-1999").contains("is not a port range") && refused("x").contains("or \"auto\""));
    let next_to = "[datapath]\nnodeport-range = \"20000-20010\"\n[packets]\nsnat-ports = \"20011-32767\"\n";
    assert!(Config::parse(next_to).is_ok());
}

#[test]
fn where_nodeports_leave_no_range_those_in_the_source_ports_are_refused() {
    let guarded = |nodeports: &str, rest: &str| {
        let text =
            format!("[datapath]\nnodeport-range = \"{nodeports}\"\n[packets]\nsnat-ports = \"20000-29999\"\n{rest}");
        Config::parse(&text).map(|config| config.guard().source_ports).map_err(|problems| problems[0].to_string())
    };
    for nodeports in ["1-65535", "13000-63000"] {
        assert_eq!(guarded(nodeports, ""), Ok(Some(20_000..=29_999)), "{nodeports}");
    }
    assert_eq!(guarded("1-65535", "mode = \"off\"\n"), Ok(None));
    assert_eq!(guarded("30000-32767", ""), Ok(None));
    let avoidable = guarded("20000-61439", "").unwrap_err();
    assert!(avoidable.contains("use a range outside of it"), "{avoidable}");
    assert_eq!(Config::parse("[datapath]\nnodeport-range = \"1-65535\"\n").unwrap().guard().source_ports, None);
}

#[test]
fn devices_that_are_selected_and_excluded_are_refused() {
    let refused = |lists: &str| problems(&format!("[packets]\n{lists}\n")).join(" ");
    let text = refused("devices = [\"eth0\"]\nexcept = [\"eth*\"]");
    assert_eq!(text, "line 2: packets.devices: `eth0` is excluded by `eth*` in packets.except; remove one of the two");
    assert!(refused("except = [\"auto\"]").contains("only in packets.devices"));
    assert!(refused("pod-devices = [\"auto\"]").contains("only in packets.devices"));
    assert!(refused("devices = [\"tap*\"]\npod-devices = [\"tap0\"]").contains("`tap0` is also in packets.devices"));
    assert!(refused("devices = [\"eth*\"]\nexcept = [\"*\"]").contains("`eth*` is excluded"));
    assert!(Config::parse("[packets]\ndevices = [\"eth*\"]\nexcept = [\"eth1\"]\n").is_ok());
}

#[test]
fn a_reload_applies_what_needs_no_restart() {
    let mut old = Config::default();
    old.packets.mode = PacketMode::On;
    let mut new = old.clone();
    new.packets.mode = PacketMode::Drain;
    new.packets.unknown = Unknown::Reset;
    new.packets.except = vec![device_name("eth1").unwrap()];
    assert_eq!(old.restart_keys(&new), [""; 0]);
    assert_eq!(old.packets.reloaded(&new.packets), new.packets);
    new.packets.mode = PacketMode::Off;
    new.packets.max_outside += 1;
    assert_eq!(old.restart_keys(&new), ["packets.mode", "packets.max-outside"]);
    let reloaded = old.packets.reloaded(&new.packets);
    assert_eq!((reloaded.mode, reloaded.max_outside), (PacketMode::On, old.packets.max_outside));
    assert_eq!(reloaded.unknown, Unknown::Reset);
}
