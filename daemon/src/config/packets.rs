//! The `[packets]` section: its keys, the format of device names and of the range of source ports, and the checks of
//! combinations of keys.

use std::fmt;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use nodelb_core::config::PacketsConfig;
use nodelb_datapath::packets::{PacketOptions, XdpMode};
use serde::Deserialize;

use super::keys::{Datapath, Key, Section, section};
use super::values::{Seconds, Setting, between, dashed, lasts, lower_case, native, port_range, texts};

/// When packets of clients outside the node are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketMode {
    /// While no other service proxy is present.
    Auto,
    On,
    /// Existing connections only.
    Drain,
    /// Never: no map is created and no program is loaded.
    Off,
}

/// Where known connections to backends on other nodes are translated before the network stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Xdp {
    /// Nowhere: no program is loaded.
    Off,
    /// In the drivers that can run programs.
    Auto,
    /// At each device, in the kernel's replacement for a driver.
    Generic,
}

impl Xdp {
    pub fn mode(self) -> Option<XdpMode> {
        match self {
            Self::Off => None,
            Self::Auto => Some(XdpMode::Auto),
            Self::Generic => Some(XdpMode::Generic),
        }
    }
}

/// Which backends see an address of this node instead of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Snat {
    /// Those to backends on other nodes.
    Remote,
    Always,
}

/// How the backend of a new connection is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// By consistent hashing of the client's address and port.
    Consistent,
    Random,
}

/// What is done with TCP packets of unknown connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unknown {
    /// Those of another service proxy go on; the others continue at a backend of this node, or are answered with RST.
    Auto,
    /// They go on to the network stack of the node.
    Pass,
    /// They are answered with RST.
    Reset,
}

/// The name of a network device, in which `*` stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceName(String);

/// The name that stands for the devices that nodelb selects itself.
const AUTO: &str = "auto";

/// The longest name of a device in bytes: `IFNAMSIZ` without the terminating zero.
const MAX_DEVICE_NAME: usize = 15;

impl DeviceName {
    /// Whether it stands for the devices that nodelb selects itself.
    pub fn is_auto(&self) -> bool {
        self.0 == AUTO
    }

    /// Whether it is the name of one device.
    pub fn is_exact(&self) -> bool {
        !self.is_auto() && !self.0.contains('*')
    }

    /// Whether it selects the device with this name.
    pub fn matches(&self, name: &str) -> bool {
        !self.is_auto() && matches(self.0.as_bytes(), name.as_bytes())
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, _) => name.is_empty(),
        (Some((b'*', rest)), _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        (Some((byte, rest)), Some((first, others))) => byte == first && matches(rest, others),
        (Some(_), None) => false,
    }
}

fn device_name(text: &str) -> Result<DeviceName, String> {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'?' | b'"');
    let is_name = (1..=MAX_DEVICE_NAME).contains(&text.len()) && text.bytes().all(is_allowed);
    let is_name = is_name && text != "." && text != "..";
    is_name.then(|| DeviceName(text.into())).ok_or_else(|| {
        format!("`{text}` is not the name of a device (expected like eth0, or eth* with * for any characters)")
    })
}

/// The ports from which the node connects to backends on other nodes for its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnatPorts {
    /// The largest range that the node does not use otherwise.
    Auto,
    Range(RangeInclusive<u16>),
}

/// The smallest range that is selected automatically, in ports.
const MIN_SNAT_PORTS: usize = 4096;

/// The ports that such a range is a part of.
const SNAT_CANDIDATES: RangeInclusive<u16> = 10_000..=65_535;

/// The lowest port that a process may use without a capability.
const FIRST_UNPRIVILEGED: u16 = 1024;

