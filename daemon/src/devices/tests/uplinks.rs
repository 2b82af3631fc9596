use super::*;
use crate::config::Config;
use crate::node::addresses::Address;

/// A machine under construction. Interfaces get the indexes 1, 2, ... in the order of their addition.
#[derive(Default)]
struct Host {
    machine: Machine,
    routes: BTreeMap<u32, Routes>,
}

impl Host {
    /// A host with lo and eth0, which has the default route.
    fn new() -> Self {
        let mut host = Self::default();
        host.add("lo", "").is_loopback = true;
        host.add("eth0", "");
        host.address("eth0", "203.0.113.1").default_route("eth0");
        host.machine.sources.push(addr("203.0.113.1"));
        host
    }

    fn add(&mut self, name: &str, kind: &str) -> &mut Interface {
        let index = u32::try_from(self.machine.interfaces.len()).unwrap() + 1;
        let interface = Interface {
            name: name.into(),
            kind: kind.into(),
            is_up: true,
            link_type: link_type::ETHER,
            mtu: 1500,
            ..Interface::default()
        };
        self.machine.interfaces.entry(index).or_insert(interface)
    }

    /// Adds a device on top of or as port of others.
    fn stacked(&mut self, name: &str, kind: &str, lower: &str) -> &mut Self {
        let lower = self.index(lower);
        self.add(name, kind).lower = lower;
        self
    }

    fn port(&mut self, port: &str, master: &str) -> &mut Self {
        let (port, master) = (self.index(port), self.index(master));
        self.machine.interfaces.get_mut(&port).unwrap().master = master;
        self
    }

    fn elsewhere(&mut self, name: &str, kind: &str) -> &mut Self {
        self.add(name, kind).is_lower_elsewhere = true;
        self
    }

    fn index(&self, name: &str) -> u32 {
        *self.machine.interfaces.iter().find(|(_, it)| it.name == name).unwrap().0
    }

    fn address(&mut self, device: &str, text: &str) -> &mut Self {
        let address = Address {
            interface: self.index(device),
            addr: addr(text),
            is_global: !addr(text).is_link_local(),
            is_in_doubt: false,
            is_passing: false,
            is_secondary: false,
        };
        self.machine.addresses.push(address);
        self
    }

    fn last(&mut self) -> &mut Address {
        self.machine.addresses.last_mut().unwrap()
    }

    fn default_route(&mut self, device: &str) -> &mut Self {
        self.routes.insert(self.index(device), Routes { has_default: true, has_any: true });
        self
    }

    fn devices(&self, keys: &str) -> Vec<Device> {
        let config = Config::parse(&format!("[packets]\n{keys}\n")).unwrap();
        devices(&self.machine, &self.routes, &config)
    }

    fn device(&self, name: &str) -> Device {
        self.devices("").into_iter().find(|device| &*device.name == name).unwrap()
    }

    /// Each device in one word: `uplink`, `pod`, or the reason.
    fn roles(&self, keys: &str) -> Vec<(String, String)> {
        let role = |device: Device| match device.role {
            Role::Uplink => "uplink".into(),
            Role::Pod => "pod".into(),
            Role::PodBridge(port) => format!("pod, without {port}"),
            Role::Unused(reason) => reason.to_string(),
        };
        self.devices(keys).into_iter().map(|device| (device.name.to_string(), role(device))).collect()
    }

    fn role(&self, name: &str, keys: &str) -> String {
        self.roles(keys).into_iter().find(|(found, _)| found == name).unwrap().1
    }
}

fn addr(text: &str) -> Addr {
    text.parse().unwrap()
}

#[test]
fn hardware_with_an_address_is_an_uplink() {
    let mut host = Host::new();
    host.add("eth1", "");
    host.add("eth2", "").is_up = false;
    host.add("eth3", "").is_up = false;
    host.add("ib0", "").link_type = 32;
    host.address("eth2", "203.0.113.2");
    let expected = [
        ("lo", "the loopback device"),
        ("eth0", "uplink"),
        ("eth1", "it has neither an address nor a route"),
        ("eth2", "uplink"),
        ("eth3", "it is down"),
        ("ib0", "the programs do not support its link layer (ARPHRD type 32)"),
    ];
    assert_eq!(host.roles(""), expected.map(|(name, role)| (name.into(), role.into())));
    host.routes.insert(3, Routes { has_default: false, has_any: true });
    assert_eq!(host.role("eth1", ""), "uplink");
    assert_eq!(host.device("eth0").kind, "physical");
}

