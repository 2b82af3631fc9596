//! The code that libbpf-cargo generates from `bpf/sock.bpf.c`: the object, and the structs of `bpf/shared.h` as
//! `types`. `chain`, `flows`, `order`, `packet`, `sweep` and `xdp` contain the same for
//! their files.
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

include!(concat!(env!("OUT_DIR"), "/sock.skel.rs"));

/// `sock.bpf.o` without what needs the kernel's types (`WITHOUT_BTF` in `bpf/socket_table.h`).
static WITHOUT_BTF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sock_without_btf.bpf.o"));

/// The types of the kernel, BTF: exists if it was built with CONFIG_DEBUG_INFO_BTF.
pub(crate) const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

thread_local! {
    /// Whether the thread opens objects with the layout of `bpf/next_layout.h`.
    static IS_NEXT: Cell<bool> = const { Cell::new(false) };
}

/// Opens an object with the layout of this version, or with that of `bpf/next_layout.h`.
pub(crate) fn with_layout<T>(is_next: bool, open: impl FnOnce() -> T) -> T {
    let before = IS_NEXT.replace(is_next);
    let opened = open();
    IS_NEXT.set(before);
    opened
}

/// The object to open: that of the layout, and of the usual one and that without BTF, the one that this kernel can load.
fn choose(usual: &'static [u8]) -> &'static [u8] {
    #[cfg(debug_assertions)]
    if IS_NEXT.get() {
        return include_bytes!(concat!(env!("OUT_DIR"), "/sock_next.bpf.o"));
    }
    if Path::new(KERNEL_TYPES).exists() { usual } else { WITHOUT_BTF }
}

/// The object of the skeleton that [`SockSkelBuilder`] opens.
pub(crate) fn object() -> &'static [u8] {
    choose(&DATA)
}

pub(crate) mod chain {
    include!(concat!(env!("OUT_DIR"), "/chain.skel.rs"));
}

pub(crate) mod flows {
    include!(concat!(env!("OUT_DIR"), "/flows.skel.rs"));
}

pub(crate) mod order {
    include!(concat!(env!("OUT_DIR"), "/order.skel.rs"));
}

pub(crate) mod packet {
    fn choose(usual: &'static [u8]) -> &'static [u8] {
        #[cfg(debug_assertions)]
        if super::IS_NEXT.get() {
            return include_bytes!(concat!(env!("OUT_DIR"), "/packet_next.bpf.o"));
        }
        usual
    }

    pub(crate) fn object() -> &'static [u8] {
        choose(&DATA)
    }

    include!(concat!(env!("OUT_DIR"), "/packet.skel.rs"));
}

pub(crate) mod xdp {
    fn choose(usual: &'static [u8]) -> &'static [u8] {
        #[cfg(debug_assertions)]
        if super::IS_NEXT.get() {
            return include_bytes!(concat!(env!("OUT_DIR"), "/xdp_next.bpf.o"));
        }
        usual
    }

    pub(crate) fn object() -> &'static [u8] {
        choose(&DATA)
    }

    include!(concat!(env!("OUT_DIR"), "/xdp.skel.rs"));
}

pub(crate) mod sweep {
    include!(concat!(env!("OUT_DIR"), "/sweep.skel.rs"));
}

#[cfg(test)]
#[path = "tests/skeleton.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/skeleton_rules.rs"]
mod rule_tests;
