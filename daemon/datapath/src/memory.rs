//! The settings of the C library's allocator, which the Rust allocator uses. Without them, memory that a burst of
//! events or a large answer has used once stays with the process.

use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, c_int};

/// An allocation of at least this size in bytes is a mapping of its own, which the kernel gets back as soon as it is
/// free. By default, the limit grows with the sizes that have been used, up to 32 MiB.
const OWN_MAPPING: c_int = 128 << 10;

/// Makes all threads share one heap. By default each thread has its own, and the free memory of one heap is of no use to
/// the threads of another. Must be called before there are threads.
pub fn share_heap() {
    set(M_ARENA_MAX, 1);
    set(M_MMAP_THRESHOLD, OWN_MAPPING);
}

/// Returns the free memory of the heap to the kernel, in whole pages. Other threads wait meanwhile if they need memory:
/// some milliseconds for a heap of 100 MB.
#[expect(unsafe_code, reason = "the C library's allocator")]
pub fn release_free_memory() {
    // SAFETY: the function takes the locks of the heap and touches only free memory.
    unsafe { libc::malloc_trim(0) };
}

#[expect(unsafe_code, reason = "the C library's allocator")]
fn set(parameter: c_int, value: c_int) {
    // SAFETY: the function takes two numbers; without a meaning for them it changes nothing.
    unsafe { libc::mallopt(parameter, value) };
}
