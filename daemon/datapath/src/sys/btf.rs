//! BTF: the types that programs bring along, and the names in them.

use std::io;
use std::os::fd::AsRawFd;

use super::call::{check, owned};

/// The BTF with this id, in the format of the kernel. Takes CAP_SYS_ADMIN.
pub(crate) fn of_id(id: u32) -> io::Result<Vec<u8>> {
    // SAFETY: takes a number.
    let btf = owned(unsafe { libbpf_sys::bpf_btf_get_fd_by_id(id) })?;
    let describe = |bytes: &mut [u8]| {
        let mut info = libbpf_sys::bpf_btf_info {
            btf: bytes.as_mut_ptr().expose_provenance() as u64,
            btf_size: u32::try_from(bytes.len()).map_err(io::Error::other)?,
            ..Default::default()
        };
        let mut size = u32::try_from(size_of::<libbpf_sys::bpf_btf_info>()).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open for the call; the kernel writes at most `size` bytes to `info`, and at most
        // `btf_size` bytes to the slice that the pointer and the size are taken from.
        check(unsafe { libbpf_sys::bpf_btf_get_info_by_fd(btf.as_raw_fd(), &raw mut info, &raw mut size) })?;
        Ok::<_, io::Error>(info.btf_size as usize)
    };
    let mut bytes = vec![0; describe(&mut [])?];
    describe(&mut bytes)?;
    Ok(bytes)
}
