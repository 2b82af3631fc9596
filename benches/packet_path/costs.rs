//! What the programs cost that the load of the machine does not change, compared with benches/programs.toml:
//! `make program-costs`. `make baseline` stores the current figures. docs/development/performance.md says what they depend on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::fd::AsRawFd;
use std::process::Command;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};
use nodelb_datapath::packets::PacketHook;
use toml::{Table, Value};

use crate::compare::{Figures, compare};
use crate::generator::Generator;
use crate::links::{Attached, attached};
use crate::processor::processor;
use crate::programs::Alone;
use crate::rounds::{ROUNDS, fastest_part, in_turn};
use crate::sandbox::Sandbox;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/programs.toml");

/// Runs of a part of a round: a quarter of a millisecond, so that some parts are not interrupted.
const RUNS: u32 = 2_000;

/// Tolerances in percent: of numbers of instructions and bytes, and of ratios of times.
const TOLERANCE: f64 = 3.0;
const RATIO_TOLERANCE: f64 = 10.0;

/// How often the times are measured at most while a ratio differs. The load of the machine makes times longer, so the shortest
/// of all measurements count.
const MOST_MEASUREMENTS: usize = 5;

/// The cost of a run, in thousandths of that of an empty program.
const RATIO: &str = "permille";

/// Measures everything, and stores it or compares it. Where the compiler, the kernel or the processor is another one than that
/// of the baseline, differences are printed, and none is a failure.
pub(crate) fn run(sandbox: &Sandbox, generator: &Generator, updates: bool) {
    let alone = Alone::new(sandbox);
    let mut figures: BTreeMap<String, Figures> = sizes(sandbox, &alone).into_iter().collect();
    let before: Table = fs::read_to_string(PATH).unwrap_or_default().parse().unwrap();
    let (mut shortest, mut is_same) = ([f64::INFINITY; 4], false);
    for _ in 0..MOST_MEASUREMENTS {
        figures.extend(ratios(&alone, generator, &mut shortest));
        is_same = compare(&before, &figures, |cost| if cost == RATIO { RATIO_TOLERANCE } else { TOLERANCE });
        if is_same {
            break;
        }
    }
    if updates {
        return fs::write(PATH, text(&figures)).unwrap();
    }
    let elsewhere = made_with().into_iter().filter_map(|(key, here)| {
        let stored = before.get(key).and_then(Value::as_str).unwrap_or("unknown");
        (stored != here).then(|| format!("its {key} is {stored}, and this one is {here}"))
    });
    let elsewhere: Vec<String> = elsewhere.collect();
    if !elsewhere.is_empty() {
        println!("Not comparable with the baseline, which was made elsewhere: {}.", elsewhere.join("; "));
        return;
    }
    assert!(
        is_same,
        "What costs more needs a reason. If it has one, or costs less: make baseline, and commit benches/programs.toml."
    );
    println!("Nothing differs by more than {TOLERANCE} %, and no ratio by more than {RATIO_TOLERANCE} %.");
}

fn text(figures: &BTreeMap<String, Figures>) -> String {
    let mut text = String::from(
        "# Written by `make baseline`; `make program-costs` compares with it. See docs/development/performance.md.\n",
    );
    for (key, value) in made_with() {
        writeln!(text, "{key} = \"{value}\"").unwrap();
    }
    for (part, costs) in figures {
        writeln!(text, "\n[{part}]").unwrap();
        for (cost, value) in costs {
            writeln!(text, "{cost} = {value}").unwrap();
        }
    }
    text
}

/// What the figures depend on.
fn made_with() -> [(&'static str, String); 3] {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let version = Command::new(clang).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    [
        ("compiler", version.lines().next().unwrap_or_default().to_owned()),
        ("kernel", kernel.trim().split('-').next().unwrap_or_default().to_owned()),
        ("processor", processor()),
    ]
}

/// The programs at sockets and at devices with an Ethernet header: the instructions that the verifier looks at, and
/// the bytes of the program after it and after the compiler of the kernel.
fn sizes(sandbox: &Sandbox, alone: &Alone) -> Vec<(String, Figures)> {
    let sockets = attached(&sandbox.bpffs.join("alone/v1/links")).into_iter();
    let mut ids: BTreeMap<u32, String> = sockets
        .filter(|link| !link.hook.starts_with("packets-"))
        .map(|Attached { hook, program, .. }| (program, hook))
        .collect();
    for hook in PacketHook::ALL {
        // One program is for packets to uplinks and to pods.
        ids.entry(id_of(&alone.programs.program(hook))).or_insert_with(|| format!("{hook:?}"));
    }
    let options = ProgInfoQueryOptions::default().include_xlated_prog_insns(true).include_jited_prog_insns(true);
    let ours =
        ProgInfoIter::with_query_opts(options).filter_map(|info| Some((ids.get(&info.id)?.clone(), size(&info))));
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.len(), 13, "ten programs at sockets and three at devices");
    ours
}

fn size(info: &ProgramInfo) -> Figures {
    let length = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap();
    Figures::from([
        ("verified", u64::from(info.verified_insns)),
        ("translated", length(&info.xlated_prog_insns)),
        ("compiled", length(&info.jited_prog_insns)),
    ])
}

/// The kernel's id of a program.
fn id_of(program: &impl AsRawFd) -> u32 {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).unwrap();
    let id = info.lines().find_map(|line| line.strip_prefix("prog_id:")).unwrap_or_else(|| panic!("{info}"));
    id.trim().parse().unwrap()
}

/// `packet_in` on packets in memory, by the fastest of many short measurements; `shortest` has the previous
/// ones, in nanoseconds.
fn ratios(alone: &Alone, generator: &Generator, shortest: &mut [f64; 4]) -> [(String, Figures); 3] {
    let times: [crate::rounds::Times; 4] =
        in_turn(ROUNDS, |variant| fastest_part(RUNS, |times| alone.run(generator, variant, times)));
    for (shortest, times) in shortest.iter_mut().zip(&times) {
        *shortest = shortest.min(times.min());
    }
    let [empty, udp, tcp, foreign] = *shortest;
    [("known-udp", udp), ("known-tcp", tcp), ("no-service", foreign)].map(|(name, time)| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
        let permille = (time / empty * 1e3).round() as u64;
        (name.to_owned(), Figures::from([(RATIO, permille)]))
    })
}
