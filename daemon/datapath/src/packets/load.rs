//! Loads `bpf/packet.bpf.c`.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, OpenObject};
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::ipsec::Policies;
use nodelb_core::model::source_range::SourceRange;

use crate::counters::Counters;
use crate::error::{OpenError, failed, into_io};
use crate::kept::{self, KeptPrograms, LoadedObject, Source};
use crate::load::{listening, refusal};
use crate::packets::bare::{BareDevices, LinkLayer};
use crate::packets::bloom;
use crate::packets::foreign::ForeignConnections;
use crate::packets::handles::PacketMaps;
use crate::packets::settings::PacketSettings;
use crate::skeleton;
use crate::skeleton::packet::{self, OpenPacketSkel, PacketSkelBuilder};
use crate::sys;

const OBJECT: &str = "packet.bpf.o";

/// The maps of `bpf/maps.h` that no program of the packet path uses.
const UNUSED: [&str; 2] = ["udp_overflow", "counters"];

#[derive(Clone, Debug)]
pub struct PacketOptions {
    /// Ports that may be NodePorts; an empty range for none.
    pub nodeport_range: RangeInclusive<u16>,
    /// Ports of this node for connections to backends on other machines; not empty.
    pub source_ports: RangeInclusive<u16>,
    /// Sizes of the maps with services; used only for those that are not given.
    pub limits: Limits,
    /// Maximum number of connections that the backend has answered; each takes two entries.
    pub max_connections: u32,
    /// Maximum number of connections that have only begun; each takes two entries.
    pub max_handshakes: u32,
    /// Maximum number of datagrams that are arriving in fragments.
    pub max_fragments: u32,
    pub count_connections: bool,
    pub has_pods: bool,
    /// Whether packets may have direct return. Without it, a third of the programs is neither verified nor there.
    pub direct_return: bool,
    /// The hosts that may send packets in tunnels, at most [`Self::MOST_TUNNEL_SOURCES`]; without any, all may.
    pub tunnel_sources: Vec<SourceRange>,
    /// The connections that others have made from `source_ports` at the moment; `None` if the programs query connection
    /// tracking for each port instead, which must be built into the kernel.
    pub foreign_connections: Option<ForeignConnections>,
    /// How to load the XDP program; `None`: it is not loaded.
    pub xdp: Option<XdpMode>,
    pub settings: PacketSettings,
    /// The policies of IPsec at the moment; `None` if they could not be read.
    pub policies: Option<Policies>,
}

impl PacketOptions {
    pub const MOST_TUNNEL_SOURCES: usize = 16;

    /// Copies of the counters of services; 0 if connections are not counted.
    pub(super) fn counter_shards(&self) -> u32 {
        let shards = if self.count_connections { Counters::shards(self.limits.services) } else { 0 };
        u32::try_from(shards).unwrap_or(0)
    }
}

/// Sets the constants that the programs at tc and at XDP have in common.
macro_rules! set_constants {
    ($rodata:ident, $options:ident) => {
        $rodata.weakly_ordered = crate::load::IS_WEAKLY_ORDERED.into();
        $rodata.may_forward = $options.direct_return.into();
        $rodata.nodeport_first = *$options.nodeport_range.start();
        $rodata.nodeport_last = *$options.nodeport_range.end();
        $rodata.snat_first = *$options.source_ports.start();
        $rodata.snat_last = *$options.source_ports.end();
        $rodata.bloom_mask = crate::packets::bloom::words($options.limits.outside) - 1;
        $rodata.lists_tracked = $options.foreign_connections.is_some().into();
        if let Some(mask) = $options.counter_shards().checked_sub(1) {
            $rodata.counted_services = $options.limits.services;
            $rodata.counter_shards_mask = mask;
        }
    };
}
pub(super) use set_constants;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the drivers that can run it.
    Auto,
    /// In the network stack, at every device.
    Generic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketHook {
    /// Packets that arrive at a device to other machines.
    UplinkIn,
    /// Packets that leave by such a device.
    UplinkOut,
    /// Packets that a pod sends, at the host's end of its device.
    PodIn,
    PodOut,
}

impl PacketHook {
    pub const ALL: [Self; 4] = [Self::UplinkIn, Self::UplinkOut, Self::PodIn, Self::PodOut];
}

/// The loaded programs. They disappear with this value unless they are attached.
#[derive(Debug)]
pub struct PacketPrograms {
    maps: PacketMaps,
    programs: BTreeMap<PacketHook, OwnedFd>,
    bare_devices: BareDevices,
    pub(crate) are_taken_over: bool,
}

impl PacketPrograms {
    /// Loads the programs with these maps, and creates those that are missing. Needs CAP_BPF, CAP_NET_ADMIN and
    /// CAP_PERFMON.
    pub fn load(options: &PacketOptions, existing: PacketMaps) -> Result<Self, OpenError> {
        Self::load_or_keep(options, existing, None)
    }

    /// As [`Self::load`], or takes over the programs of an earlier start, with the maps that these have created.
    pub(crate) fn load_or_keep(
        options: &PacketOptions,
        existing: PacketMaps,
        kept: Option<&KeptPrograms>,
    ) -> Result<Self, OpenError> {
        let mut object = MaybeUninit::uninit();
        let skeleton = prepare(&mut object, options, &existing)?;
        let bytes = skeleton::with_layout(existing.service_words().is_next(), packet::object);
        let source = Source { name: "packet", bytes, lasting: &[] };
        let (loaded, log) = listening(|| kept::load(kept, &source, |name| existing.get(name), skeleton));
        let loaded = loaded.map_err(|error| refusal(error, &log))?;
        take(&loaded, existing, options.has_pods).map_err(failed("taking the descriptors of", Path::new(OBJECT)))
    }

