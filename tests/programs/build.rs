//! Compiles the packet programs for this machine: `bpf/packet.bpf.c`, `bpf/xdp.bpf.c` and `bpf/sweep.bpf.c` with the host of
//! `host/`, with gcc and with clang, and with sanitizers. Each of the three is an object file that shows only the
//! functions of `host/host.h`: their functions and maps have the same names.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// The object files with programs, and the functions that they show.
const UNITS: [(&str, &[&str]); 3] = [
    (
        "packet",
        &[
            "start_packet_unit",
            "set_packet_constants",
            "run_packet_program",
            "seal_frontend",
            "fill_bloom",
            "age_entries",
            "take_reasons",
            "find_forwarded_target",
        ],
    ),
    ("xdp", &["start_xdp_unit", "set_xdp_constants", "run_xdp_program"]),
    ("sweep", &["start_sweep_unit", "run_sweep"]),
];

const OTHERS: [&str; 4] = ["frame", "kernel", "maps", "serve"];

/// The kernel's headers are declared as not aligned: a link-layer header has 14 bytes.
const SANITIZERS: [&str; 3] = ["-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all"];

const WARNINGS: [&str; 6] =
    ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-attributes", "-Wno-ignored-attributes"];

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn run(program: &str, package: &str, command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{program} (Debian package {package}): {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} failed: {command:?}").into()) }
}

/// Compiles one file of the host.
fn compile(compiler: &str, name: &str, into: &Path, more: &[String]) -> Result<PathBuf> {
    let object = into.join(format!("{name}.o"));
    let mut command = Command::new(compiler);
    // The programs take long to optimise, and what is called for each of their steps is small.
    let optimised = if OTHERS.contains(&name) { "-O2" } else { "-O1" };
    command.args(["-std=gnu11", optimised, "-g1", "-c", "-fno-omit-frame-pointer"]).args(SANITIZERS).args(more);
    // The names of some warnings differ.
    command.args(WARNINGS.iter().filter(|name| compiler != "gcc" || !name.contains("ignored-attributes")));
    command.arg("-Ihost/include").arg(format!("host/{name}.c")).arg("-o").arg(&object);
    run(compiler, compiler, &mut command)?;
    if let Some((_, shown)) = UNITS.iter().find(|(unit, _)| *unit == name) {
        let symbols = shown.iter().map(|symbol| format!("--keep-global-symbol={symbol}"));
        run("objcopy", "binutils", Command::new("objcopy").args(symbols).arg(&object))?;
    }
    Ok(object)
}

/// Compiles all of it with this compiler.
fn build(compiler: &str, program: &Path, more: &[String]) -> Result<()> {
    let folder = program.with_extension("objects");
    std::fs::create_dir_all(&folder)?;
    let names: Vec<&str> = UNITS.iter().map(|(name, _)| *name).chain(OTHERS).collect();
    let objects: Result<Vec<PathBuf>> = names.iter().map(|name| compile(compiler, name, &folder, more)).collect();
    // The program also runs in virtual machines, which have no compiler. clang links its libraries in any case.
    let linked: &[&str] = if compiler == "gcc" { &["-static-libasan", "-static-libubsan"] } else { &[] };
    run(
        compiler,
        compiler,
        Command::new(compiler).args(SANITIZERS).args(linked).args(more).args(objects?).arg("-o").arg(program),
    )
}

fn main() -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for folder in ["host", "../../bpf"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    println!("cargo::rerun-if-env-changed=NODELB_HOST_FLAGS");
    // For coverage; see scripts/coverage.sh.
    let more: Vec<String> =
        env::var("NODELB_HOST_FLAGS").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    thread::scope(|scope| {
        let builds = ["gcc", "clang"].map(|compiler| {
            let (program, more) = (out.join(compiler), &more);
            scope.spawn(move || build(compiler, &program, more))
        });
        builds.into_iter().try_for_each(|build| build.join().unwrap_or_else(|_| Err("a build panicked".into())))
    })
}