#[test]
fn an_uplink_that_goes_down_and_up_keeps_its_programs() {
    let mut host = Host::new();
    let before = host.devices("");
    let mut former = Former::new();
    keep(&mut before.clone(), &mut former, &host.machine);
    let index = host.index("eth0");
    host.machine.interfaces.get_mut(&index).unwrap().is_up = false;
    host.machine.addresses.retain(|address| address.interface != index);
    let down = host.devices("");
    let mut kept = down.clone();
    keep(&mut kept, &mut former.clone(), &host.machine);
    let eth0 = |devices: &[Device]| devices.iter().find(|device| device.ifindex == index).unwrap().clone();
    assert_eq!((eth0(&kept).role, eth0(&kept).kept), (Role::Uplink, Some(Reason::Down)));
    assert_eq!(eth0(&kept).entry, eth0(&before).entry, "with its addresses, which answers need when it is back");
    assert_eq!(eth0(&kept).sources, BTreeSet::new(), "but it has none now");
    let mut never_used = down.clone();
    keep(&mut never_used, &mut Former::new(), &host.machine);
    assert_eq!(never_used, down);
    let mut excluded = host.devices("except = [\"eth0\"]");
    host.machine.interfaces.get_mut(&index).unwrap().is_up = true;
    excluded[0].role = Role::Unused(Reason::ExcludedThoughNeeded);
    let wanted = excluded.clone();
    keep(&mut excluded[..1], &mut former, &host.machine);
    assert_eq!(excluded[..1], wanted[..1], "the configuration decides");
}

/// The stack resets a connection to a remote backend if an answer arrives before the programs are attached.
#[test]
fn a_device_has_its_programs_before_it_is_up() {
    let mut host = Host::new();
    host.add("flannel.1", "vxlan").is_up = false;
    host.add("tunl0", "ipip").is_up = false;
    host.add("wg0", "wireguard").is_up = false;
    host.elsewhere("direct", "veth").add("dummy0", "dummy");
    for index in [host.index("direct"), host.index("dummy0")] {
        host.machine.interfaces.get_mut(&index).unwrap().is_up = false;
    }
    assert_eq!(host.role("flannel.1", ""), "uplink");
    assert_eq!(host.role("wg0", ""), "uplink");
    assert_eq!(host.role("wg0", "except = [\"wg0\"]"), "it is down");
    assert_eq!(host.role("tunl0", ""), "it is down", "every network namespace has one");
    assert_eq!(host.role("direct", ""), "it is down");
    assert_eq!(host.role("direct", "devices = [\"auto\", \"direct\"]"), "uplink");
    assert_eq!(host.role("dummy0", ""), "it is down");
}

#[test]
fn an_uplink_that_is_made_again_is_one_from_the_start() {
    let mut host = Host::new();
    host.add("bond1", "bond");
    host.address("bond1", "203.0.113.2");
    let mut former = Former::new();
    keep(&mut host.devices(""), &mut former, &host.machine);
    let mut gone = Host::new().devices("");
    keep(&mut gone, &mut former, &Host::new().machine);
    let mut again = Host::new();
    again.add("other", "");
    again.add("bond1", "bond").is_up = false;
    let mut devices = again.devices("");
    assert_eq!(devices[3].role, Role::Unused(Reason::Down));
    keep(&mut devices, &mut former, &again.machine);
    assert_eq!((&devices[3].role, devices[3].entry.v4), (&Role::Uplink, None), "its addresses are not known yet");
    again.machine.interfaces.get_mut(&4).unwrap().kind = "dummy".into();
    let mut devices = again.devices("");
    keep(&mut devices, &mut former, &again.machine);
    assert_eq!(devices[3].role, Role::Unused(Reason::Down), "a device of another kind");
}

#[test]
fn a_bond_or_team_takes_its_ports() {
    for kind in ["bond", "team"] {
        let mut host = Host::new();
        host.add("trunk", kind);
        host.add("eth1", "");
        host.address("trunk", "203.0.113.2").port("eth1", "trunk").port("eth0", "trunk");
        assert_eq!(host.role("trunk", ""), "uplink");
        assert_eq!(host.role("eth1", ""), "a port of trunk");
        assert_eq!(host.role("eth0", "devices = [\"eth0\"]"), "a port of trunk", "even if it is named");
    }
}

