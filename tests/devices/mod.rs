//! Shared by the tests: a node with packet programs, its devices, and what is attached to them.

mod attach;
mod carried;
mod clsact;
mod failures;
mod kept;
mod resized;
mod xdp;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nodelb_core::datapath::Limits;
use nodelb_datapath::OpenedPackets;
use nodelb_datapath::packets::{PacketOptions, PacketSettings};
use nodelb_datapath::{Attach, DeviceSide, HookMethod, HookedDevice, KernelDatapath, Options, XdpFit};

use crate::part::{PART, in_sandbox, part};
use crate::sandbox::{Sandbox, command};

const LIMITS: Limits =
    Limits { frontends: 1024, services: 256, slots: 4096, affinity: 1024, outside: 0, source_ranges: 0 };

/// Options with packets.
fn options(env: &Sandbox) -> Options {
    let packets = PacketOptions {
        nodeport_range: 30000..=32767,
        source_ports: 10000..=29999,
        limits: Limits { outside: 64, source_ranges: 64, ..LIMITS },
        max_connections: 128,
        max_handshakes: 128,
        max_fragments: 64,
        count_connections: false,
        has_pods: true,
        direct_return: true,
        tunnel_sources: Vec::new(),
        foreign_connections: None,
        xdp: None,
        settings: PacketSettings::default(),
        policies: None,
    };
    Options {
        pin_directory: env.bpffs.join("nodelb"),
        cgroup: Some(env.cgroup.clone()),
        limits: LIMITS,
        nodeport_range: 30000..=32767,
        protect_nodeports: true,
        count_connections: true,
        packets: Some(packets),
        hook_method: None,
        layout: nodelb_datapath::LAYOUT,
        crash_after: None,
    }
}

/// [`options`] with another way to attach programs, or with other sizes.
fn with_packets(env: &Sandbox, change: impl FnOnce(&mut PacketOptions)) -> Options {
    let mut options = options(env);
    change(options.packets.as_mut().expect("options with packets"));
    options
}

/// A running node.
struct Node {
    datapath: KernelDatapath,
    packets: OpenedPackets,
}

impl Node {
    fn open(options: &Options) -> Self {
        let (mut datapath, _) = KernelDatapath::open(options).unwrap_or_else(|error| panic!("{error}"));
        let packets = datapath.take_packets().expect("packets are on");
        Self { datapath, packets }
    }

    /// Attaches programs to the device.
    fn attach(&mut self, name: &str) {
        self.packets.hooks.attach(uplink(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn devices(&self) -> Vec<u32> {
        self.packets.hooks.devices().iter().map(|device| device.ifindex).collect()
    }

    fn faults(&self) -> Vec<String> {
        self.packets.hooks.faults().iter().map(|fault| format!("{} {}", fault.ifindex, fault.reason)).collect()
    }

    fn map(&self, name: &str) -> &MapHandle {
        self.packets.maps.get(name).unwrap_or_else(|| panic!("map {name}"))
    }

    /// Adds an entry for a connection.
    fn connect(&self, map: &str, number: u8) {
        self.map(map).update(&[number; 40], &[number; 80], MapFlags::ANY).expect("an entry");
    }

    fn has_connection(&self, map: &str, number: u8) -> bool {
        let value = self.map(map).lookup(&[number; 40], MapFlags::ANY).expect("a lookup");
        value.is_some_and(|value| value == [number; 80])
    }
}

/// Makes a pair of Ethernet devices; returns the index of the first one.
fn pair(name: &str, peer: &str) -> u32 {
    command("ip", &["link", "add", name, "type", "veth", "peer", "name", peer]);
    command("ip", &["link", "set", name, "up"]);
    command("ip", &["link", "set", peer, "up"]);
    index(name)
}

fn index(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn uplink(name: &str) -> HookedDevice {
    HookedDevice { ifindex: index(name), side: DeviceSide::Uplink, l2_length: 14, xdp: XdpFit::Fits }
}

/// The directory of the pinned links, and that of the persistent maps.
fn pins(env: &Sandbox) -> (PathBuf, PathBuf) {
    let version = env.bpffs.join(format!("nodelb/v{}", nodelb_datapath::LAYOUT));
    (version.join("links"), version)
}

/// The names in a directory that begin with the prefix, sorted.
fn names(directory: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().expect("a name")).collect();
    names.retain(|name| name.starts_with(prefix));
    names.sort_unstable();
    names
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
