//! The bpf(2) calls without a safe function in libbpf-rs, shared memory, and leases of files. Each function makes one system call or one
//! mapping. The kernel makes all file descriptors close-on-exec.
#![expect(unsafe_code, reason = "system calls and shared memory")]

pub(crate) mod btf;
mod call;
pub(crate) mod lease;
pub(crate) mod program;
pub(crate) mod tc;
pub(crate) mod xdp;
pub(crate) mod xt;

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::{CString, c_void};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::{ErrorKind, MapCore, MapHandle, MapInfo};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

pub(crate) use call::open_pinned;
use call::{check, open_as, owned};

use crate::error::into_io;

/// Attaches a program to a cgroup. The attachment lasts as long as the descriptor or a pin of it.
pub(crate) fn link_create(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<OwnedFd> {
    // SAFETY: both descriptors are open for the call; no options means null.
    let fd = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), cgroup.as_raw_fd(), attach_type, null()) };
    owned(fd)
}

/// Replaces the program of the link in one step.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open for the call; no options means null.
    check(unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), null()) })
}

/// Detaches the program of the link, even if other processes hold the link.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call.
    check(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) })
}

/// Maximum number of programs at a hook of a cgroup: `BPF_CGROUP_MAX_PROGS` of the kernel.
pub(crate) const MOST_ATTACHED: u32 = 64;

/// The programs that are attached to a cgroup at a hook: the flags of the attachment, and the ids. Takes CAP_NET_ADMIN.
pub(crate) fn attached(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<(u32, Vec<u32>)> {
    let mut ids = vec![0u32; MOST_ATTACHED as usize];
    let (mut flags, mut count) = (0u32, MOST_ATTACHED);
    // SAFETY: the descriptor is open for the call; the kernel writes the flags, at most `count` ids to the array that has
    // room for them, and their number to `count`.
    check(unsafe {
        libbpf_sys::bpf_prog_query(cgroup.as_raw_fd(), attach_type, 0, &raw mut flags, ids.as_mut_ptr(), &raw mut count)
    })?;
    ids.truncate(count as usize);
    Ok((flags, ids))
}

/// The ids of all links of this machine, of all types. Takes CAP_SYS_ADMIN.
pub(crate) fn link_ids() -> io::Result<Vec<u32>> {
    let (mut ids, mut id) = (Vec::new(), 0u32);
    loop {
        // SAFETY: the kernel writes one number.
        match check(unsafe { libbpf_sys::bpf_link_get_next_id(id, &raw mut id) }) {
            Ok(()) => ids.push(id),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
            Err(error) => return Err(error),
        }
    }
}

/// Opens the link with this id. Takes CAP_SYS_ADMIN.
pub(crate) fn link_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes a number.
    owned(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) })
}

/// Opens the output of an iterator's link. Reading one file to its end is one pass.
pub(crate) fn iter_create(link: BorrowedFd<'_>) -> io::Result<File> {
    // SAFETY: the descriptor is open for the call.
    owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) }).map(File::from)
}

/// Pins a map or link at a path in bpffs.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that outlives the call.
    check(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) })
}

/// Opens the link that is pinned at the path; `None` if something else is there. Whatever is opened through a pin has
/// to pass here before it is read as a link: libbpf takes the kernel's description of a map or a program for that of a
/// link, and follows a pointer in it.
pub(crate) fn open_link(path: &Path) -> io::Result<Option<OwnedFd>> {
    // The kernel shows `bpf_link` for a link that was created here, and `bpf-link` for one that was opened by its pin.
    open_as(path, &["anon_inode:bpf-link", "anon_inode:bpf_link"])
}

/// Adds or replaces an entry of a map. The error has the kernel's number, which libbpf-rs does not keep.
pub(crate) fn update(map: &MapHandle, key: &[u8], value: &[u8]) -> io::Result<()> {
    let sizes = (map.key_size() as usize, map.value_size() as usize);
    assert_eq!((key.len(), value.len()), sizes, "invariant: an entry has the map's sizes");
    let (key, value) = (key.as_ptr().cast(), value.as_ptr().cast());
    // SAFETY: the descriptor is open for the call; the kernel reads as many bytes as the map's sizes, which both slices
    // have.
    check(unsafe { libbpf_sys::bpf_map_update_elem(map.as_fd().as_raw_fd(), key, value, 0) })
}

/// Deletes an entry of a map, which may be absent.
pub(crate) fn delete(map: &MapHandle, key: &[u8]) -> io::Result<()> {
    match map.delete(key) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted.map_err(into_io),
    }
}

pub(crate) fn look_up(map: &MapHandle, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
    map.lookup(key, libbpf_rs::MapFlags::ANY).map_err(into_io)
}

