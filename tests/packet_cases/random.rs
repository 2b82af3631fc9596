//! Random packets and changes, run in the kernel and on the host.

use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_programs::node::Packet;
use nodelb_programs::programs::Outcome;
use proptest::strategy::Strategy;
use proptest::test_runner::TestRunner;

use crate::compared::{compare, compare_sweep};
use crate::damage::{damage, number, pick, runner};
use crate::kernel::Kernel;
use crate::print;
use crate::sandbox;
use crate::steps::{Step, answer, packet, policies, step};
use crate::world::World;

/// The tables are emptied after these steps, so that they stay small.
const RUN: usize = 150;

/// Short, because a run takes about a minute of the time that passes for the tables.
const TIMEOUTS: SweepTimeouts =
    SweepTimeouts { handshake: 7, closed: 5, reset: 3, tcp_idle: 25, udp_idle: 12, forwarded_idle: 18 };

/// Milliseconds: so many of these waits as a run has are less than the affinity of a client.
const MOST_WAITED: u64 = 5_000;

/// A run ends after this number of differences.
const MOST_SHOWN: usize = 10;

/// The state of a run.
struct Run {
    kernel: Kernel,
    world: World,
    /// The number of packets.
    compared: u64,
    different: Vec<String>,
}

impl Run {
    /// Compares what is done with the packet, and returns it if the kernel can run the programs on it.
    fn compare(&mut self, name: impl Fn() -> String, packet: &Packet) -> Option<Outcome> {
        let (difference, outcome) = compare(&mut self.kernel, &self.world, packet)?;
        self.compared += 1;
        if !difference.is_empty() {
            let (number, bytes) = (self.compared, print::hex(&packet.bytes));
            self.different.push(format!("packet {number}: {}\n  {bytes}\n{difference}", name()));
        }
        Some(outcome)
    }

    /// A random step: a change, or a packet and perhaps its answer.
    fn step(&mut self, runner: &mut TestRunner, steps: &impl Strategy<Value = Step>) {
        if pick(runner, &(0_u8..40)) == 0 {
            self.kernel.displace(pick(runner, &proptest::num::usize::ANY));
        }
        if pick(runner, &(0_u8..30)) == 0 {
            let difference = compare_sweep(&mut self.kernel, &TIMEOUTS);
            if !difference.is_empty() {
                self.different.push(format!("sweep after packet {}\n{difference}", self.compared));
            }
        }
        let step = pick(runner, steps);
        if matches!(step, Step::Change(line) if line.contains("masquerades")) {
            return;
        }
        let Some(mut packet) = packet(&mut self.world, &step) else {
            match &step {
                // Session affinity ends in a certain nanosecond, and the two do not run in the same one.
                Step::Wait(millis) if *millis > MOST_WAITED => {}
                Step::Wait(millis) => self.kernel.age(u32::try_from(millis / 1_000).unwrap()),
                _ => self.kernel.set(&self.world),
            }
            return;
        };
        let mac = packet.bytes[..6].to_vec();
        let is_damaged = damage(runner, &mut packet.bytes);
        packet.is_for_host = packet.bytes[..6] == mac;
        let name = || format!("{step:?}{}", if is_damaged { " damaged" } else { "" });
        let Some(outcome) = self.compare(name, &packet) else { return };
        if matches!(step, Step::Packet { is_answered: true, .. })
            && let Some(answer) = answer(&self.world, &packet, &outcome)
        {
            self.compare(|| format!("answer to {}", name()), &answer);
        }
    }
}

/// `SOCKET_SEED=n` and `SOCKET_CASES=n` (packets) repeat a run.
#[test]
fn kernel_and_host_agree_on_random_packets() {
    sandbox::run("random::kernel_and_host_agree_on_random_packets", |_| {
        let (seed, packets) = (number("SOCKET_SEED", 14), number("SOCKET_CASES", 20_000));
        let mut runner = runner(seed);
        let mut world = policies();
        world.settings.source_ports = 10_000..=10_006;
        // All of it is read after each packet, and a run never fills it.
        world.limits.connections = 1_024;
        let (first, steps) = (world.clone(), step());
        let mut run = Run { kernel: Kernel::new(&world), world, compared: 0, different: Vec::new() };
        while run.compared < packets && run.different.len() < MOST_SHOWN {
            run.world = first.clone();
            run.kernel.start(&run.world);
            (0..RUN).for_each(|_| run.step(&mut runner, &steps));
        }
        let early = run.kernel.translated_early as u64;
        #[expect(clippy::print_stdout, reason = "how much of the run the XDP program has seen")]
        {
            println!("{early} of {} packets were translated by the XDP program", run.compared);
        }
        assert!(run.different.is_empty(), "SOCKET_SEED={seed}\n{}", run.different.join("\n"));
        assert!(early * 500 > packets, "the XDP program has translated only {early} packets");
    });
}
