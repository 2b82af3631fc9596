//! Objects in the pin directory that are not what nodelb would pin there: they end no process and block no start.

use std::fs;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapHandle, MapType};
use nodelb_core::datapath::Datapath as _;
use nodelb_datapath::{CrashPoint, LinkState, OpenError, Origin, cleanup};

use super::{Kernel, Prober, SocketMode, backends, exchange, in_sandbox, options};
use crate::sandbox::{self, Sandbox, command};

const SERVICE: &str = "198.51.100.1:80";

/// Types that the kernel describes in different ways; libbpf followed a pointer in the descriptions of some.
const MAPS: [MapType; 10] = [
    MapType::Hash,
    MapType::Array,
    MapType::PerfEventArray,
    MapType::PercpuHash,
    MapType::PercpuArray,
    MapType::StackTrace,
    MapType::LruHash,
    MapType::LpmTrie,
    MapType::Queue,
    MapType::RingBuf,
];

/// Pins a small map at the path; returns whether the kernel has the type.
fn pin_map(kind: MapType, path: &Path) -> bool {
    let (key, value, entries, flags) = match kind {
        MapType::LpmTrie => (8, 4, 1, libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC),
        MapType::Queue => (0, 4, 1, 0),
        MapType::RingBuf => (0, 0, 4096, 0),
        MapType::StackTrace => (4, 8, 1, 0),
        _ => (4, 4, 1, 0),
    };
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let Ok(mut map) = MapHandle::create(kind, Some("stray"), key, value, entries, &options) else { return false };
    map.pin(path).unwrap();
    true
}

