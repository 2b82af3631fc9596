//! The calls for XDP programs at network devices. Each function makes one system call, or one exchange over netlink.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libbpf_sys::{bpf_link_create_opts, bpf_xdp_query_opts};

use super::call::{check, owned};
use super::tc::{index, named};

/// What the driver of a device can do, `enum netdev_xdp_act` of `linux/netdev.h`: run programs, and let them send packets to
/// other devices.
const RUNS: u64 = 3;
/// Send what a program at another device has received.
const SENDS: u64 = 4;

/// The XDP programs at a device by their ids, 0 without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtDevice {
    pub(crate) native: u32,
    pub(crate) generic: u32,
    pub(crate) hardware: u32,
    features: u64,
}

impl AtDevice {
    /// Whether the driver runs programs and says what it can do, as drivers do since Linux 6.3.
    pub(crate) fn has_native(self) -> bool {
        self.features & RUNS == RUNS
    }

    /// Whether the driver now sends what native programs at other devices have received.
    pub(crate) fn sends(self) -> bool {
        self.features & SENDS != 0
    }
}

/// Attaches a program to a device if no other is there. `mode` is `XDP_FLAGS_DRV_MODE` or `XDP_FLAGS_SKB_MODE`.
pub(crate) fn create(program: BorrowedFd<'_>, ifindex: u32, mode: u32) -> io::Result<OwnedFd> {
    let options =
        bpf_link_create_opts { sz: size_of::<bpf_link_create_opts>() as _, flags: mode, ..Default::default() };
    let (program, ifindex) = (program.as_raw_fd(), index(ifindex)?);
    // SAFETY: the descriptor is open for the call, and the options live until its end.
    owned(unsafe { libbpf_sys::bpf_link_create(program, ifindex, libbpf_sys::BPF_XDP, &raw const options) })
}

pub(crate) fn query(ifindex: u32) -> io::Result<AtDevice> {
    let mut options = bpf_xdp_query_opts { sz: size_of::<bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: the options live until the end of the call.
    check(unsafe { libbpf_sys::bpf_xdp_query(index(ifindex)?, 0, &raw mut options) })?;
    Ok(AtDevice {
        native: options.drv_prog_id,
        generic: options.skb_prog_id,
        hardware: options.hw_prog_id,
        features: options.feature_flags,
    })
}

/// `ETHTOOL_GDRVINFO` and `struct ethtool_drvinfo` of `linux/ethtool.h`.
const GET_DRIVER: u32 = 3;

#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `ETHTOOL_GCHANNELS` and `struct ethtool_channels` of `linux/ethtool.h`.
const GET_CHANNELS: u32 = 0x3c;

#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    limits: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

pub(crate) fn driver(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<String> {
    let mut request = named(socket, ifindex)?;
    let mut info = DriverInfo { command: GET_DRIVER, driver: [0; 32], rest: [0; 160] };
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: the request points to the structure of its command, which lives until the end of the call.
    unsafe { ethtool(socket, request)? };
    let name = info.driver.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// The number of queues by which a device sends.
pub(crate) fn queues(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<u32> {
    let mut request = named(socket, ifindex)?;
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: as above.
    unsafe { ethtool(socket, request)? };
    Ok(channels.combined.saturating_add(channels.transmit))
}

/// # Safety
/// The data of the request is the structure of its command, and lives until the end of the call.
unsafe fn ethtool(socket: BorrowedFd<'_>, mut request: libc::ifreq) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the kernel reads one request and writes what it points to.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
