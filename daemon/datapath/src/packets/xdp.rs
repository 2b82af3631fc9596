//! Loads `bpf/xdp.bpf.c`, and tells it what it must know about devices.

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, OpenObject};

use crate::error::{OpenError, failed};
use crate::kept::{self, KeptPrograms, Source};
use crate::load::{listening, refusal};
use crate::packets::handles::PacketMaps;
use crate::packets::load::{PacketOptions, XdpMode, set_constants};
use crate::packets::run::{Packet, Verdict};
use crate::skeleton;
use crate::skeleton::xdp::types::{xdp_device, xdp_md};
use crate::skeleton::xdp::{self, XdpSkelBuilder};
use crate::sys;

const OBJECT: &str = "xdp.bpf.o";

/// The maps that only this program has, or has for itself: it may run between the programs of a packet's way.
const OWN: [&str; 3] = ["xdp_devices", "passed_hops", "packet_scratch"];

/// What the program knows about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpDevice {
    pub mac: [u8; 6],
    /// Whether the program may send packets of other devices by it.
    pub sends: bool,
}

/// The loaded program. It disappears with this value unless it is attached.
#[derive(Debug)]
pub struct XdpProgram {
    program: OwnedFd,
    devices: MapHandle,
}

/// Bytes that a tunnel adds at most: an IPv6 header.
const TUNNEL: usize = 40;

impl XdpProgram {
    /// Loads the program with the maps of the packet path. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    pub fn load(options: &PacketOptions, maps: &PacketMaps) -> Result<Self, OpenError> {
        Self::load_or_keep(options, maps, None)
    }

    /// As [`Self::load`], or takes over the program of an earlier start, without what it knew about devices.
    pub(crate) fn load_or_keep(
        options: &PacketOptions,
        maps: &PacketMaps,
        kept: Option<&KeptPrograms>,
    ) -> Result<Self, OpenError> {
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let is_next = maps.service_words().is_next();
        let opened = skeleton::with_layout(is_next, || XdpSkelBuilder::default().open(&mut object));
        let mut skeleton = opened.map_err(failed("opening", Path::new(OBJECT)))?;
        let rodata = skeleton.maps.rodata_data.as_deref_mut().expect("invariant: the object has constants");
        set_constants!(rodata, options);
        if options.xdp == Some(XdpMode::Auto) {
            // Packets may be in several parts, as devices with a large MTU receive them. Since Linux 6.9, the programs at tc
            // do not find the link-layer header of packets that such a program has passed on in the network stack.
            skeleton.progs.xdp_in.set_flags(libbpf_sys::BPF_F_XDP_HAS_FRAGS);
        }
        let prepared = maps.give_to(skeleton.open_object_mut(), &OWN);
        prepared.map_err(failed("preparing the maps of", Path::new(OBJECT)))?;
        let source = Source { name: "xdp", bytes: skeleton::with_layout(is_next, xdp::object), lasting: &[] };
        let (loaded, log) = listening(|| kept::load(kept, &source, |name| maps.get(name), skeleton));
        let loaded = loaded.map_err(|error| refusal(error, &log))?;
        let taking = || failed("taking the descriptors of", Path::new(OBJECT));
        let devices = loaded.map("xdp_devices").map_err(taking())?;
        // Without these entries, the program passes all packets on.
        devices.keys().try_for_each(|key| sys::delete(&devices, &key)).map_err(taking())?;
        Ok(Self { program: loaded.program("xdp_in").map_err(taking())?, devices })
    }

    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Lets the program translate packets at the device, or send them by it. `None`: neither. Works without capabilities.
    pub fn set_device(&self, ifindex: u32, device: Option<XdpDevice>) -> io::Result<()> {
        let key = ifindex.to_ne_bytes();
        let Some(device) = device else {
            return sys::delete(&self.devices, &key);
        };
        let mut value = [0; size_of::<xdp_device>()];
        value[offset_of!(xdp_device, mac)..][..device.mac.len()].copy_from_slice(&device.mac);
        value[offset_of!(xdp_device, sends)..][..2].copy_from_slice(&u16::from(device.sends).to_ne_bytes());
        sys::update(&self.devices, &key, &value)
    }

    /// Runs the program on a packet. The verdict is 1 to drop the packet, 2 to pass it on, and 4 to send it by a
    /// device.
    pub fn run(&self, packet: &Packet, times: u32) -> io::Result<Verdict> {
        let mut context = [0; size_of::<xdp_md>()];
        let mut set = |at: usize, value: u32| context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        set(offset_of!(xdp_md, data_end), u32::try_from(packet.bytes.len()).map_err(io::Error::other)?);
        set(offset_of!(xdp_md, ingress_ifindex), packet.ifindex);
        let mut bytes = vec![0; packet.bytes.len() + TUNNEL];
        let (code, length) = sys::test_run(self.program(), &context, (&packet.bytes, times), &mut bytes)?;
        bytes.truncate(length);
        Ok(Verdict { code: code.cast_signed(), bytes })
    }
}
