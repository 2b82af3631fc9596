//! A node between a client, a pod on the node and another machine, each in its own network
//! namespace. The nodes have the same addresses and differ only in what translates packets there, so
//! a comparison changes no configuration between its rounds.
//!
//! ```text
//!  client 203.0.113.2 ── 203.0.113.1 node 203.0.113.17 ── pod 203.0.113.18 to .27
//!                          uplink         203.0.113.33 ── other machine 203.0.113.34 to .43
//! ```

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};

use crate::generator::Pins;
use crate::sandbox::command;

/// The addresses of the clients (RFC 2544), which the node reaches through the client.
const CLIENTS: &str = "198.18.0.0/15";
/// The addresses of the backends in the pod; ten from this one on.
pub(crate) const POD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 18);
/// The same for the other machine.
pub(crate) const MACHINE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 34);
/// Addresses of the pod and of the other machine.
pub(crate) const ADDRESSES: u32 = 10;
/// The port of all backends.
pub(crate) const BACKEND_PORT: u16 = 8080;

/// The devices of the node and its addresses there.
pub(crate) const UPLINK: (&str, Ipv4Addr) = ("uplink", Ipv4Addr::new(203, 0, 113, 1));
/// The device to the pod.
pub(crate) const TO_POD: (&str, Ipv4Addr) = ("pod", Ipv4Addr::new(203, 0, 113, 17));
/// The device to the other machine, also an uplink.
pub(crate) const TO_MACHINE: (&str, Ipv4Addr) = ("machine", Ipv4Addr::new(203, 0, 113, 33));

const CLIENT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// A network namespace; it is removed with the process.
#[derive(Debug)]
pub(crate) struct Namespace {
    namespace: File,
    /// The namespace of the thread that creates it.
    home: File,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let current = || File::open("/proc/thread-self/ns/net").unwrap();
        let home = current();
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let place = Self { namespace: current(), home };
        setns(&place.home, CloneFlags::CLONE_NEWNET).unwrap();
        place.within(|| {
            for file in ["ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6", "ipv4/ip_forward"] {
                set(file, "1");
            }
            for file in ["ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter"] {
                set(file, "0");
            }
            // The machine's default may be BBR. On a virtual machine, its timers cost more than a stream.
            set("ipv4/tcp_congestion_control", "reno");
            ip("link set lo up");
        });
        place
    }

    /// Runs `work` with this thread in the namespace. Sockets and processes that it creates stay
    /// there.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let result = work();
        setns(&self.home, CloneFlags::CLONE_NEWNET).unwrap();
        result
    }
}

/// The node and the machines around it; see the module.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) node: Namespace,
    pub(crate) client: Namespace,
    pub(crate) pod: Namespace,
    pub(crate) machine: Namespace,
    /// Index of the client's device.
    pub(crate) client_device: u32,
}

impl Site {
    /// Creates the namespaces and joins them; attaches programs that count packets at the backends
    /// and drop answers at the client.
    pub(crate) fn new(pins: &Pins) -> Self {
        let [node, client, pod, machine] = [(); 4].map(|()| Namespace::new());
        let mut site = Self { node, client, pod, machine, client_device: 0 };
        site.join(UPLINK, &site.client, (CLIENT, 1));
        site.join(TO_POD, &site.pod, (POD, ADDRESSES));
        site.join(TO_MACHINE, &site.machine, (MACHINE, ADDRESSES));
        site.node.within(|| {
            ip(&format!("route add {CLIENTS} via {CLIENT}"));
            // Frames of XDP programs are accepted only with it.
            command("ethtool", &["-K", UPLINK.0, "gro", "on"]);
        });
        filter(&site.client, "eth0", "ingress", &pins.discard);
        filter(&site.pod, "eth0", "ingress", &pins.receive);
        filter(&site.machine, "eth0", "ingress", &pins.receive);
        site.client_device = site.client.within(|| index("eth0"));
        site
    }

    /// Joins the node with another namespace, and makes them neighbours.
    fn join(&self, (device, node): (&str, Ipv4Addr), place: &Namespace, (first, count): (Ipv4Addr, u32)) {
        let [near, far] = ["02:00:00:00:00:01", "02:00:00:00:00:99"];
        let addresses = || (0..count).map(|number| nth(first, number));
        self.node.within(|| {
            let path = format!("/proc/{}/fd/{}", std::process::id(), place.namespace.as_raw_fd());
            let peer = format!("peer name eth0 address {far} netns {path}");
            ip(&format!("link add {device} address {near} type veth {peer}"));
            ip(&format!("address add {node}/28 dev {device}"));
            ip(&format!("link set {device} up"));
            for address in addresses() {
                ip(&format!("neighbour replace {address} lladdr {far} dev {device} nud permanent"));
            }
        });
        place.within(|| {
            for address in addresses() {
                ip(&format!("address add {address}/28 dev eth0"));
            }
            ip("link set eth0 up");
            ip(&format!("neighbour replace {node} lladdr {near} dev eth0 nud permanent"));
            ip(&format!("route add default via {node}"));
        });
    }

