//! What loading costs: each start of the daemon that finds no programs waits for the kernel's verifier.

use std::fs;
use std::os::fd::AsFd as _;

use libbpf_rs::MapInfo;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use nodelb_datapath::packets::{PacketMaps, PacketOptions, PacketPrograms, Sweep, XdpMode, XdpProgram};
use toml::Table;

use super::{options, with_node};

/// Instructions that the verifier looks at in one program, on any kernel.
const MOST: u32 = 60_000;

/// The same for a program of a node without direct return.
const MOST_WITHOUT_DIRECT_RETURN: u32 = 32_000;

/// By how much a program may grow beyond its recorded figure, in percent.
const GROWTH: u32 = 10;

/// The recorded figures, on the kernel that it names.
const RECORDED: &str = include_str!("../../benches/programs.toml");

/// The programs, by their names in the kernel, which cuts them after 15 bytes, and what the record calls them, or the figure.
const PROGRAMS: [(&str, Result<&str, u32>); 6] = [
    ("packet_in", Ok("UplinkIn")),
    ("packet_out", Ok("UplinkOut")),
    ("pod_in", Ok("PodIn")),
    ("sweep_connectio", Err(1486)),
    ("sweep_half_open", Err(1487)),
    ("xdp_in", Err(26_500)),
];

/// How many instructions the verifier may look at.
fn budget(recorded: &Table, name: Result<&str, u32>) -> u32 {
    let figure = |name: &str| recorded[name]["verified"].as_integer().expect("a figure").try_into().expect("a number");
    let figure: u32 = name.map_or_else(|figure| figure, figure);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let is_recorded = kernel.trim().split('-').next() == recorded["kernel"].as_str();
    if is_recorded { figure + figure * GROWTH / 100 } else { MOST }
}

/// The instructions of those of these programs that use the maps. Others with their names may be loaded at the same time.
fn verified<T: Copy>(programs: &[(&'static str, T)], maps: &PacketMaps) -> Vec<(&'static str, T, u32)> {
    let id = |name| {
        let map = maps.get(name).expect("the map");
        MapInfo::new(map.as_fd()).expect("its description").info.id
    };
    let maps = [id("connections"), id("half_open")];
    ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
        .filter(|info| info.map_ids.iter().any(|id| maps.contains(id)))
        .filter_map(|info| {
            let (name, what) = *programs.iter().find(|(name, _)| info.name.to_string_lossy() == **name)?;
            Some((name, what, info.verified_insns))
        })
        .collect()
}

#[test]
fn without_direct_return_a_third_is_not_verified() {
    with_node("programs::verifier::without_direct_return_a_third_is_not_verified", |_| {
        let options = PacketOptions { direct_return: false, ..options(10_000..=10_999, None) };
        let programs = PacketPrograms::load(&options, PacketMaps::default()).unwrap_or_else(|error| panic!("{error}"));
        let found = verified(&[("packet_in", ()), ("packet_out", ()), ("pod_in", ())], programs.maps());
        assert_eq!(found.len(), 3, "{found:?}");
        for (name, (), verified) in found {
            assert!((1..=MOST_WITHOUT_DIRECT_RETURN).contains(&verified), "{name}: {verified} verified instructions");
        }
    });
}

#[test]
fn the_verifier_is_soon_done() {
    with_node("programs::verifier::the_verifier_is_soon_done", |node| {
        let _sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        let early = [XdpMode::Auto, XdpMode::Generic].map(|mode| {
            let options = PacketOptions { xdp: Some(mode), ..options(10_000..=10_999, None) };
            XdpProgram::load(&options, node.programs.maps()).unwrap_or_else(|error| panic!("{error}"))
        });
        let ours = verified(&PROGRAMS, node.programs.maps());
        assert_eq!(ours.len(), 6 + 1, "three programs at devices, two for XDP, and two of the sweep");
        drop(early);
        let recorded: Table = RECORDED.parse().expect("TOML");
        for (name, figure, verified) in ours {
            #[expect(clippy::print_stdout, reason = "the figure of this kernel, which the VM tests keep")]
            {
                println!("{name}: {verified} verified instructions");
            }
            let most = budget(&recorded, figure);
            assert!((1..=most).contains(&verified), "{name}: {verified} verified instructions, at most {most}");
        }
    });
}
