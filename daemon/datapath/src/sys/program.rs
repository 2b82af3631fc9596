//! What the kernel says about loaded programs, and what libbpf knows about an object that is not loaded.

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::{AsRawLibbpf, OpenMap, OpenProgram};

use super::call::{check, open_as, owned};

/// What identifies a loaded program for as long as the machine runs: the kernel gives its id to no second one, and the
/// time when it was loaded is in nanoseconds.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct ProgramInfo {
    pub(crate) id: u32,
    pub(crate) program_type: u32,
    /// Hash of the instructions as they were loaded.
    tag: [u8; 8],
    name: [c_char; 16],
    loaded_at: u64,
    pub(crate) created_by: u32,
    pub(crate) verified_instructions: u32,
    /// Ids of the maps, in the order of their first use.
    pub(crate) maps: Vec<u32>,
}

/// Maximum number of maps that a program may use: `MAX_USED_MAPS` of the kernel.
const MOST_MAPS: u32 = 64;

fn size_of_type<T>() -> io::Result<u32> {
    u32::try_from(size_of::<T>()).map_err(io::Error::other)
}

/// Describes a program.
pub(crate) fn info(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    let mut maps = [0_u32; MOST_MAPS as usize];
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: MOST_MAPS,
        map_ids: maps.as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    let mut size = size_of_type::<libbpf_sys::bpf_prog_info>()?;
    // SAFETY: the descriptor is open for the call; the kernel writes at most `size` bytes to `info`, and at most
    // `nr_map_ids` numbers to the array, which has room for them.
    check(unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size) })?;
    Ok(ProgramInfo {
        id: info.id,
        program_type: info.type_,
        tag: info.tag,
        name: info.name,
        loaded_at: info.load_time,
        created_by: info.created_by_uid,
        verified_instructions: info.verified_insns,
        maps: maps.into_iter().take(info.nr_map_ids as usize).collect(),
    })
}

/// Opens the program that is pinned at the path; `None` if something else is there.
pub(crate) fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    open_as(path, &["anon_inode:bpf-prog"])
}

/// The descriptor of the map that the object uses instead of a new one.
pub(crate) fn reused_map<'a>(map: &'a OpenMap<'_>) -> Option<BorrowedFd<'a>> {
    // SAFETY: the pointer is that of a map of an open object.
    let fd = unsafe { libbpf_sys::bpf_map__fd(map.as_libbpf_object().as_ptr()) };
    // SAFETY: the descriptor is the object's, which lives longer than the borrow.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// The flags that the program will be loaded with.
pub(crate) fn flags(program: &OpenProgram<'_>) -> u32 {
    // SAFETY: the pointer is that of a program of an open object.
    unsafe { libbpf_sys::bpf_program__flags(program.as_libbpf_object().as_ptr()) }
}

/// Makes a loaded iterator readable: over all objects of its kind, or over the elements of a map.
pub(crate) fn iterate(program: BorrowedFd<'_>, map: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let mut over = libbpf_sys::bpf_iter_link_info::default();
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if let Some(map) = map {
        over.map.map_fd = u32::try_from(map.as_raw_fd()).map_err(io::Error::other)?;
        options.iter_info = &raw mut over;
        options.iter_info_len = size_of_type::<libbpf_sys::bpf_iter_link_info>()?;
    }
    // SAFETY: the descriptors are open for the call, and the options and what they point to live until it returns.
    owned(unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, &raw const options)
    })
}
