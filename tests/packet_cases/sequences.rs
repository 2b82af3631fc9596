//! The sequences of non-interference, played in the kernel: nothing that strangers send changes what the honest parties
//! observe, and the host does the same with each packet.

use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_programs::node::{Packet, Verdict};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::compared::{compare, compare_sweep};
use crate::damage::number;
use crate::kernel::Kernel;
use crate::lab::{self, Programs, Ruled};
use crate::observed;
use crate::print;
use crate::sandbox;
use crate::sequence::{Flood, Step, play, sequence};
use crate::world::World;

const TIMEOUTS: SweepTimeouts =
    SweepTimeouts { handshake: 30, closed: 60, reset: 10, tcp_idle: 86_400, udp_idle: 120, forwarded_idle: 86_400 };

/// Sequences that fail until a run ends.
const MOST_SHOWN: usize = 3;

/// The kernel, and what differs from the host.
struct Compared<'k> {
    kernel: &'k mut Kernel,
    different: Vec<String>,
    packets: u64,
    /// Milliseconds that have passed and that the tables do not show yet.
    millis: u64,
}

impl Programs for Compared<'_> {
    /// The kernel runs them with packets that it has not tracked.
    fn sees_tracking(&self) -> bool {
        false
    }

    fn rule(&mut self, world: &World, packet: &Packet) -> Ruled {
        let found = compare(self.kernel, world, packet);
        let (difference, outcome) = found.expect("the kernel runs the program on each packet of a sequence");
        self.packets += 1;
        if !difference.is_empty() {
            self.different.push(format!("{}\n{difference}", print::packet(&packet.bytes[14..])));
        }
        let bytes = if outcome.verdict == Verdict::Drop { packet.bytes.clone() } else { outcome.bytes };
        Ruled { verdict: outcome.verdict, bytes, reason: outcome.reason, backend: outcome.backend }
    }

    fn sweep(&mut self, _: &World) {
        let difference = compare_sweep(self.kernel, &TIMEOUTS);
        if !difference.is_empty() {
            self.different.push(format!("sweep\n{difference}"));
        }
    }

    fn change(&mut self, world: &World) {
        self.kernel.set(world);
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        if self.millis >= 1_000 {
            self.kernel.age(u32::try_from(self.millis / 1_000).unwrap());
            self.millis %= 1_000;
        }
    }
}

/// The programs allow answers per CPU, and the test reads no count of them.
const fn is_shown(step: &Step) -> bool {
    !matches!(step, Step::Flood(Flood::Refused, ..))
}

/// Plays the sequence twice; returns what differs, and the number of packets.
fn differences(kernel: &mut Kernel, world: &World, steps: &[Step]) -> (String, u64) {
    let mut compared = Compared { kernel, different: Vec::new(), packets: 0, millis: 0 };
    let [alone, among] = [false, true].map(|has_strangers| {
        compared.kernel.start(world);
        play(&mut compared, world.clone(), steps, (has_strangers, None))
    });
    let text = observed::compare(&alone, &among);
    (compared.different.join("\n") + &text, compared.packets)
}

#[test]
fn strangers_change_nothing_in_the_kernel() {
    sandbox::run("sequences::strangers_change_nothing_in_the_kernel", |_| {
        let (seed, sequences) = (number("SEQUENCE_SEED", 1), number("SEQUENCE_CASES", 2_000));
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        // The kernel evicts about the oldest handshakes, and the host exactly those: no table becomes full.
        let mut world = lab::world();
        (world.limits.connections, world.limits.half_open, world.limits.fragments) = (1_024, 1_024, 1_024);
        let mut kernel = Kernel::new(&world);
        kernel.has_xdp = false;
        let (mut failed, mut packets) = (Vec::new(), 0);
        for _ in 0..sequences {
            let mut steps = sequence().new_tree(&mut runner).expect("no value is rejected").current();
            steps.retain(is_shown);
            let (difference, count) = differences(&mut kernel, &world, &steps);
            packets += count;
            if !difference.is_empty() {
                failed.push(format!("{difference}\n{steps:#?}"));
            }
            if failed.len() >= MOST_SHOWN {
                break;
            }
        }
        assert!(failed.is_empty(), "SEQUENCE_SEED={seed}\n{}", failed.join("\n"));
        assert!(packets >= sequences * 20, "only {packets} packets");
    });
}
