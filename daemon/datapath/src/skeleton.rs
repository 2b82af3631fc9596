//! The code that libbpf-cargo generates from `bpf/sock.bpf.c`: the object, and the structs of `bpf/shared.h` as
//! `types`. `chain`, `flows`, `packet` and `sweep` contain the same for their
//! files.
#![allow(
    unsafe_code,
    unreachable_pub,
    unused_qualifications,
    elided_lifetimes_in_paths,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated"
)]

use std::path::Path;

use crate::probe::KERNEL_TYPES;

include!(concat!(env!("OUT_DIR"), "/sock.skel.rs"));

/// `sock.bpf.o` without what needs the kernel's types (`WITHOUT_BTF` in `bpf/socket_table.h`).
static WITHOUT_BTF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sock_without_btf.bpf.o"));

/// The object that this kernel can load, of the usual one and that without BTF.
fn for_this_kernel(usual: &'static [u8]) -> &'static [u8] {
    if Path::new(KERNEL_TYPES).exists() { usual } else { WITHOUT_BTF }
}

pub(crate) mod chain {
    include!(concat!(env!("OUT_DIR"), "/chain.skel.rs"));
}

pub(crate) mod flows {
    include!(concat!(env!("OUT_DIR"), "/flows.skel.rs"));
}

pub(crate) mod packet {
    include!(concat!(env!("OUT_DIR"), "/packet.skel.rs"));
}

pub(crate) mod sweep {
    include!(concat!(env!("OUT_DIR"), "/sweep.skel.rs"));
}

#[cfg(test)]
#[path = "tests/skeleton.rs"]
mod tests;
