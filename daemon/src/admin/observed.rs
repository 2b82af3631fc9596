//! What the daemon's parts report, collected for the list of problems; and the list. Every route that reports whether
//! something is wrong uses it.

use nodelb_core::model::time::{Clocks, Time};
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_report::problems::{self, ApiserverState, Observed, Problem, TableUsage};

use super::maps::{MapUsage, usage};
use super::metrics::open_files;
use super::state::{AdminState, Now, latest};

impl Now {
    /// This time for the core.
    pub(super) fn clocks(self) -> Clocks {
        Clocks { moment: self.moment, time: Time::from_seconds(self.unix) }
    }
}

/// The name of the map with a limit that nodelb does not have to observe, because the kernel evicts entries.
const CACHE: &str = "affinity";

impl AdminState {
    /// Every problem, the worst first.
    pub(super) fn problems(&self, now: Now) -> Vec<Problem> {
        problems::problems(&self.observed(now))
    }

    /// Whether `/readyz` returns 200.
    pub(super) fn is_ready(&self, now: Now) -> bool {
        problems::is_ready(&self.readiness(now))
    }

    /// The dropped packets by reason. Drops that cannot be read are no problem: `/drops` reports the error.
    fn recent_drops(&self, now: Now) -> Vec<(&'static str, u64, Time)> {
        let drops = self.packets.as_ref().and_then(|packets| (packets.drops)().ok()).unwrap_or_default();
        let ago = |seconds: u32| Time(now.clocks().time.0.saturating_sub(u64::from(seconds) * 1_000));
        drops.counts.iter().map(|count| (count.reason, count.packets, ago(count.last))).collect()
    }

    fn observed(&self, now: Now) -> Observed {
        let snapshot = self.snapshot();
        let sweep = self.packets.as_ref().and_then(|packets| Some(latest(packets.sweep.as_ref()?)));
        let tables = usage(&snapshot.realised, self, now.moment).into_iter().map(table).collect();
        let apiservers = self.apiservers();
        let socket_programs = self.datapath.socket_programs();
        Observed {
            clocks: now.clocks(),
            checks: self.readiness(now),
            history: self.history(),
            sources: self.sources(),
            apiserver: apiservers.pool.is_some().then(|| apiserver(&apiservers, now)),
            is_in_memory: self.datapath.kernel().is_none(),
            tables,
            is_reaper_down: self.stale_sockets.as_ref().is_some_and(|report| !latest(report).is_working),
            open_files: open_files(),
            reloads: latest(&self.reloads),
            closed_listeners: {
                let unopened = latest(&self.unopened);
                unopened.iter().map(|it| (it.address.to_string(), it.why.clone())).collect()
            },
            drops: self.recent_drops(now),
            has_other_proxy: self.devices().has_other_proxy,
            programs_ahead: self.devices().programs_ahead(),
            socket_programs: [true, false].map(|is_first| {
                socket_programs.iter().filter(|it| it.is_first == is_first).map(ToString::to_string).collect()
            }),
            packet_failure: self.devices().failure.as_ref().filter(|it| !it.is_fatal).map(|it| it.text.clone()),
            sweep_failures: sweep.map_or(0, |report| report.failures),
            summary: self.summary(&snapshot),
            snapshot,
        }
    }
}

fn table(MapUsage { name, used, limit, key }: MapUsage) -> TableUsage {
    TableUsage { name, used: used.map(|used| used as u64), limit: limit.into(), key, is_cache: name == CACHE }
}

/// The apiservers; without one in use, with the reason why.
pub(super) fn apiserver(report: &PoolReport, now: Now) -> ApiserverState {
    let last_error = || {
        let mut rows = report.rows(now.moment, now.unix).into_iter();
        rows.find_map(|row| Some(format!("{}: {}", row.address, row.error?.1)))
    };
    ApiserverState {
        in_use: report.in_use().map(ToString::to_string),
        last_response: report.last_response.map(|at| now.clocks().time_of(at)),
        problem: report.problem.clone().or_else(last_error),
    }
}

#[cfg(test)]
#[path = "tests/observed.rs"]
mod tests;
