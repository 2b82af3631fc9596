//! Random packets and changes, run by the programs and by the pure function.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::compared::compare;
use crate::kernel::Kernel;
use crate::print;
use crate::sandbox;
use crate::steps::{Step, packet, policies, step};

/// Packets after which the tables are emptied, so that they stay small.
const RUN: usize = 150;

/// Differences after which a run ends.
const MOST_SHOWN: usize = 10;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_ne_bytes());
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn pick<S: Strategy>(runner: &mut TestRunner, strategy: &S) -> S::Value {
    strategy.new_tree(runner).expect("no value is rejected").current()
}

/// One packet in eight has bytes that are wrong, and one in sixteen ends early.
fn damage(runner: &mut TestRunner, bytes: &mut Vec<u8>) -> bool {
    let (choice, flips, at, byte) =
        pick(runner, &(0_u8..16, 1_usize..4, proptest::num::u32::ANY, proptest::num::u8::ANY));
    let length = bytes.len();
    match choice {
        0 => bytes.truncate((at as usize % length).max(14)),
        1 | 2 => {
            for flip in 0..flips {
                // Mostly in the headers.
                let at = (at as usize).wrapping_mul(flip * 31 + 1) % length.min(80);
                bytes[at] = byte.wrapping_mul(u8::try_from(flip * 2 + 1).unwrap());
            }
        }
        _ => return false,
    }
    true
}

/// `SOCKET_SEED=n` and `SOCKET_CASES=n` (packets) repeat a run.
#[test]
fn programs_and_function_agree_on_random_packets() {
    sandbox::run("random::programs_and_function_agree_on_random_packets", |_| {
        let (seed, packets) = (number("SOCKET_SEED", 14), number("SOCKET_CASES", 3_000));
        let mut runner = runner(seed);
        let mut world = policies();
        world.settings.source_ports = 10_000..=10_006;
        let first = world.clone();
        let mut kernel = Kernel::new(&world);
        let (mut since, mut compared, mut different) = (usize::MAX, 0, Vec::new());
        while compared < packets && different.len() < MOST_SHOWN {
            if since >= RUN {
                (world, since) = (first.clone(), 0);
                kernel.start(&world);
            }
            let step = pick(&mut runner, &step());
            if matches!(step, Step::Change(line) if line.contains("masquerades")) {
                continue;
            }
            let Some(mut packet) = packet(&mut world, &step) else {
                match &step {
                    Step::Wait(millis) => kernel.age(u32::try_from(millis / 1_000).unwrap()),
                    _ => kernel.set(&world),
                }
                continue;
            };
            if packet.l2_length == 0 {
                continue;
            }
            let mac = packet.bytes[..6].to_vec();
            let is_damaged = damage(&mut runner, &mut packet.bytes);
            packet.is_for_host = packet.bytes[..6] == mac;
            since += 1;
            if let Some(difference) = compare(&kernel, &world, &packet) {
                compared += 1;
                if !difference.is_empty() {
                    let (bytes, damaged) = (print::hex(&packet.bytes), if is_damaged { " damaged" } else { "" });
                    different.push(format!("packet {compared}{damaged}: {step:?}\n  {bytes}\n{difference}"));
                }
            }
        }
        assert!(different.is_empty(), "SOCKET_SEED={seed}\n{}", different.join("\n"));
    });
}