impl SnatPorts {
    /// The range on a node with this `net.ipv4.ip_local_port_range` and these NodePorts. If the former leaves no large
    /// range, the range contains ports of it: the programs then find out whether a process uses a port.
    ///
    /// # Errors
    /// If the NodePorts leave no large range. The message names the key that sets one.
    pub fn resolve(
        self,
        local: &RangeInclusive<u16>,
        nodeports: &RangeInclusive<u16>,
    ) -> Result<RangeInclusive<u16>, String> {
        if let Self::Range(range) = self {
            return Ok(range);
        }
        let apart = large_range(|port| !local.contains(port) && !nodeports.contains(port));
        apart.or_else(|| large_range(|port| !nodeports.contains(port))).ok_or_else(|| {
            format!(
                "fewer than {MIN_SNAT_PORTS} consecutive ports from {} to {} are outside of datapath.nodeport-range \
                 ({}); set packets.snat-ports to a range in which no service has a NodePort, such as \"20000-29999\"",
                SNAT_CANDIDATES.start(),
                SNAT_CANDIDATES.end(),
                dashed(nodeports)
            )
        })
    }

    /// The warning if the range contains ports of `net.ipv4.ip_local_port_range`.
    pub fn overlap(range: &RangeInclusive<u16>, local: &RangeInclusive<u16>) -> Option<String> {
        overlap(range, local).then(|| {
            format!(
                "packets.snat-ports ({}) contains ports of net.ipv4.ip_local_port_range ({}): nodelb has fewer ports, and \
                 searches longer for a free one. Use separate ranges",
                dashed(range),
                dashed(local)
            )
        })
    }
}

/// The largest range of these ports, if it is large enough.
fn large_range(is_free: impl Fn(&u16) -> bool) -> Option<RangeInclusive<u16>> {
    largest_run(SNAT_CANDIDATES.filter(is_free)).filter(|range| range.len() >= MIN_SNAT_PORTS)
}

fn overlap(left: &RangeInclusive<u16>, right: &RangeInclusive<u16>) -> bool {
    left.start() <= right.end() && right.start() <= left.end()
}

/// The longest run of consecutive ports, the first of several; the ports are ascending.
fn largest_run(ports: impl Iterator<Item = u16>) -> Option<RangeInclusive<u16>> {
    let ports: Vec<u16> = ports.collect();
    let runs = ports.chunk_by(|left, right| left + 1 == *right);
    // Of several maxima, `max_by_key` returns the last one.
    let longest = runs.rev().max_by_key(|run| run.len())?;
    Some(*longest.first()?..=*longest.last()?)
}

impl fmt::Display for SnatPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Range(range) => f.write_str(&dashed(range)),
        }
    }
}

fn snat_ports(text: &str) -> Result<SnatPorts, String> {
    if text == AUTO {
        return Ok(SnatPorts::Auto);
    }
    let range = port_range(text).map_err(|error| format!("{error}, or \"auto\""))?;
    if *range.start() < FIRST_UNPRIVILEGED {
        return Err(format!("`{text}` contains ports below {FIRST_UNPRIVILEGED}, which system services use"));
    }
    Ok(SnatPorts::Range(range))
}

native! {
    PacketMode, mode => lower_case(mode);
    Snat, snat => lower_case(snat);
    Choice, choice => lower_case(choice);
    Unknown, unknown => lower_case(unknown);
    Xdp, xdp => lower_case(xdp);
}

texts! {
    SnatPorts, "a string such as \"10000-29999\"", snat_ports, ports => ports.to_string();
    DeviceName, "a string", device_name, name => name.to_string();
}