#[test]
fn a_bridge_is_an_uplink_if_one_of_its_ports_is() {
    let mut host = Host::new();
    host.add("br0", "bridge");
    host.add("docker0", "bridge");
    host.address("br0", "203.0.113.2").address("docker0", "10.244.0.1");
    host.elsewhere("veth1", "veth").elsewhere("veth2", "veth");
    host.port("veth1", "docker0").port("veth2", "br0");
    assert_eq!(host.role("docker0", ""), "a bridge without a port that leads to other machines");
    assert_eq!(host.role("br0", ""), "a bridge without a port that leads to other machines");
    host.port("eth0", "br0");
    assert_eq!(host.role("br0", ""), "uplink");
    assert_eq!(host.role("eth0", ""), "a port of br0");
    assert_eq!(host.role("veth1", ""), "a port of docker0");
    assert_eq!(host.role("docker0", "devices = [\"docker0\"]"), "uplink", "if it is named");
}

#[test]
fn a_bridge_of_pods_says_which_of_its_ports_is_missing() {
    let mut host = Host::new();
    host.add("br0", "bridge");
    host.address("br0", "10.244.0.1").elsewhere("veth1", "veth").port("veth1", "br0").port("eth0", "br0");
    assert_eq!(host.role("br0", "pod-devices = [\"br0\"]"), "pod, without veth1");
    assert_eq!(host.role("br0", "pod-devices = [\"br0\", \"veth*\"]"), "pod");
    assert_eq!(host.role("veth1", "pod-devices = [\"veth*\"]"), "pod");
}

#[test]
fn pods_are_no_uplinks() {
    let mut host = Host::new();
    host.elsewhere("veth1", "veth").elsewhere("nk1", "netkit").add("tap0", "tun");
    for kind in ["macvtap", "dummy", "ifb"] {
        host.add(kind, kind);
    }
    for name in ["veth1", "nk1", "tap0", "macvtap", "dummy", "ifb"] {
        host.address(name, "10.244.0.1");
        assert_ne!(host.role(name, ""), "uplink", "{name}");
    }
    assert_eq!(host.role("veth1", ""), "its other end is in another network namespace");
    assert_eq!(host.role("tap0", ""), "a tap device does not lead to other machines");
    assert_eq!(host.role("dummy", ""), "a dummy device does not lead to other machines");
    assert_eq!(host.role("tap0", "pod-devices = [\"tap*\"]"), "pod");
    assert_eq!(host.role("nk1", "devices = [\"auto\", \"nk1\"]"), "uplink", "the administrator knows better");
}

/// In a container that is a node, as with kind, the node's only device is one end of a pair.
#[test]
fn a_pair_with_the_default_route_is_an_uplink() {
    let mut host = Host::default();
    host.elsewhere("eth0", "veth")
        .address("eth0", "203.0.113.1")
        .elsewhere("veth1", "veth")
        .address("veth1", "10.0.0.1");
    host.machine.sources.push(addr("203.0.113.1"));
    host.default_route("eth0");
    assert_eq!(host.role("eth0", ""), "uplink");
    assert_eq!(host.role("veth1", ""), "its other end is in another network namespace");
    host.default_route("veth1");
    assert_eq!(host.role("veth1", ""), "uplink");
}

/// Found by the twin test: while the uplink has a default route and no address, the kernel takes an address of any device as
/// the source. A pod's device was an uplink then, and for ever.
#[test]
fn an_address_alone_makes_no_pods_device_an_uplink() {
    let mut host = Host::new();
    host.elsewhere("veth1", "veth").address("veth1", "2001:db8:a1::1");
    host.add("docker0", "bridge");
    host.address("docker0", "fd00::1");
    host.machine.sources.extend(["2001:db8:a1::1", "fd00::1"].map(addr));
    assert_eq!(host.role("veth1", ""), "its other end is in another network namespace");
    assert_eq!(host.role("docker0", ""), "a bridge without a port that leads to other machines");
}

/// Cilium without kube-proxy replacement reaches remote pods by `cilium_host`, one end of a pair in one namespace.
#[test]
fn a_pair_in_this_namespace_is_an_uplink() {
    let mut host = Host::new();
    host.add("cilium_net", "veth");
    host.stacked("cilium_host", "veth", "cilium_net").address("cilium_host", "10.244.0.7");
    assert_eq!(host.role("cilium_host", ""), "uplink");
}

