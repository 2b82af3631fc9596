//! The network of clients outside the node: machines on one link, and a pod on the node.
//!
//! ```text
//!  bridge lan (the sandbox)
//!    ├── node 203.0.113.11: the daemon ── pod 192.0.2.2
//!    ├── end-1 203.0.113.13, end-2 203.0.113.14: backends, plain hosts that forward nothing
//!    └── client 203.0.113.50, which reaches the services through the node
//! ```

use crate::lab::Place;
use crate::outside_direct::{CLIENT, machine, make_lan};
use crate::outside_network::nft;
use crate::sandbox::Sandbox;

pub(super) const NODE: [&str; 2] = ["203.0.113.11", "2001:db8:1::11"];
pub(super) const POD: [&str; 2] = ["192.0.2.2", "2001:db8:a::2"];
/// The addresses of the hosts with backends.
pub(super) const ENDS: [[&str; 2]; 2] = [["203.0.113.13", "2001:db8:1::13"], ["203.0.113.14", "2001:db8:1::14"]];
/// What these hosts take out of tunnels comes to these addresses.
pub(super) const UNWRAPPING: [&str; 2] = ["2001:db8:1::a1", "2001:db8:1::a2"];

pub(super) struct Net {
    pub(super) client: Place,
    pub(super) node: Place,
    pub(super) pod: Place,
    pub(super) ends: [Place; 2],
}

impl Net {
    pub(super) fn new(sandbox: &Sandbox) -> Self {
        make_lan(sandbox);
        let machine = |name, addresses: [&str; 2]| machine(name, &addresses.map(str::to_owned));
        let (client, node) = (machine("client", CLIENT), machine("node", NODE));
        let ends = [machine("end-1", ENDS[0]), machine("end-2", ENDS[1])];
        for (place, network) in [(&node, "net/ipv4/conf"), (&ends[0], "net/ipv4/conf"), (&ends[1], "net/ipv4/conf")] {
            place.set(&format!("{network}/all/rp_filter"), "0");
            place.set(&format!("{network}/eth0/rp_filter"), "0");
        }
        for end in &ends {
            end.set("net/ipv4/ip_forward", "0");
            end.set("net/ipv6/conf/all/forwarding", "0");
        }
        let pod = Place::make("pod");
        node.ip("link add pod type veth peer name eth0 netns pod");
        node.ip("address add 192.0.2.1/30 dev pod");
        node.ip("address add 2001:db8:a::1/64 dev pod nodad");
        node.ip("link set pod up");
        pod.ip(&format!("address add {}/30 dev eth0", POD[0]));
        pod.ip(&format!("address add {}/64 dev eth0 nodad", POD[1]));
        pod.ip("link set eth0 up");
        pod.ip("route add default via 192.0.2.1");
        pod.ip("-6 route add default via 2001:db8:a::1");
        client.ip(&format!("route add 198.51.100.0/24 via {}", NODE[0]));
        client.ip(&format!("-6 route add 2001:db8:f::/48 via {}", NODE[1]));
        let net = Self { client, node, pod, ends };
        net.connect();
        net
    }

    /// Restores the uplink of the node: up, with its addresses and routes.
    pub(super) fn connect(&self) {
        self.node.ip("link set eth0 up");
        self.node.ip(&format!("address replace {}/24 dev eth0", NODE[0]));
        self.node.ip(&format!("address replace {}/64 dev eth0 nodad", NODE[1]));
        self.node.ip("route replace default via 203.0.113.1");
        for (to, [_, via]) in UNWRAPPING.into_iter().zip(ENDS) {
            self.node.ip(&format!("-6 route replace {to}/128 via {via}"));
        }
    }

    /// Takes the addresses of the uplink.
    pub(super) fn strip(&self) {
        self.node.ip(&format!("address del {}/24 dev eth0", NODE[0]));
        self.node.ip(&format!("address del {}/64 dev eth0", NODE[1]));
    }
}

/// Lets the firewall of a machine drop what arrives at this port, or removes the rule.
pub(super) fn set_firewall(place: &Place, port: u16, drops: bool) {
    let table = format!("inet port{port}");
    let rules = match drops {
        true => format!(
            "table {table} {{ chain input {{ type filter hook input priority 0; policy accept; meta l4proto {{ tcp, udp }} th dport {port} drop; }}; }}\n"
        ),
        false => format!("delete table {table}\n"),
    };
    place.run(|| nft(&rules));
}

/// Gives a machine the address of a service, or takes it.
pub(super) fn set_address(place: &Place, address: &str, is_there: bool) {
    place.ip(&format!("address {} {address}/32 dev lo", if is_there { "add" } else { "del" }));
}

/// Lets the kernel of a host take packets out of tunnels to its address of [`UNWRAPPING`], or not.
pub(super) fn set_unwrapping(place: &Place, address: &str, unwraps: bool) {
    match unwraps {
        true => place.ip(&format!("-6 route add {address}/128 encap seg6local action End.DX4 nh4 0.0.0.0 dev eth0")),
        false => place.ip(&format!("-6 route del {address}/128")),
    }
}
