use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::process::Command;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapType, ObjectBuilder};

use super::{SockSkelBuilder, WITHOUT_BTF, flows, packet, types};

/// Where the programs are.
const BPF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");

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

/// Runs clang on a file of `bpf/`, with the headers of libbpf and of this machine. Returns its output.
fn clang(arguments: &[&str], file: &str) -> String {
    let mut command = Command::new(std::env::var_os("CLANG").unwrap_or_else(|| "clang".into()));
    command.current_dir(BPF).args(arguments).arg(file);
    command.arg(concat!("-I", env!("OUT_DIR"))).arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The text after the preprocessor is the same, so one object serves each of them.
#[test]
fn programs_are_the_same_for_every_processor() {
    std::fs::create_dir_all(concat!(env!("OUT_DIR"), "/bpf")).unwrap();
    for (name, text) in libbpf_sys::API_HEADERS {
        std::fs::write(format!("{}/bpf/{name}", env!("OUT_DIR")), text).unwrap();
    }
    for object in ["sock", "flows", "packet", "xdp", "sweep", "chain"] {
        let text = |processor| {
            clang(&["-E", "-P", "-target", "bpf", &format!("-D__TARGET_ARCH_{processor}")], &format!("{object}.bpf.c"))
        };
        let usual = text("x86");
        assert!(usual.len() > 1_000 && usual == text("arm64"), "{object}");
    }
}

/// The headers assert the sizes. i686 aligns words of eight bytes to four, and s390x has the other byte order.
#[test]
fn shared_structs_have_the_same_sizes_for_every_processor() {
    for processor in ["x86_64", "aarch64", "i686", "s390x"] {
        clang(&["-fsyntax-only", "-target", &format!("{processor}-linux-gnu"), "-x", "c"], "shared.h");
    }
}

/// The sizes that the headers assert are those of the types that Rust makes from BTF, on this processor.
#[test]
fn shared_structs_have_the_same_sizes_in_rust() {
    macro_rules! sizes {
        ($($module:ident: $($name:ident)*;)*) => {
            BTreeMap::from([$($((stringify!($name), size_of::<$module::$name>()),)*)*])
        };
    }
    use {flows::types as flows, packet::types as packet};
    let rust = sizes! {
        types: affinity affinity_key counter flow frontend frontend_key node_addr outside overflow overflow_key
            range_key service slot tcp_socket translation udp_socket view;
        flows: flow_record;
        packet: check_way connection drop_count drop_key fragment fragment_key ipsec_policy packet_counts packet_event packet_key
            packet_settings packet_watch uplink;
    };
    let headers = ["shared.h", "packet_entries.h", "packet_reports.h"]
        .map(|name| std::fs::read_to_string(format!("{BPF}/{name}")).unwrap());
    let asserted = headers.iter().flat_map(|text| text.split("_Static_assert(sizeof(struct ").skip(1));
    let asserted = asserted.map(|rest| {
        let (name, rest) = rest.split_once(") == ").unwrap();
        (name, rest.split_once(',').unwrap().0.parse().unwrap())
    });
    assert_eq!(rust, asserted.collect());
}