    pub fn has_pods(&self) -> bool {
        self.programs.contains_key(&PacketHook::PodIn)
    }

    /// The program for a hook of a device.
    ///
    /// # Panics
    /// If it is for devices of pods, and these programs were not loaded.
    pub fn program(&self, hook: PacketHook) -> BorrowedFd<'_> {
        self.programs[&hook].as_fd()
    }

    /// Makes the programs read packets of the device in this way; without a call, they have an Ethernet header. Works
    /// without capabilities.
    pub fn set_link_layer(&self, ifindex: u32, link_layer: LinkLayer) -> io::Result<()> {
        self.bare_devices.set(ifindex, link_layer)
    }

    /// Pins the program for a hook of a device at a path in a bpffs, from where tc(8) can attach it.
    pub fn pin(&self, hook: PacketHook, path: &Path) -> io::Result<()> {
        sys::pin(self.program(hook), path)
    }

    pub fn maps(&self) -> &PacketMaps {
        &self.maps
    }
}

fn take(loaded: &LoadedObject, existing: PacketMaps, has_pods: bool) -> io::Result<PacketPrograms> {
    let mut maps = existing;
    for (name, map) in loaded.maps() {
        if !maps.0.contains_key(name) {
            maps.0.insert(name.to_owned(), MapHandle::try_from(map).map_err(into_io)?);
        }
    }
    let bare_devices = BareDevices::new(&loaded.map(".bss")?, loaded.map("bare_devices")?)?;
    let mut programs = BTreeMap::new();
    for hook in PacketHook::ALL {
        let program = match hook {
            PacketHook::PodIn | PacketHook::PodOut if !has_pods => continue,
            PacketHook::UplinkIn => "packet_in",
            PacketHook::PodIn => "pod_in",
            PacketHook::UplinkOut | PacketHook::PodOut => "packet_out",
        };
        programs.insert(hook, loaded.program(program)?);
    }
    Ok(PacketPrograms { maps, programs, bare_devices, are_taken_over: loaded.is_taken_over })
}

fn prepare<'o>(
    object: &'o mut MaybeUninit<OpenObject>,
    options: &PacketOptions,
    existing: &PacketMaps,
) -> Result<OpenPacketSkel<'o>, OpenError> {
    let is_next = existing.service_words().is_next();
    let skeleton = skeleton::with_layout(is_next, || PacketSkelBuilder::default().open(object));
    let mut skeleton = skeleton.map_err(failed("opening", Path::new(OBJECT)))?;
    let rodata = skeleton.maps.rodata_data.as_deref_mut().expect("invariant: the object has constants");
    set_constants!(rodata, options);
    // The programs have exactly this room.
    let room: &mut [_; PacketOptions::MOST_TUNNEL_SOURCES] = &mut rodata.tunnel_sources;
    let tunnels = options.tunnel_sources.iter().take(room.len());
    rodata.tunnel_source_count = u32::try_from(tunnels.len()).unwrap_or(0);
    for (source, net) in room.iter_mut().zip(tunnels) {
        (source.addr, source.mask) = (words(net.addr), words(net.mask()));
    }
    let connections = existing.get("connections").map(MapHandle::max_entries);
    // Two entries for each connection. UDP flows may use half of them.
    rodata.most_udp_entries = connections.map_or(options.max_connections, |entries| entries / 2);
    // The kernel verifies each program when it is loaded, which takes most of the time of a start.
    skeleton.progs.pod_in.set_autoload(options.has_pods);
    set_maps(&mut skeleton, options, existing).map_err(failed("preparing the maps of", Path::new(OBJECT)))?;
    Ok(skeleton)
}

/// An address as the programs have it.
fn words(addr: Addr) -> [u32; 4] {
    let octets = addr.octets();
    let (words, _) = octets.as_chunks::<4>();
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u32::from_ne_bytes(*word)))
}

fn set_maps(
    skeleton: &mut OpenPacketSkel<'_>,
    options: &PacketOptions,
    existing: &PacketMaps,
) -> libbpf_rs::Result<()> {
    let limits = options.limits;
    for mut map in skeleton.open_object_mut().maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if UNUSED.contains(&name.as_str()) {
            map.set_autocreate(false)?;
            continue;
        }
        if let Some(handle) = existing.get(&name) {
            map.reuse_fd(handle.as_fd())?;
            continue;
        }
        let entries = match name.as_str() {
            "frontends" => limits.frontends,
            "services" => limits.services,
            "slots" => limits.slots,
            "affinity" => limits.affinity,
            "outside" | "outside_addrs" => limits.outside.max(1),
            "connections" => options.max_connections.saturating_mul(2),
            "half_open" => options.max_handshakes.saturating_mul(2),
            "fragments" => options.max_fragments,
            "source_ranges" => limits.source_ranges,
            bloom::NAME => bloom::words(limits.outside),
            // At least one entry: the programs refer to the map even if they count nothing.
            "outside_counters" => options.counter_shards().saturating_mul(limits.services).max(1),
            _ => continue,
        };
        map.set_max_entries(entries)?;
    }
    Ok(())
}
