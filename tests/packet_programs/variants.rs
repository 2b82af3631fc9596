//! Every variant of the programs that a configuration can select loads on this kernel, through a whole start of the
//! datapath. Kernels differ in what they verify: before Linux 6.8 also functions that no program calls.

mod columns;
mod coverage;
mod loaded;
mod rows;

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nodelb_core::datapath::Datapath as _;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{BackendId, FrontendEntry, MapOp, ServiceEntry, ServiceId, Slot};
use nodelb_datapath::{KernelDatapath, StartReport};

use self::columns::{COLUMNS, Set, Start, packets};
use self::coverage::Coverage;
use self::loaded::Loaded;
use crate::sandbox::{self, command};

/// Where the kernel shows its types.
const TYPES: &str = "/sys/kernel/btf";

/// The programs that are loaded only with some options or on some kernels, by the 15 bytes of their names that the kernel
/// keeps: those of the packet path, and those that need types.
const OPTIONAL: [&str; 14] = [
    "packet_in",
    "packet_out",
    "pod_in",
    "xdp_in",
    "sweep_connectio",
    "sweep_half_open",
    "first_programs",
    "ordered_program",
    "tcp_files",
    "udp_files",
    "tcp_flows",
    "udp_flows",
    "tcp_table_flows",
    "udp_table_flows",
];

/// The sections with the constants of the objects, by the 15 bytes of their names that the kernel keeps.
const SECTIONS: [&str; 4] = ["packet_b.rodata", "sock_bpf.rodata", "sweep_bp.rodata", "xdp_bpf.rodata"];

#[test]
fn every_variant_loads() {
    sandbox::run("programs::variants::every_variant_loads", |env| {
        let mut coverage = Coverage::default();
        let mut failures = Vec::new();
        let rows = rows::rows();
        for (index, row) in rows.iter().enumerate() {
            let start = Start::new(env, &format!("row-{index}"), row);
            match loaded(&start) {
                Ok(loaded) => coverage.add(&start, &loaded),
                Err(error) => failures.push(format!("{}:\n{error}\n", described(row))),
            }
        }
        assert!(failures.is_empty(), "{} of {} rows:\n{}", failures.len(), rows.len(), failures.join("\n"));
        assert_eq!(coverage.unchanged(), [""; 0], "options and constants without a column");
        assert_eq!(coverage.sections(), SECTIONS, "objects with constants");
        let unknown: Vec<&str> = coverage.optional().into_iter().filter(|name| !OPTIONAL.contains(name)).collect();
        assert_eq!(unknown, [""; 0], "programs that only some rows load, and that are not checked");
    });
}

fn described(row: &[usize]) -> String {
    let choices =
        COLUMNS.iter().zip(row).map(|(column, value)| format!("{} {}", column.name, column.values[*value].name));
    choices.collect::<Vec<_>>().join(", ")
}

/// Starts the datapath, and ends it without a trace. Returns what was loaded, if that is what the options select.
fn loaded(start: &Start) -> Result<Loaded, String> {
    let (_, most) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, if start.may_lock { most } else { 0 }, most).unwrap();
    if !start.has_types {
        command("mount", &["-t", "tmpfs", "tmpfs", TYPES]);
    }
    let opened = KernelDatapath::open(&start.options);
    if !start.has_types {
        command("umount", &[TYPES]);
    }
    let result =
        opened.map_err(|error| error.to_string()).and_then(|(datapath, report)| checked(start, datapath, &report));
    if start.options.pin_directory.exists() {
        fs::remove_dir_all(&start.options.pin_directory).unwrap();
    }
    result
}