/// The id of a map, which no other map has for as long as the machine runs.
pub(crate) fn map_id(map: BorrowedFd<'_>) -> io::Result<u32> {
    MapInfo::new(map).map(|info| info.info.id).map_err(into_io)
}

/// Opens the map that is pinned at the path; `None` if something else is there.
pub(crate) fn open_map(path: &Path) -> io::Result<Option<MapHandle>> {
    match open_as(path, &["anon_inode:bpf-map"])? {
        Some(_) => MapHandle::from_pinned_path(path).map(Some).map_err(into_io),
        None => Ok(None),
    }
}

/// Whether the map is the one that is pinned at the path.
pub(crate) fn is_same_map(map: &MapHandle, path: &Path) -> bool {
    let pinned = open_pinned(path).ok().and_then(|pinned| map_id(pinned.as_fd()).ok());
    pinned.is_some() && pinned == map_id(map.as_fd()).ok()
}

/// Whether programs of this type may call this kernel function (a BPF helper).
pub(crate) fn has_function(program_type: libbpf_sys::bpf_prog_type, function: libbpf_sys::bpf_func_id) -> bool {
    // SAFETY: takes two numbers; no options means null.
    unsafe { libbpf_sys::libbpf_probe_bpf_helper(program_type, function, null()) == 1 }
}

/// Runs a program on these bytes, each time on what the last run has left of them. Returns the last verdict, and writes
/// the bytes that are left to `output`, which must be large enough; returns how many.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    context: &[u8],
    (input, times): (&[u8], u32),
    output: &mut [u8],
) -> io::Result<(u32, usize)> {
    let size = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: input.as_ptr().cast(),
        data_size_in: size(input.len())?,
        data_out: output.as_mut_ptr().cast(),
        data_size_out: size(output.len())?,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size(context.len())?,
        repeat: i32::try_from(times).map_err(io::Error::other)?,
        ..Default::default()
    };
    // SAFETY: the descriptor is open for the call. The kernel reads at most `ctx_size_in` and `data_size_in` bytes, and
    // writes at most `data_size_out` bytes, of the slices that the pointers and sizes are taken from.
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok((options.retval, options.data_size_out as usize))
}

/// Runs a program of the type `BPF_PROG_TYPE_SYSCALL`, and returns its result. Takes no capability.
fn run(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: the descriptor is open for the call; no context and no data means null.
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok(options.retval)
}

/// The cookie that programs identify the network namespace of a socket with; never 0. Since Linux 5.14.
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: the kernel writes at most `length` bytes to the 8 of `cookie`, and how many to `length`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if status == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// All keys and values of a hash map. Entries that are added or removed at the same time may be missing; no other entry
/// is.
pub(crate) fn entries<const K: usize, const V: usize>(map: &MapHandle) -> io::Result<Vec<([u8; K], [u8; V])>> {
    let mut found = Vec::new();
    each_batch(map, |keys, values| found.extend(keys.iter().copied().zip(values.iter().copied())))?;
    Ok(found)
}

/// [`entries`] in batches of a few thousand keys and their values.
pub(crate) fn each_batch<const K: usize, const V: usize>(
    map: &MapHandle,
    mut take: impl FnMut(&[[u8; K]], &[[u8; V]]),
) -> io::Result<()> {
    each_batch_until(map, |keys, values| {
        take(keys, values);
        ControlFlow::Continue(())
    })
}

/// [`each_batch`], until `take` breaks.
pub(crate) fn each_batch_until<const K: usize, const V: usize>(
    map: &MapHandle,
    mut take: impl FnMut(&[[u8; K]], &[[u8; V]]) -> ControlFlow<()>,
) -> io::Result<()> {
    debug_assert_eq!((map.key_size() as usize, map.value_size() as usize), (K, V), "the map's own sizes");
    const BATCH: u32 = 4096;
    let mut keys = vec![[0u8; K]; BATCH as usize];
    let mut values = vec![[0u8; V]; BATCH as usize];
    let (mut from, mut to) = (0u32, 0u32);
    let mut first = true;
    loop {
        let mut count = BATCH;
        let from_ptr = if first { null_mut() } else { (&raw mut from).cast::<c_void>() };
        // SAFETY: a hash map's position is a u32, and the arrays hold BATCH keys and values of the map's own sizes.
        let status = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from_ptr,
                (&raw mut to).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                null(),
            )
        };
        let end = match check(status) {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) => return Err(error),
        };
        let count = count.min(BATCH) as usize;
        if take(&keys[..count], &values[..count]).is_break() || end {
            return Ok(());
        }
        (from, first) = (to, false);
    }
}

/// An mmapable array map as 8-byte words that this process and BPF programs share. A part of the map is mapped into
/// memory when it is used first, because the kernel counts every page of a mapping as memory of the process.
#[derive(Debug)]
pub(crate) struct SharedWords {
    map: OwnedFd,
    words: usize,
    windows: Box<[OnceLock<Window>]>,
}

