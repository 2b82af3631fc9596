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

use std::cell::Cell;
use std::path::Path;

use crate::layout::ServiceWords;
use crate::probe::KERNEL_TYPES;

include!(concat!(env!("OUT_DIR"), "/sock.skel.rs"));

/// `sock.bpf.o` without what needs the kernel's types (`WITHOUT_BTF` in `bpf/socket_table.h`).
static WITHOUT_BTF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sock_without_btf.bpf.o"));

thread_local! {
    /// The layout of the objects that the thread opens.
    static LAYOUT: Cell<ServiceWords> = const { Cell::new(ServiceWords::CURRENT) };
}

/// Opens an object with this layout of `services`.
pub(crate) fn with_layout<T>(layout: ServiceWords, open: impl FnOnce() -> T) -> T {
    let before = LAYOUT.replace(layout);
    let opened = open();
    LAYOUT.set(before);
    opened
}

/// The object to open: that of the layout, and of the usual one and that without BTF, the one that this kernel can load.
fn choose(usual: &'static [u8]) -> &'static [u8] {
    #[cfg(debug_assertions)]
    if LAYOUT.get() == ServiceWords::NEXT {
        return include_bytes!(concat!(env!("OUT_DIR"), "/sock_next.bpf.o"));
    }
    if Path::new(KERNEL_TYPES).exists() { usual } else { WITHOUT_BTF }
}

pub(crate) mod chain {
    include!(concat!(env!("OUT_DIR"), "/chain.skel.rs"));
}

pub(crate) mod flows {
    include!(concat!(env!("OUT_DIR"), "/flows.skel.rs"));
}

pub(crate) mod packet {
    /// The object to open.
    fn choose(usual: &'static [u8]) -> &'static [u8] {
        #[cfg(debug_assertions)]
        if super::LAYOUT.get() == crate::layout::ServiceWords::NEXT {
            return include_bytes!(concat!(env!("OUT_DIR"), "/packet_next.bpf.o"));
        }
        usual
    }

    include!(concat!(env!("OUT_DIR"), "/packet.skel.rs"));
}

pub(crate) mod sweep {
    include!(concat!(env!("OUT_DIR"), "/sweep.skel.rs"));
}

#[cfg(test)]
#[path = "tests/skeleton.rs"]
mod tests;