    /// Loads nftables rules on the node.
    pub(crate) fn nft(&self, rules: &str) {
        self.node.within(|| {
            let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
            assert!(child.wait().unwrap().success(), "nft");
            // Devices check the sum of each packet; veth devices do not, and the kernel would
            // compute it.
            set("netfilter/nf_conntrack_checksum", "0");
        });
    }

    /// Removes all entries of the node's conntrack table.
    pub(crate) fn flush_conntrack(&self) {
        self.node.within(|| command("conntrack", &["-F"]));
    }
}

/// Attaches a pinned program to a device.
pub(crate) fn filter(place: &Namespace, device: &str, direction: &str, pin: &Path) {
    place.within(|| {
        let qdisc = Command::new("tc").args(["qdisc", "add", "dev", device, "clsact"]).output();
        // It may exist.
        drop(qdisc);
        let pin = pin.to_str().unwrap();
        command("tc", &["filter", "add", "dev", device, direction, "bpf", "da", "object-pinned", pin]);
    });
}

/// Attaches a pinned XDP program to a device.
pub(crate) fn early(place: &Namespace, device: &str, pin: &Path) {
    place.within(|| command("ip", &["link", "set", "dev", device, "xdpdrv", "pinned", pin.to_str().unwrap()]));
}

/// The address with this distance from the first one.
pub(crate) fn nth(first: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(first.to_bits() + number)
}

/// Index of a device in the namespace of the calling thread.
pub(crate) fn index(device: &str) -> u32 {
    nix::net::if_::if_nametoindex(device).unwrap()
}

fn set(sysctl: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{sysctl}"), value).unwrap_or_else(|error| panic!("{sysctl}: {error}"));
}

fn ip(words: &str) {
    command("ip", &words.split(' ').collect::<Vec<_>>());
}

/// A service address with its only backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    pub(crate) service: (Ipv4Addr, u16),
    pub(crate) protocol: &'static str,
    pub(crate) backend: (Ipv4Addr, u16),
}

/// What network plugins have on nearly every node. It makes the kernel track connections.
pub(crate) const PLUGIN: &str = "
table ip plugin {
    chain postrouting {
        type nat hook postrouting priority srcnat;
        ip saddr 203.0.113.16/28 ip daddr != 203.0.113.16/28 masquerade
    }
}
";

/// nftables rules as kube-proxy writes them, with DNAT and masquerade.
pub(crate) fn kube_proxy(services: &[Translation]) -> String {
    let mut text = String::from("table ip kube-proxy {\n");
    let mut elements = Vec::new();
    for (number, Translation { service: (addr, port), protocol, .. }) in services.iter().enumerate() {
        elements.push(format!("{addr} . {protocol} . {port} : goto external-{number}"));
    }
    let key = "type ipv4_addr . inet_proto . inet_service : verdict";
    write!(text, "map service-ips {{ {key}; elements = {{ {} }} }}\n{MAPS}", elements.join(", ")).unwrap();
    for (number, Translation { protocol, backend: (addr, port), .. }) in services.iter().enumerate() {
        write!(
            text,
            "chain endpoint-{number}-0 {{ ip saddr {addr} jump mark-for-masquerade; \
               meta l4proto {protocol} dnat to {addr}:{port}; }}\n\
             chain service-{number} {{ numgen random mod 1 vmap {{ 0 : goto endpoint-{number}-0 }}; }}\n\
             chain external-{number} {{ jump mark-for-masquerade; goto service-{number}; }}\n"
        )
        .unwrap();
    }
    text.push_str(CHAINS);
    text
}

const MAPS: &str = "
map service-nodeports { type inet_proto . inet_service : verdict; elements = { tcp . 30080 : goto external-0 } }
map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
set cluster-ips { type ipv4_addr; }
set nodeport-ips { type ipv4_addr; elements = { 203.0.113.1 } }
chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
chain masquerading {
    meta mark & 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
}
";

const CHAINS: &str = "
chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
}
chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
chain cluster-ips-check { ip daddr @cluster-ips reject; }
chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
chain filter-prerouting { type filter hook prerouting priority -110; ct state new jump firewall-check; }
chain filter-forward {
    type filter hook forward priority -110
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
}
chain filter-input {
    type filter hook input priority -110
    ct state new jump nodeport-endpoints-check
    ct state new jump service-endpoints-check
}
chain filter-output {
    type filter hook output priority -110
    ct state new jump service-endpoints-check
    ct state new jump firewall-check
}
chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
chain nat-output { type nat hook output priority -100; jump services; }
chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
";