section! {
    /// Packets of clients outside this node, which no socket hook sees: connections to NodePorts and to external and
    /// load balancer addresses.
    Packets, "packets", needs_restart = true,
        at_once = [mode, devices, except, snat, unknown, answer, tcp_timeout, udp_timeout], together = Packets::together;

    /// When connections from outside the node are translated: "auto", those to services of files, and those to services
    /// of Kubernetes while no other service proxy (kube-proxy, IPVS, Cilium) is present; "on", always; "drain", only
    /// those that exist already; or "off". A change from or to "off" needs a restart.
    mode: PacketMode = PacketMode::Auto;

    /// Devices by which other machines are reached: "auto", or names with * for any characters. Devices with a default
    /// route or a node address are always among them.
    devices: Vec<DeviceName> = vec![DeviceName(AUTO.into())];

    /// Devices at which nodelb attaches no program, although they would be selected. Connections that arrive there are
    /// not translated, and neither are answers that leave by them.
    except: Vec<DeviceName> = Vec::new(), names_only;

    /// Devices of pods that have their own kernel (virtual machines, Kata Containers): their connections to services
    /// are translated at the device. Names with * for any characters.
    pod_devices: Vec<DeviceName> = Vec::new(), names_only;

    /// Backends that see an address of this node instead of the client's: "remote", those on other nodes; "always",
    /// all, which requires pod-devices.
    snat: Snat = Snat::Remote;

    /// Ports of this node for connections to backends on other nodes. "auto": the largest range that is outside of
    /// net.ipv4.ip_local_port_range and datapath.nodeport-range. If the latter leaves fewer than 4,096 ports, such as
    /// "1-65535", set a range in which no service has a NodePort: nodelb refuses NodePorts in it.
    snat_ports: SnatPorts = SnatPorts::Auto;

    /// How the backend of a new connection is selected: "consistent", by the client's address and port, so that all
    /// nodes select the same one; or "random", which requires less memory.
    choice: Choice = Choice::Consistent;

    /// Translate connections to backends on other nodes by XDP: "off", "auto" (in drivers that support it) or
    /// "generic" (for tests).
    xdp: Xdp = Xdp::Off;

    /// Translate connections from outside the node to ClusterIPs, for networks that route them to this node.
    cluster_ips: bool = false;

    /// Allow direct return: backends on other nodes answer clients themselves, if their service asks for it. If not,
    /// nodelb translates their connections, and its programs are smaller by a third.
    direct_return: bool = false;

    /// Networks of the hosts that may send packets in tunnels to backends on this node (forward = "tunnel"), at most 16:
    /// those of the nodes. Without any, all hosts may; see "Strangers" in docs/packets.md.
    tunnel_sources: Vec<IpNet> = Vec::new(), few_networks;

    /// What happens to TCP packets of connections that nodelb does not know, except on addresses of the node: "auto"
    /// hands them to the network stack if another service proxy has made the connection, and otherwise lets it continue
    /// at a backend of this node if the client's address and port select that one, or answers with RST; "pass" hands all
    /// to the network stack; "reset" answers all with RST.
    unknown: Unknown = Unknown::Auto;

    /// Answer packets that cannot be served with TCP RST or ICMP, and pings to addresses that only nodelb has; otherwise
    /// they are dropped.
    answer: bool = true;

    /// Maximum number of connections, half of which UDP may have; each requires about 400 bytes while it exists.
    max_connections: u32 = 131_072, between::<1, 4_194_304>;

    /// Maximum number of connections that the backend has not answered yet; the least recently used is evicted.
    max_handshakes: u32 = 32_768, between::<64, 4_194_304>;

    /// Maximum number of frontend addresses that clients outside the node can connect to.
    max_outside: u32 = 16_384, between::<1, 16_777_216>;

    /// Maximum number of fragmented datagrams at a time; the least recently used is evicted.
    max_fragments: u32 = 8192, between::<64, 1_048_576>;

    /// Maximum number of address ranges in loadBalancerSourceRanges, over all services.
    max_source_ranges: u32 = 16_384, between::<1, 1_048_576>;

    /// Time without a packet after which a TCP connection is forgotten, from "1m" to "30d". Above 80 % of
    /// max-connections it is less, with direct return above 80 % of max-handshakes.
    tcp_timeout: Seconds = Seconds(86_400), lasts::<60, 2_592_000>;

    /// Time without a packet after which a UDP client is forgotten, from "10s" to "1d".
    udp_timeout: Seconds = Seconds(120), lasts::<10, 86_400>;
}

/// The programs have room for so many.
fn few_networks(networks: &[IpNet]) -> Result<(), String> {
    match networks.len() > PacketOptions::MOST_TUNNEL_SOURCES {
        true => Err(format!("at most {} networks are possible", PacketOptions::MOST_TUNNEL_SOURCES)),
        false => Ok(()),
    }
}