#[test]
fn a_device_on_top_of_another_leads_where_that_one_does() {
    let mut host = Host::new();
    host.add("dummy0", "dummy");
    host.elsewhere("veth1", "veth");
    for kind in ["vlan", "macvlan", "ipvlan"] {
        let (on_eth0, on_dummy) = (format!("{kind}-a"), format!("{kind}-b"));
        host.stacked(&on_eth0, kind, "eth0").stacked(&on_dummy, kind, "dummy0");
        host.address(&on_eth0, "203.0.113.9").address(&on_dummy, "203.0.113.10");
        assert_eq!(host.role(&on_eth0, ""), "uplink");
        assert_eq!(host.role(&on_dummy, ""), "on top of dummy0, which does not lead to other machines");
    }
    host.stacked("twice", "vlan", "vlan-a").address("twice", "203.0.113.11");
    assert_eq!(host.role("twice", ""), "uplink");
    // In a container, the device below is one of the host.
    host.elsewhere("eth9", "macvlan").address("eth9", "203.0.113.12");
    assert_eq!(host.role("eth9", ""), "uplink");
}

#[test]
fn tunnels_are_uplinks() {
    let mut host = Host::new();
    for (number, kind, link_type, l2_length) in [
        (1, "vxlan", 1, 14),
        (2, "geneve", 1, 14),
        (3, "ipip", 768, 0),
        (4, "sit", 776, 0),
        (5, "wireguard", 0xFFFE, 0),
        (6, "tun", 0xFFFE, 0),
    ] {
        let name = format!("{kind}0");
        host.add(&name, kind).link_type = link_type;
        host.address(&name, &format!("10.244.{number}.1"));
        assert_eq!(host.role(&name, ""), "uplink", "{kind}");
        let device = host.device(&name);
        assert_eq!((device.entry.l2_length, device.kind.as_str()), (l2_length, kind));
    }
}

#[test]
fn a_list_of_devices_has_those_that_answers_need_too() {
    let mut host = Host::new();
    for name in ["eth1", "eth2", "eth3"] {
        host.add(name, "");
    }
    host.address("eth1", "198.51.100.1").default_route("eth2");
    let index = host.index("eth3");
    host.routes.insert(index, Routes { has_default: false, has_any: true });
    host.add("flannel.1", "vxlan");
    host.address("flannel.1", "198.51.100.3");
    let roles = host.roles("devices = [\"eth1\"]");
    let uplinks: Vec<_> = roles.iter().filter(|(_, role)| role == "uplink").map(|(name, _)| name.as_str()).collect();
    let expected = ["eth0", "eth1", "eth2", "flannel.1"];
    assert_eq!(uplinks, expected, "by the primary address, by name, by the second default route, by an address");
    assert_eq!(host.role("eth3", "devices = [\"eth1\"]"), "not in packets.devices");
    assert_eq!(host.role("eth3", "devices = [\"eth*\"]"), "uplink");
}

#[test]
fn an_excluded_device_is_not_used() {
    let mut host = Host::new();
    host.add("eth1", "");
    host.routes.insert(3, Routes { has_default: false, has_any: true });
    assert_eq!(host.role("eth1", "except = [\"eth1\"]"), "excluded by packets.except");
    assert!(host.role("eth0", "except = [\"eth*\"]").contains("answers that leave by it are not translated"));
    assert_eq!(host.role("eth1", "except = [\"eth0\"]"), "uplink");
}

#[test]
fn devices_in_a_vrf_are_used_themselves() {
    let mut host = Host::new();
    host.add("vrf-blue", "vrf");
    host.add("eth1", "");
    host.address("eth1", "198.51.100.1").port("eth1", "vrf-blue").default_route("vrf-blue");
    assert_eq!(host.role("eth1", ""), "uplink");
    assert_eq!(host.role("vrf-blue", ""), "a VRF: programs are attached to the devices in it");
}

