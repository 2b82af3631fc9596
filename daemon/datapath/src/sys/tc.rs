//! The calls for programs at network devices: tcx links, and the programs of tc filters. Each function makes one system call, or one
//! request over netlink.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libbpf_sys::{bpf_link_create_opts, bpf_prog_query_opts, bpf_tc_hook, bpf_tc_opts};

use super::call::{check, owned};

/// The kernel's limit of programs at one hook of a device.
const MOST: u32 = 64;

/// Attaches a program to a device before all other programs of the hook (Linux 6.6). Needs no capability.
pub(crate) fn tcx_create(program: BorrowedFd<'_>, ifindex: u32, attach_type: u32) -> io::Result<OwnedFd> {
    let mut options = bpf_link_create_opts { sz: size_of::<bpf_link_create_opts>() as _, ..Default::default() };
    // Without a program to be before, it is before all.
    options.flags = libbpf_sys::BPF_F_BEFORE;
    // SAFETY: the descriptor is open for the call, and the options live until its end.
    owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), index(ifindex)?, attach_type, &raw const options) })
}

/// The ids of the links at a tcx hook of a device, in the order of their programs' execution; 0 for a program without
/// one. Takes CAP_NET_ADMIN.
pub(crate) fn tcx_links(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    let (mut programs, mut links) = ([0_u32; MOST as usize], [0_u32; MOST as usize]);
    let mut options = bpf_prog_query_opts {
        sz: size_of::<bpf_prog_query_opts>() as _,
        // The kernel lists no links without room for their programs.
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = MOST;
    // SAFETY: the arrays have room for `count` numbers and live until the end of the call.
    check(unsafe { bpf_prog_query_opts(index(ifindex)?, attach_type, &raw mut options) })?;
    // SAFETY: both names of the field have the same type.
    let count = unsafe { options.__bindgen_anon_1.count };
    Ok(links.into_iter().take(count.min(MOST) as usize).collect())
}

/// The program that the filter with this handle and priority runs. `attach_point` is `BPF_TC_INGRESS` or `BPF_TC_EGRESS`.
pub(crate) fn filter_program(
    ifindex: u32,
    attach_point: libbpf_sys::bpf_tc_attach_point,
    (handle, priority): (u32, u32),
) -> io::Result<u32> {
    let sz = size_of::<bpf_tc_hook>() as _;
    let hook = bpf_tc_hook { sz, ifindex: index(ifindex)?, attach_point, ..Default::default() };
    let sz = size_of::<bpf_tc_opts>() as _;
    let mut options = bpf_tc_opts { sz, handle, priority, ..Default::default() };
    // SAFETY: both structures live until the end of the call.
    check(unsafe { libbpf_sys::bpf_tc_query(&raw const hook, &raw mut options) })?;
    Ok(options.prog_id)
}

pub(super) fn index(ifindex: u32) -> io::Result<i32> {
    i32::try_from(ifindex).map_err(|_too_large| io::Error::from_raw_os_error(libc::ENODEV))
}

/// A request about a device by its name.
pub(super) fn named(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<libc::ifreq> {
    // SAFETY: all bytes zero is a valid value of the structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = index(ifindex)?;
    // SAFETY: the descriptor is open, and the kernel reads and writes one structure of this type.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request)
}

/// The type of a device's link layer, `ARPHRD_*` of `linux/if_arp.h`, and the first bytes of its address there.
pub(crate) fn link_layer(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<(u16, [u8; 6])> {
    let mut request = named(socket, ifindex)?;
    // SAFETY: the descriptor is open, the structure has the name, and the kernel reads and writes one of this type.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this request returns a hardware address.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut bytes = [0; 6];
    bytes.iter_mut().zip(address.sa_data).for_each(|(to, from)| *to = from.to_ne_bytes()[0]);
    Ok((address.sa_family, bytes))
}
