//! The cost of the packet path, as ratios within one run: `make bench`. Prints a section of
//! docs/benchmarks.md.
//!
//! Each node that is compared has its own network namespaces, see `packet_path/site.rs`, and the
//! variants are interleaved, as in benches/cost.rs. The services of nodelb's nodes go through the
//! engine of the daemon into its maps, and its own code attaches the programs. With PROGRAM_COSTS=check
//! or =update, only what `packet_path/costs.rs` compares is measured.

#![expect(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark stops where it cannot go on, and prints; it shares its world with another"
)]

#[path = "packet_path/chart.rs"]
mod chart;
#[path = "regressions/compare.rs"]
mod compare;
#[path = "packet_path/costs.rs"]
mod costs;
#[path = "packet_path/generator.rs"]
mod generator;
#[path = "packet_path/goals.rs"]
mod goals;
#[path = "../tests/links.rs"]
mod links;
#[path = "packet_path/nodes.rs"]
mod nodes;
#[path = "cost/processor.rs"]
mod processor;
#[path = "packet_path/programs.rs"]
mod programs;
#[path = "cost/rounds.rs"]
mod rounds;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;
#[path = "packet_path/site.rs"]
mod site;
#[path = "packet_path/sockets.rs"]
mod sockets;
#[path = "packet_path/tcp.rs"]
mod tcp;
#[path = "packet_path/udp.rs"]
mod udp;
#[path = "cost/world.rs"]
mod world;

use generator::Generator;
use goals::Goals;
use nodes::Nodes;

fn main() {
    generator::share_proc();
    sandbox::run("packet_path", |sandbox| {
        if let Ok(what) = std::env::var("PROGRAM_COSTS") {
            return costs::run(sandbox, &Generator::new(&sandbox.bpffs), what == "update");
        }
        println!("\n## Packets of clients outside the node\n");
        let mut generator = Generator::new(&sandbox.bpffs);
        let mut nodes = Nodes::new(sandbox, &generator);
        let mut goals = Goals::default();
        if std::env::var_os("TCP_ONLY").is_some() {
            return tcp::run(generator.cpu(), &nodes, &mut goals);
        }
        udp::run(&mut generator, &mut nodes, &mut goals);
        tcp::run(generator.cpu(), &nodes, &mut goals);
        sockets::run(sandbox);
        programs::alone(sandbox, &generator, &mut goals);
        programs::sweep(&mut generator, &nodes, &mut goals);
        goals.chart.write();
        println!("{}", goals.chart.summary());
        goals.print();
        println!("\nMeasurements repeated because packets were lost: {}.", generator.repeated);
    });
}
