//! Measures one part in a process of its own.

use std::hint::black_box;
use std::process::{Command, ExitCode};

use stats_alloc::Region;

use crate::HEAP;
use crate::parts::PARTS;

/// The costs of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    /// Executed instructions.
    pub(crate) instructions: u64,
    /// Allocations, including those that are freed again, and changes of their size.
    pub(crate) allocations: u64,
    /// The sum of their sizes in bytes.
    pub(crate) bytes: u64,
}

/// Carries out the part of this name, and prints the number and size of its allocations.
pub(crate) fn run(name: &str) -> ExitCode {
    let Some(part) = PARTS.iter().find(|part| part.name == name) else { panic!("there is no part {name}") };
    let mut work = (part.prepare)();
    let region = Region::new(HEAP);
    counted_by_callgrind(&mut *work);
    let change = region.change();
    println!("{} {}", change.allocations + change.reallocations, change.bytes_allocated);
    ExitCode::SUCCESS
}

/// The function that callgrind knows by its name.
#[inline(never)]
fn counted_by_callgrind(work: &mut dyn FnMut()) {
    black_box(work)();
}

/// Measures the part of this name in a child.
pub(crate) fn measure(name: &str) -> Costs {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*counted_by_callgrind*")
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        // The C library must not choose its functions by the processor.
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-SSE4_2,-SSSE3",
        )
        .output()
        .unwrap_or_else(|error| panic!("valgrind: {error}"));
    let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {log}");
    let collected = log.lines().find_map(|line| line.split_once("Collected : ")).unwrap_or_else(|| panic!("{log}"));
    let mut allocated = out.split_whitespace().map(|number| number.parse().unwrap());
    Costs {
        instructions: collected.1.trim().parse().unwrap(),
        allocations: allocated.next().unwrap(),
        bytes: allocated.next().unwrap(),
    }
}
