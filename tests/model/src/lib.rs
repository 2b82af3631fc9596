//! The packet path as a pure function: what is done with a packet that arrives at or leaves a device of the node. The
//! programs of `bpf/packet.bpf.c` do the same; tests compare the two. [`sockets`] is about the programs of
//! `bpf/sock.bpf.c`.

#![forbid(unsafe_code)]

mod begin;
mod bytes;
pub mod checksum;
pub mod choice;
pub mod connections;
pub mod extensions;
mod forward;
pub mod headers;
mod hook_state;
mod icmp;
pub mod key;
pub mod node;
mod ports;
mod reject;
pub mod rendezvous;
pub mod rewrite;
pub mod rule;
pub mod sockets;
pub mod sweep;
pub mod translate;
mod unwrap;
