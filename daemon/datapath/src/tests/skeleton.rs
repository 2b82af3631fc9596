use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapType, ObjectBuilder};

use super::{SockSkelBuilder, WITHOUT_BTF};

/// The name and the specification of each map, and the name of each program. libbpf finds both by name.
fn content(object: &libbpf_rs::OpenObject) -> (Vec<(String, MapType, u32, u32, u32)>, Vec<String>) {
    let text = |name: &std::ffi::OsStr| name.to_string_lossy().into_owned();
    let map = |map: libbpf_rs::OpenMap<'_>| {
        (text(map.name()), map.map_type(), map.key_size(), map.value_size(), map.max_entries())
    };
    let (mut maps, mut programs): (Vec<_>, Vec<_>) =
        (object.maps().map(map).collect(), object.progs().map(|program| text(program.name())).collect());
    maps.sort_by(|a, b| a.0.cmp(&b.0));
    programs.sort();
    (maps, programs)
}

#[test]
fn both_objects_for_sockets_have_the_same_maps_and_programs() {
    let without = ObjectBuilder::default().name("sock_bpf").unwrap().open_memory(WITHOUT_BTF).unwrap();
    let mut object = MaybeUninit::uninit();
    let usual = SockSkelBuilder::default().open(&mut object).unwrap();
    assert_eq!(content(&without), content(usual.open_object()));
}

/// A clean tree without /sys found this: `make package-test` starts nodelb in one.
#[test]
fn a_kernel_without_btf_gets_an_object_that_needs_none() {
    let name = b"bpf_rdonly_cast";
    assert!(!WITHOUT_BTF.windows(name.len()).any(|bytes| bytes == name));
}