#[test]
fn the_source_address_is_the_first_that_lasts() {
    let mut host = Host::new();
    host.add("eth1", "");
    let sources = |host: &Host| {
        let device = host.device("eth1");
        (device.entry.v4.map(|addr| addr.to_string()), device.entry.v6.map(|addr| addr.to_string()))
    };
    host.address("eth1", "fe80::1").address("eth1", "169.254.1.1");
    assert_eq!(sources(&host), (None, None));
    host.address("eth1", "198.51.100.1").last().is_secondary = true;
    host.address("eth1", "198.51.100.9").last().is_global = false;
    host.address("eth1", "2001:db8::1").last().is_passing = true;
    host.address("eth1", "2001:db8::2").last().is_in_doubt = true;
    assert_eq!(sources(&host), (None, None));
    host.address("eth1", "198.51.100.2").address("eth1", "198.51.100.3");
    host.address("eth1", "2001:db8::3").address("eth1", "2001:db8::4");
    assert_eq!(sources(&host), (Some("198.51.100.2".into()), Some("2001:db8::3".into())));
}

/// Packets leave by the temporary address that the route selects, and `nodelb devices` showed only the lasting one.
#[test]
fn the_address_that_a_default_route_selects_is_known() {
    let mut host = Host::new();
    host.add("eth1", "");
    host.address("eth1", "2001:db8::2").address("eth1", "2001:db8::9").last().is_passing = true;
    host.address("eth1", "2001:db8:f::1");
    host.machine.sources.extend(["2001:db8::9", "2001:db8:f::1"].map(addr));
    let devices = host.devices("[datapath]\nown-addresses = [\"2001:db8:f::/64\"]");
    let device = devices.into_iter().find(|device| &*device.name == "eth1").unwrap();
    assert_eq!(
        (device.entry.v6, device.sources),
        (Some(addr("2001:db8::2")), BTreeSet::from(["2001:db8::2", "2001:db8::9"].map(addr)))
    );
}

#[test]
fn xdp_does_not_fit_below_vlans_and_at_bonds() {
    let mut host = Host::new();
    host.stacked("vlan7", "vlan", "eth0").stacked("macvlan0", "macvlan", "vlan7").address("vlan7", "203.0.113.9");
    host.add("bond0", "bond");
    host.add("bond1", "bond");
    host.stacked("vlan8", "vlan", "bond1");
    let fits = ["eth0", "vlan7", "bond0", "bond1"].map(|name| host.device(name).xdp);
    assert_eq!(fits, [XdpFit::Vlans, XdpFit::Fits, XdpFit::Ports, XdpFit::Vlans]);
}

/// Interfaces refer to each other by indexes, which may be anything while they change.
#[test]
fn circles_end() {
    let mut host = Host::new();
    host.add("br0", "bridge");
    host.add("br1", "bridge");
    host.port("br0", "br1").port("br1", "br0").address("br0", "203.0.113.2");
    host.stacked("v1", "vlan", "eth0").stacked("v2", "vlan", "v1").address("v2", "203.0.113.3");
    let (v1, v2) = (host.index("v1"), host.index("v2"));
    host.machine.interfaces.get_mut(&v1).unwrap().lower = v2;
    assert_eq!(host.role("br0", ""), "a port of br1");
    assert_eq!(host.role("v2", ""), "uplink");
}

#[test]
fn a_route_shows_that_a_device_leads_out_whatever_is_below_it() {
    let mut host = Host::new();
    host.add("br0", "bridge");
    host.elsewhere("veth1", "veth").elsewhere("eth1", "veth").port("veth1", "br0");
    host.address("br0", "203.0.113.2").address("eth1", "198.51.100.2").stacked("vrrp51", "macvlan", "eth1");
    assert_eq!(host.role("br0", ""), "a bridge without a port that leads to other machines");
    assert_eq!(host.role("vrrp51", ""), "on top of eth1, which does not lead to other machines");
    host.default_route("br0").default_route("eth1");
    assert_eq!(host.role("br0", ""), "uplink");
    assert_eq!(host.role("veth1", ""), "a port of br0");
    assert_eq!(host.role("eth1", ""), "uplink");
    assert_eq!(host.role("vrrp51", ""), "it has neither an address nor a route");
    host.address("vrrp51", "198.51.100.100");
    assert_eq!(host.role("vrrp51", ""), "uplink");
    assert_eq!(host.role("vrrp51", "except = [\"vrrp*\"]"), Reason::ExcludedThoughNeeded.to_string());
}

