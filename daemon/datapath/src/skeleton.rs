//! The code that libbpf-cargo generates from `bpf/sock.bpf.c`: the object, and the structs of `bpf/shared.h` as
//! `types`. `flows`, `packet` and `sweep` contain the same for their
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

include!(concat!(env!("OUT_DIR"), "/sock.skel.rs"));

pub(crate) mod flows {
    include!(concat!(env!("OUT_DIR"), "/flows.skel.rs"));
}

pub(crate) mod packet {
    include!(concat!(env!("OUT_DIR"), "/packet.skel.rs"));
}

pub(crate) mod sweep {
    include!(concat!(env!("OUT_DIR"), "/sweep.skel.rs"));
}
