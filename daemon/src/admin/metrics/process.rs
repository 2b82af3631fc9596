//! Metrics of the daemon process, from `/proc`. A value that cannot be read is left out.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};

use super::family::Exposition;
use super::table;

/// Ticks per second in `/proc`: USER_HZ, which is 100 on every architecture that nodelb supports.
const TICKS: f64 = 100.0;

pub(super) fn process(exposition: &mut Exposition) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/self/stat");
    if let Some(started) = start_time(&stat, &read("/proc/stat")) {
        exposition.one(&table::START_TIME, started);
    }
    if let Some(seconds) = cpu_seconds(&stat) {
        exposition.one(&table::CPU_TIME, seconds);
    }
    if let Some(bytes) = resident_bytes(&read("/proc/self/status")) {
        exposition.one(&table::RESIDENT_MEMORY, bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // Subtract the descriptor that counts the others.
        exposition.one(&table::OPEN_FDS, open.count().saturating_sub(1));
    }
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        exposition.one(&table::MAX_FDS, limit);
    }
}

/// Returns the start time in seconds since 1970. `stat` is that of the process, `system` that of the host.
fn start_time(stat: &str, system: &str) -> Option<f64> {
    let booted: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted + field(stat, 22)? / TICKS)
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns a field of `/proc/PID/stat` by its number in proc_pid_stat(5). The second field, a name, may contain
/// anything.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

#[cfg(test)]
#[path = "tests/process.rs"]
mod tests;