/// The number of words in a part of the map: a multiple of the sizes of pages and of entries, so that no entry lies in two
/// parts.
const WINDOW: usize = (192 << 10) / size_of::<AtomicU64>();

impl SharedWords {
    /// Maps the beginning of an array map with values that are multiples of 8 bytes.
    pub(crate) fn map(map: &MapHandle) -> io::Result<Self> {
        let entry = map.value_size() as usize / size_of::<AtomicU64>();
        let words = entry * map.max_entries() as usize;
        if words == 0 || words > WINDOW && !WINDOW.is_multiple_of(entry) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let windows = (0..words.div_ceil(WINDOW)).map(|_| OnceLock::new()).collect();
        let shared = Self { map: map.as_fd().try_clone_to_owned()?, words, windows };
        _ = shared.windows[0].set(shared.map_window(0)?);
        Ok(shared)
    }

    fn map_window(&self, index: usize) -> io::Result<Window> {
        Window::map(self.map.as_fd(), index * WINDOW, WINDOW.min(self.words - index * WINDOW))
    }

    pub(crate) fn len(&self) -> usize {
        self.words
    }

    /// All words of the map, which are then all mapped.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &AtomicU64> {
        (0..self.words).map(|at| &self.at(at, 1)[0])
    }

    /// The words of one entry. Callers that only read must not store.
    pub(crate) fn at(&self, at: usize, count: usize) -> &[AtomicU64] {
        let index = at / WINDOW;
        let window = self.windows[index].get_or_init(|| match self.map_window(index) {
            Ok(window) => window,
            // The beginning of the map is mapped, so this is a lack of memory.
            Err(_no_memory) => handle_alloc_error(Layout::new::<[AtomicU64; WINDOW]>()),
        });
        &window.all()[at % WINDOW..][..count]
    }

    /// Reads the `N` words of one entry, each once; the first is an acquire load.
    pub(crate) fn read<const N: usize>(&self, at: usize) -> [u64; N] {
        let words = self.at(at, N);
        std::array::from_fn(|i| words[i].load(if i == 0 { Ordering::Acquire } else { Ordering::Relaxed }))
    }
}

/// The records of this many bytes that a program stores in an mmapable array map when this process runs it.
#[derive(Debug)]
pub(crate) struct Records<const SIZE: usize>(SharedWords);

impl<const SIZE: usize> Records<SIZE> {
    const WORDS: usize = SIZE / size_of::<AtomicU64>();

    pub(crate) fn map(map: &MapHandle) -> io::Result<Self> {
        SharedWords::map(map).map(Self)
    }

    /// How many there is room for.
    pub(crate) fn most(&self) -> usize {
        self.0.len() / Self::WORDS
    }

    /// Runs the program, which returns the number of records that it has stored, and passes them to `report`.
    pub(crate) fn run(&mut self, program: BorrowedFd<'_>, report: &mut dyn FnMut(&[u8; SIZE])) -> io::Result<usize> {
        let count = run(program)? as usize;
        fence(Ordering::Acquire);
        for index in 0..count.min(self.most()) {
            let mut record = [0; SIZE];
            let words = self.0.at(index * Self::WORDS, Self::WORDS);
            for (bytes, word) in record.chunks_exact_mut(size_of::<AtomicU64>()).zip(words) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            report(&record);
        }
        Ok(count)
    }
}

/// A part of an array map in memory.
#[derive(Debug)]
struct Window {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory is accessed through atomics only, and stays mapped until the drop.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `words` words from `first` on, which is at the beginning of a page.
    fn map(map: BorrowedFd<'_>, first: usize, words: usize) -> io::Result<Self> {
        let bytes = |words: usize| words * size_of::<AtomicU64>();
        let length = std::num::NonZeroUsize::new(bytes(words)).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = i64::try_from(bytes(first)).map_err(io::Error::other)?;
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; it is page-aligned and holds that many words.
        let base = unsafe { mmap(None, length, protection, flags, map, offset) }?;
        Ok(Self { base: base.cast(), words })
    }

    fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds that many words, is zeroed by the kernel, and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and no reference to it is left.
        let unmapped = unsafe { munmap(self.base.cast(), self.words * size_of::<AtomicU64>()) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
    }
}

/// The commands of membarrier(2) that this kernel supports, as a mask.
pub(crate) fn membarrier_commands() -> libc::c_long {
    // SAFETY: the query has no flags, takes no pointer and changes nothing.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_QUERY, 0, 0) }
}

/// Waits for an RCU grace period: until all programs that run in the kernel now have ended. Takes milliseconds.
pub(crate) fn membarrier_global() -> io::Result<()> {
    // SAFETY: the command has no flags and takes no pointer.
    match unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
