//! The devices, addresses and routes of a case, in the network namespace of the test.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use nodelb_core::model::addr::Addr;

use crate::sandbox::{BACKENDS_V4, BACKENDS_V6};
use crate::world::{RouteLine, World};

/// The network of the last case, so that only changes take time.
#[derive(Debug, Default)]
pub(crate) struct Network {
    devices: Vec<String>,
    commands: String,
}

impl Network {
    /// Makes the network of the namespace that of the world.
    pub(crate) fn set(&mut self, world: &World) {
        if self.devices.is_empty() {
            // The addresses of the sandbox, which no case has. They may be gone already.
            for line in
                [format!("address del {BACKENDS_V4} dev lo"), format!("-6 route del local {BACKENDS_V6} dev lo")]
            {
                let _ = Command::new("ip").args(line.split(' ')).stderr(Stdio::null()).status();
            }
        }
        for (name, device) in &world.devices {
            if self.devices.contains(name) {
                continue;
            }
            let (index, mac) = (device.ifindex, mac_text(&device.mac));
            ip(&format!(
                "link add {name} index {index} address {mac} type veth peer name {name}-peer index {}",
                100 + index
            ));
            ip(&format!("link set {name}-peer up"));
            self.devices.push(name.clone());
        }
        let commands = commands(world);
        if commands == self.commands {
            return;
        }
        for (name, device) in &world.devices {
            ip(&format!("address flush dev {name}"));
            ip(&format!("link set {name} down"));
            ip(&format!("link set {name} up mtu {}", device.mtu));
            for family in ["ipv4", "ipv6"] {
                let forwards = if device.forwards { "1" } else { "0" };
                std::fs::write(format!("/proc/sys/net/{family}/conf/{name}/forwarding"), forwards).unwrap();
            }
        }
        let forwards = if world.forwards_v6 { "1" } else { "0" };
        std::fs::write("/proc/sys/net/ipv6/conf/lo/forwarding", forwards).unwrap();
        wait_until_up(world);
        let _ = Command::new("ip").args(["route", "flush", "type", "unreachable"]).status();
        ip(&commands);
        wait_for_own_routes(world);
        self.commands = commands;
    }
}

/// Waits until the kernel knows that the devices have their carrier: before that, the node's own IPv6 addresses on them have
/// no routes.
fn wait_until_up(world: &World) {
    loop {
        let shown = Command::new("ip").args(["-brief", "link"]).output().expect("ip (package iproute2)");
        let shown = String::from_utf8(shown.stdout).unwrap();
        let is_up = |name: &String| {
            let line = shown.lines().find(|line| line.starts_with(&format!("{name}@")));
            line.is_some_and(|line| line.split_whitespace().nth(1) == Some("UP"))
        };
        if world.devices.keys().all(is_up) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the node's own IPv6 addresses have routes, which the kernel makes a moment after it has added the address.
fn wait_for_own_routes(world: &World) {
    let addrs = world.devices.values().flat_map(|device| &device.addrs).map(|addr| addr.ip());
    let own: Vec<IpAddr> = addrs.filter(IpAddr::is_ipv6).collect();
    loop {
        let arguments = ["-6", "route", "show", "table", "local", "type", "local"];
        let shown = Command::new("ip").args(arguments).output().expect("ip (package iproute2)");
        let shown = String::from_utf8(shown.stdout).unwrap();
        let routed: Vec<IpAddr> =
            shown.lines().flat_map(|line| line.split_whitespace().find_map(|word| word.parse().ok())).collect();
        if own.iter().all(|addr| routed.contains(addr)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The commands of ip(8) that make addresses, neighbours and routes.
fn commands(world: &World) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "link set lo {}", if world.forwards_v6 { "alias forwards" } else { "alias keeps" });
    for (name, device) in &world.devices {
        for addr in &device.addrs {
            let _ = writeln!(text, "address add {} dev {name}", host(*addr));
        }
        // Two cases differ if only this does.
        let _ = writeln!(text, "link set {name} mtu {}", device.mtu);
        let _ = writeln!(text, "link set {name} {}", if device.forwards { "alias forwards" } else { "alias keeps" });
    }
    for (place, route) in world.routes.iter().enumerate() {
        let others = world.routes[..place].iter().filter(|other| other.net == route.net).count();
        add_route(&mut text, route, others);
    }
    text
}

fn host(addr: Addr) -> String {
    match addr.ip() {
        IpAddr::V4(v4) => format!("{v4}/32"),
        IpAddr::V6(v6) => format!("{v6}/128 nodad noprefixroute"),
    }
}

/// A route with a neighbour leads through a gateway, and the neighbour is stored for that: it is then the neighbour of
/// all addresses of the network. The route is worse than as many others to the same network.
fn add_route(text: &mut String, route: &RouteLine, others: usize) {
    let is_v4 = route.net.addr().is_ipv4();
    let Some(name) = &route.device else {
        if route.is_unreachable {
            let _ = writeln!(text, "route replace unreachable {}", route.net);
        }
        return;
    };
    if let Some(preferred) = route.preferred {
        let _ = writeln!(text, "address replace {} dev {name}", host(preferred));
    }
    let mut line = format!("route replace {}", route.net);
    if let Some(mac) = route.neighbor {
        let gateway = if is_v4 { format!("169.254.0.{}", mac[5]) } else { format!("fe80::{:x}", mac[5]) };
        let _ = writeln!(text, "neighbour replace {gateway} lladdr {} dev {name} nud permanent", mac_text(&mac));
        let _ = write!(line, " via {gateway} dev {name} onlink");
    } else {
        let _ = write!(line, " dev {name}");
    }
    if let Some(mac) = route.host {
        let (host, mac) = (route.net.addr(), mac_text(&mac));
        let _ = writeln!(text, "neighbour replace {host} lladdr {mac} dev {name} nud permanent");
    }
    if let Some(preferred) = route.preferred {
        let _ = write!(line, " src {preferred}");
    }
    if let Some(mtu) = route.mtu {
        let _ = write!(line, " mtu lock {mtu}");
    }
    if others > 0 {
        let _ = write!(line, " metric {}", 2_000 + others);
    }
    let _ = writeln!(text, "{line}");
}

fn mac_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// Runs ip(8) with these lines.
fn ip(lines: &str) {
    let mut child =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("ip (package iproute2)");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "ip refused one of:\n{lines}");
}