fn pin_program(path: &Path) {
    let object = std::env::temp_dir().join(format!("nodelb-stray-{}.o", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/watcher.bpf.c");
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let compiled = sandbox::program("clang")
        .args(["-target", "bpf", "-g", "-O2", &headers, "-c", "-o"])
        .args([&object, &source])
        .status();
    assert!(compiled.unwrap().success());
    command("bpftool", &["prog", "load", object.to_str().unwrap(), path.to_str().unwrap(), "type", "tc"]);
    fs::remove_file(object).unwrap();
}

/// Every way to replace a pin with something else.
fn strays(path: &Path, mut each: impl FnMut(&str)) {
    let mut found = 0;
    for kind in MAPS {
        if pin_map(kind, path) {
            found += 1;
            each(&format!("a map of type {kind:?}"));
        }
    }
    assert!(found > 7, "{found} types of maps");
    pin_program(path);
    each("a program");
    fs::create_dir(path).unwrap();
    each("a directory");
    fs::create_dir_all(path.join("directory")).unwrap();
    assert!(pin_map(MapType::Hash, &path.join("directory/map")));
    each("a directory with something in it");
    std::os::unix::fs::symlink("/nowhere", path).unwrap();
    each("a symbolic link");
}

fn serve(env: &Sandbox) -> Kernel {
    let mut kernel = Kernel::open(&options(env));
    kernel.serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
    kernel
}

fn reach() {
    exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).unwrap();
}

#[test]
fn what_is_no_link_is_replaced_at_a_start() {
    in_sandbox("sockets::strays::what_is_no_link_is_replaced_at_a_start", |env| {
        backends(&["192.0.2.10:80/TCP"]);
        drop(serve(env));
        let pin = env.bpffs.join("nodelb/v1/links/connect4");
        fs::remove_file(&pin).unwrap();
        strays(&pin, |what| {
            let kernel = Kernel::open(&options(env));
            let replaced = kernel.report.links.iter().filter(|(_, state)| *state == LinkState::Replaced);
            assert_eq!(replaced.map(|(hook, _)| *hook).collect::<Vec<_>>(), ["connect4"], "{what}");
            assert_eq!((kernel.report.origin, kernel.datapath.verify_links()), (Origin::Reused, Vec::new()), "{what}");
            reach();
            drop(kernel);
            fs::remove_file(&pin).unwrap();
        });
    });
}

#[test]
fn what_is_no_link_is_replaced_by_a_running_daemon() {
    in_sandbox("sockets::strays::what_is_no_link_is_replaced_by_a_running_daemon", |env| {
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = serve(env);
        let pin = env.bpffs.join("nodelb/v1/links/connect4");
        let prober = Prober::start(SocketMode::Tcp, SERVICE);
        fs::remove_file(&pin).unwrap();
        strays(&pin, |what| {
            let faults = kernel.datapath.verify_links();
            assert_eq!(faults.len(), 1, "{what}: {faults:?}");
            kernel.datapath.ensure_attached().unwrap();
            assert_eq!(kernel.datapath.verify_links(), [], "{what}");
            fs::remove_file(&pin).unwrap();
        });
        prober.finish();
    });
}

/// The search for other pin directories opens what others have pinned.
#[test]
fn what_another_program_has_pinned_under_the_same_names_is_left_alone() {
    in_sandbox("sockets::strays::what_another_program_has_pinned_under_the_same_names_is_left_alone", |env| {
        let directory = env.bpffs.join("tool/v1/links");
        fs::create_dir_all(&directory).unwrap();
        let pin = directory.join("connect4");
        strays(&pin, |what| {
            let kernel = Kernel::open(&options(env));
            assert_eq!(kernel.report.foreign_pin_directories, Vec::<PathBuf>::new(), "{what}");
            drop(kernel);
            let is_there = fs::symlink_metadata(&pin).unwrap();
            if is_there.is_dir() { fs::remove_dir_all(&pin) } else { fs::remove_file(&pin) }.unwrap();
        });
    });
}

#[test]
fn cleanup_removes_what_is_no_link() {
    in_sandbox("sockets::strays::cleanup_removes_what_is_no_link", |env| {
        let directory = env.bpffs.join("nodelb");
        let links = directory.join("v1/links");
        fs::create_dir_all(&links).unwrap();
        strays(&links.join("connect4"), |what| {
            let report = cleanup(&directory, &|| (), &CrashPoint::default()).unwrap();
            assert_eq!((report.links, report.left), (0, Vec::new()), "{what}");
            assert!(!directory.exists(), "{what}");
            fs::create_dir_all(&links).unwrap();
        });
    });
}

#[test]
fn entries_that_cannot_be_a_generation_block_no_start() {
    in_sandbox("sockets::strays::entries_that_cannot_be_a_generation_block_no_start", |env| {
        backends(&["192.0.2.10:80/TCP"]);
        let all = serve(env).datapath.dump().unwrap();
        let root = env.bpffs.join("nodelb/v1");
        let prober = Prober::start(SocketMode::Tcp, SERVICE);
        for name in ["g7", "g9", "g4294967295", "g1-new", "g4294967295-new"] {
            strays(&root.join(name), |what| {
                let kernel = Kernel::open(&options(env));
                assert_eq!(kernel.report.origin, Origin::Reused, "{name}: {what}");
                assert_eq!(kernel.datapath.dump().unwrap(), all, "{name}: {what}");
                assert!(fs::symlink_metadata(root.join(name)).is_err(), "{name}: {what}");
            });
        }
        prober.finish();
    });
}

/// The number after the highest one was 0, which no start took for a generation.
#[test]
fn maps_with_the_highest_number_are_resized() {
    in_sandbox("sockets::strays::maps_with_the_highest_number_are_resized", |env| {
        backends(&["192.0.2.10:80/TCP"]);
        let all = serve(env).datapath.dump().unwrap();
        let root = env.bpffs.join("nodelb/v1");
        fs::rename(root.join("g1"), root.join("g4294967295")).unwrap();
        let prober = Prober::start(SocketMode::Tcp, SERVICE);
        let mut larger = options(env);
        larger.limits.slots *= 2;
        for options in [&larger, &options(env), &larger] {
            assert_eq!(Kernel::open(options).datapath.dump().unwrap(), all);
        }
        prober.finish();
        assert!(root.join("g4").exists());
    });
}

#[test]
fn a_pin_directory_of_another_user_is_refused() {
    in_sandbox("sockets::strays::a_pin_directory_of_another_user_is_refused", |env| {
        let directory = env.bpffs.join("nodelb");
        drop(serve(env));
        for path in [directory.clone(), directory.join("v1")] {
            std::os::unix::fs::chown(&path, Some(23_456), None).unwrap();
            let error = nodelb_datapath::KernelDatapath::open(&options(env)).unwrap_err();
            assert!(matches!(&error, OpenError::NotOwn { owner: 23_456, .. }), "{error}");
            assert!(error.to_string().contains(&format!("{} belongs to uid 23456", path.display())), "{error}");
            let error = cleanup(&directory, &|| (), &CrashPoint::default()).unwrap_err();
            assert!(matches!(&error, OpenError::NotOwn { owner: 23_456, .. }), "{error}");
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        assert_eq!(Kernel::open(&options(env)).report.origin, Origin::Reused);
    });
}
