//! The cost of nodelb, measured as ratios within one run: `make bench`. Prints sections of
//! docs/development/benchmarks.md to standard output.
//!
//! The variants are interleaved in one process over many rounds; the tables show the minimum and
//! the first quartile. Absolute times are only context, because machines differ and are noisy.
//! Needs root: runs in the sandbox of the tests, with its own cgroups and addresses. `CONNECT_ONLY=1`: only what clients
//! pay, which takes a minute; the profile of the build does not matter to it. `BULK_ONLY=1`: only 50,000 new services.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark stops where it cannot go on, and prints"
)]

#[path = "cost/connect.rs"]
mod connect;
#[path = "cost/control.rs"]
mod control;
#[path = "cost/counting.rs"]
mod counting;
#[path = "cost/options.rs"]
mod options;
#[path = "cost/processor.rs"]
mod processor;
#[path = "cost/rounds.rs"]
mod rounds;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;
#[path = "cost/world.rs"]
mod world;

use std::fs;

fn main() {
    sandbox::run("cost", |sandbox| {
        println!("## Machine\n");
        machine();
        if std::env::var_os("BULK_ONLY").is_some() {
            return control::run_bulk(sandbox);
        }
        connect::run(sandbox);
        if std::env::var_os("CONNECT_ONLY").is_none() {
            control::run(sandbox);
        }
        println!("\nLoad average at the end: {}", first_words("/proc/loadavg", 3));
    });
}

fn machine() {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap();
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    println!("| | |\n|---|---|");
    println!("| kernel | {} |", first_words("/proc/sys/kernel/osrelease", 1));
    println!("| processor | {}, {cores} cores |", processor::processor());
    println!(
        "| memory | {} kB |",
        fs::read_to_string("/proc/meminfo").unwrap().split_whitespace().nth(1).unwrap_or("")
    );
    println!("| bpf_jit_harden | {} |", first_words("/proc/sys/net/core/bpf_jit_harden", 1));
    println!("| clock | {} |", first_words("/sys/devices/system/clocksource/clocksource0/current_clocksource", 1));
    println!("| load average at the start | {} |", first_words("/proc/loadavg", 3));
}

fn first_words(path: &str, count: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|_| "unknown".into());
    text.split_whitespace().take(count).collect::<Vec<_>>().join(" ")
}
