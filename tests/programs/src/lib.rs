//! The packet programs of `bpf/packet.bpf.c`, `bpf/xdp.bpf.c` and `bpf/sweep.bpf.c` compiled for this machine with sanitizers, as
//! the tests run them: [`programs`]. `host/` is the machine that they run on, in C, and a process of its own ([`host`]):
//! what a sanitizer finds fails the case of a test like anything else. [`sockets`] and [`rendezvous`] are about the
//! programs of `bpf/sock.bpf.c`, which need the kernel.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop where it is")]

mod answers;
mod bytes;
pub mod checksum;
pub mod connections;
mod extensions;
pub mod headers;
pub mod host;
pub mod key;
pub mod layout;
pub mod node;
pub mod programs;
pub mod rendezvous;
pub mod rewrite;
pub mod sockets;