/// Whether everything is loaded that the options select and the kernel can have.
fn checked(start: &Start, mut datapath: KernelDatapath, report: &StartReport) -> Result<Loaded, String> {
    let packets = datapath.take_packets();
    match &report.packets {
        // The sockets are served, and the report says what the kernel lacks.
        Err(failure) if !start.has_types && failure.reason.contains("CONFIG_DEBUG_INFO_BTF") => {}
        Err(failure) => return Err(failure.reason.clone()),
        Ok(()) => {}
    }
    if let Some(packets) = &packets {
        packets.sweep.as_ref().map_err(Clone::clone)?;
        packets.faults.first().map_or(Ok(()), |fault| Err(fault.clone()))?;
    }
    if start.has_types {
        report.flows.clone()?;
        datapath.program_order().ok_or("the programs at the hooks cannot be listed")?;
    }
    let loaded = Loaded::by_this_process();
    let options = start.options.packets.as_ref().filter(|_| start.has_types);
    let wanted = [
        ("connect4", true),
        ("packet_in", options.is_some()),
        ("pod_in", options.is_some_and(|options| options.has_pods)),
        ("xdp_in", options.is_some_and(|options| options.xdp.is_some())),
    ];
    let wrong = wanted.into_iter().find(|(name, is_wanted)| loaded.programs.contains(*name) != *is_wanted);
    wrong.map_or(Ok(loaded), |(name, is_wanted)| Err(format!("{name} is loaded: {}, not {is_wanted}", !is_wanted)))
}

/// More entries than the kernel lets a map have. The error is as if its memory were not enough for them.
const TOO_MANY: u32 = 1 << 30;

/// A start that cannot create its maps for packets serves sockets, and its report names the map and its key.
#[test]
fn sockets_are_served_without_the_maps_of_packets() {
    let too_large: [(&str, &str, Set); 4] = [
        ("map outside ", "packets.max-outside ", |start| start.options.limits.outside = TOO_MANY),
        ("map connections ", "packets.max-connections ", |start| packets(start).max_connections = TOO_MANY),
        ("map half_open ", "packets.max-handshakes ", |start| packets(start).max_handshakes = TOO_MANY),
        ("map fragments ", "packets.max-fragments ", |start| packets(start).max_fragments = TOO_MANY),
    ];
    sandbox::run("programs::variants::sockets_are_served_without_the_maps_of_packets", |env| {
        for (index, (map, key, enlarge)) in too_large.into_iter().enumerate() {
            let mut start = columns::with_packets(env, &format!("start-{index}"));
            enlarge(&mut start);
            let opened = KernelDatapath::open(&start.options);
            let (mut datapath, report) = opened.unwrap_or_else(|error| panic!("{map}: {error}"));
            let failure = report.packets.unwrap_err();
            assert!(failure.reason.contains(map) && failure.reason.contains(key), "{map}: {failure:?}");
            assert!(!failure.is_earlier_active && datapath.take_packets().is_none(), "{map}");
            assert_is_served(&mut datapath, map);
            drop(datapath);
            fs::remove_dir_all(&start.options.pin_directory).unwrap();
        }
    });
}

/// A start that cannot create its maps for sockets says which one, and how to make it smaller. It attaches nothing.
#[test]
fn a_start_names_the_map_of_sockets_that_is_too_large() {
    sandbox::run("programs::variants::a_start_names_the_map_of_sockets_that_is_too_large", |env| {
        let mut start = columns::with_packets(env, "start");
        start.options.limits.frontends = TOO_MANY;
        let error = KernelDatapath::open(&start.options).unwrap_err().to_string();
        assert!(error.contains("map frontends ") && error.contains("lower datapath.max-frontends "), "{error}");
        assert_eq!(Loaded::by_this_process().programs.len(), 0);
    });
}

/// Adds a service, and sends to it as a process of the node.
fn assert_is_served(datapath: &mut KernelDatapath, what: &str) {
    let (address, backend): (L4Addr, L4Addr) =
        ("198.51.100.200:80/UDP".parse().unwrap(), "192.0.2.7:8080/UDP".parse().unwrap());
    let slot = Slot { backend: BackendId(1), addr: backend };
    let service = ServiceEntry { cluster: [slot].into(), has_backends: true, ..ServiceEntry::default() };
    let frontend = FrontendEntry { service: ServiceId(3), inside_local: false, outside_local: false };
    let ops = [MapOp::PutService(ServiceId(3), Arc::new(service)), MapOp::PutFrontend(address, frontend)];
    assert_eq!(datapath.apply(&ops, Moment(0)), [Ok(()), Ok(())], "{what}");
    let server = UdpSocket::bind(socket_addr(backend)).unwrap();
    let client = UdpSocket::bind("0.0.0.0:0").unwrap();
    client.send_to(b"question", socket_addr(address)).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(server.recv(&mut [0; 16]).unwrap(), 8, "{what}");
}

fn socket_addr(addr: L4Addr) -> SocketAddr {
    SocketAddr::new(addr.addr.ip(), addr.port)
}