/// "auto" selects devices only in `devices`.
fn names_only(names: &[DeviceName]) -> Result<(), String> {
    match names.iter().any(DeviceName::is_auto) {
        true => Err("`auto` is possible only in packets.devices; name the devices".into()),
        false => Ok(()),
    }
}

impl Packets {
    /// Whether maps and programs for packets are needed.
    pub fn is_on(&self) -> bool {
        self.mode != PacketMode::Off
    }

    pub fn engine(&self) -> PacketsConfig {
        PacketsConfig {
            is_on: self.is_on(),
            cluster_ips: self.cluster_ips,
            is_consistent: self.choice == Choice::Consistent,
            direct_return: self.direct_return,
        }
    }

    /// Whether any client can begin a connection that the packet programs translate: at pod devices always, elsewhere if an
    /// address is served outside the node.
    pub(crate) fn may_have_clients(&self, is_outside_served: bool) -> bool {
        is_outside_served || !self.pod_devices.is_empty()
    }

    /// The devices that two lists contain which exclude each other.
    fn together(&self) -> Vec<(&'static str, String)> {
        let excluded = self.devices.iter().filter_map(|device| {
            let by = self.except.iter().find(|except| *except == device || covers(except, device))?;
            Some(("devices", format!("`{device}` is excluded by `{by}` in packets.except; remove one of the two")))
        });
        let both = self.pod_devices.iter().filter_map(|device| {
            let by = self.devices.iter().find(|other| *other == device || covers(other, device))?;
            Some((
                "pod_devices",
                format!(
                    "`{device}` is also in packets.devices (`{by}`); a device leads to pods or to other machines: \
                     remove it from one of the two"
                ),
            ))
        });
        let unanswered = (self.snat == Snat::Always && self.pod_devices.is_empty()).then(|| {
            let detail = "`always` requires packets.pod-devices: a backend on this node answers to the node, and only \
                          programs at its own device translate that answer";
            ("snat", detail.into())
        });
        excluded.chain(both).chain(unanswered).collect()
    }

    /// The problems with keys of `[datapath]`.
    pub(super) fn check_with(&self, datapath: &Datapath) -> Vec<(String, String)> {
        let (nodeports, SnatPorts::Range(snat)) = (&datapath.nodeport_range, &self.snat_ports) else {
            return Vec::new();
        };
        // Where NodePorts leave no such range, those inside of it are refused one by one.
        if !overlap(snat, nodeports) || large_range(|port| !nodeports.contains(port)).is_none() {
            return Vec::new();
        }
        let message = format!(
            "{} contains ports of datapath.nodeport-range ({}): answers of backends would be taken for connections to \
             NodePorts; use a range outside of it",
            dashed(snat),
            dashed(nodeports)
        );
        vec![("snat-ports".into(), message)]
    }

    /// The source ports, if NodePorts of the range might have them.
    pub(super) fn ports_of_no_nodeport(&self, nodeports: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
        match &self.snat_ports {
            SnatPorts::Range(ports) if self.is_on() && overlap(ports, nodeports) => Some(ports.clone()),
            SnatPorts::Range(_) | SnatPorts::Auto => None,
        }
    }

    /// Whether the change to `new` needs a restart although a reload applies other changes of the mode.
    pub(super) fn mode_needs_restart(&self, new: &Self) -> bool {
        self.is_on() != new.is_on()
    }

    /// The configuration in effect after a reload that read `new`: keys that need a restart keep their values.
    pub(crate) fn reloaded(&self, new: &Self) -> Self {
        let mode = if self.mode_needs_restart(new) { self.mode } else { new.mode };
        Self { mode, ..self.with_at_once(new) }
    }
}

/// Whether the pattern matches the device, or every device that the other pattern can match.
fn covers(pattern: &DeviceName, device: &DeviceName) -> bool {
    if device.0.contains('*') { pattern.0 == "*" } else { pattern.matches(&device.0) }
}

#[cfg(test)]
#[path = "tests/packets.rs"]
mod tests;