#[test]
fn a_pair_with_a_link_local_address_and_the_default_route_is_an_uplink() {
    let mut host = Host::new();
    host.elsewhere("veth1", "veth").address("veth1", "fe80::2").address("lo", "2001:db8::1");
    assert_eq!(host.role("veth1", ""), "its other end is in another network namespace");
    let index = host.index("veth1");
    host.machine.ways_out.insert(index);
    assert_eq!(host.role("veth1", ""), "uplink");
}

#[test]
fn routes_are_read_only_for_devices_that_may_be_selected() {
    let mut host = Host::new();
    host.elsewhere("veth1", "veth").add("wg0", "wireguard");
    assert_eq!(candidates(&host.machine).collect::<Vec<_>>(), [2, 4]);
    host.address("veth1", "10.244.0.1");
    assert_eq!(candidates(&host.machine).collect::<Vec<_>>(), [2, 3, 4]);
}

/// The kernel lists the newest address of IPv6 first.
#[test]
fn the_address_of_a_service_is_no_source_address() {
    let mut host = Host::new();
    host.address("eth0", "2001:db8:f::1").address("eth0", "2001:db8:1::1");
    host.machine.addresses.insert(0, Address { addr: addr("198.51.100.9"), ..host.machine.addresses[0].clone() });
    let sources = |text: &str| {
        let config = Config::parse(text).unwrap();
        let found = devices(&host.machine, &host.routes, &config).remove(1).entry;
        ((found.v4.unwrap(), found.is_v4_source), (found.v6.unwrap(), found.is_v6_source))
    };
    let own = |networks: &str| format!("[datapath]\nown-addresses = [{networks}]\n");
    let (service, node) = ((addr("198.51.100.9"), addr("2001:db8:f::1")), (addr("203.0.113.1"), addr("2001:db8:1::1")));
    assert_eq!(sources(""), ((service.0, false), (service.1, false)));
    assert_eq!(sources(&own(r#""198.51.100.9", "2001:db8:f::/64""#)), ((node.0, true), (node.1, true)));
    assert_eq!(sources(&own(r#""2001:db8:f::/64""#)), ((service.0, false), (node.1, true)));
    // The address is assigned to another node.
    assert_eq!(sources(&own(r#""198.51.100.10""#)), ((service.0, false), (service.1, false)));
}

/// The first address of a pod's device is then the primary one of the node. Backends in that pod must not count as those
/// of another node.
#[test]
fn without_a_default_route_the_device_of_a_pod_is_no_uplink() {
    let mut host = Host::new();
    host.elsewhere("pod0", "veth").address("pod0", "203.0.113.129");
    assert_eq!(host.role("pod0", ""), "its other end is in another network namespace");
    let eth0 = host.index("eth0");
    host.machine.interfaces.get_mut(&eth0).unwrap().is_up = false;
    host.machine.sources.clear();
    host.routes.clear();
    assert_eq!(host.role("pod0", ""), "its other end is in another network namespace");
}

/// The uplink was down, and the address of the bridge of pods was an address of the node: status found no problem.
#[test]
fn a_node_is_cut_off_without_an_address_towards_other_machines() {
    let looks_so = |host: &Host, former: &mut Former| {
        let mut devices = host.devices("");
        keep(&mut devices, former, &host.machine);
        is_cut_off(&devices, &host.machine)
    };
    let mut host = Host::new();
    host.elsewhere("pod", "veth");
    host.address("pod", "192.0.2.1");
    host.add("flannel.1", "vxlan");
    host.address("flannel.1", "192.0.2.128");
    let mut former = Former::new();
    assert!(!looks_so(&host, &mut former));
    // A link that is down takes the route, and not the address.
    host.routes.clear();
    host.machine.sources.clear();
    assert!(!looks_so(&host, &mut former), "it reaches what is on its link");
    let eth0 = host.index("eth0");
    host.machine.interfaces.get_mut(&eth0).unwrap().is_up = false;
    assert!(looks_so(&host, &mut former));
    host.machine.interfaces.get_mut(&eth0).unwrap().is_up = true;
    host.machine.addresses.retain(|address| address.interface != eth0);
    assert!(looks_so(&host, &mut former));
    host.machine.sources.push(addr("203.0.113.1"));
    assert!(!looks_so(&host, &mut former), "the address is one of the loopback device");
    let mut alone = Host::default();
    alone.add("lo", "").is_loopback = true;
    assert!(!looks_so(&alone, &mut Former::new()), "no device leads to other machines");
}
