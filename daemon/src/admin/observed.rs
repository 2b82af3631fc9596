//! What the daemon's parts report, collected for the list of problems; and the list. Every route that reports whether
//! something is wrong uses it.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use nodelb_core::model::addr::Family;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use nodelb_core::state::entries::ServiceId;
use nodelb_host::clock::unix_seconds;
use nodelb_host::unwritten::{Files, UNREAD, UNWRITTEN};
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_report::problems::{
    self, ApiserverState, Beginnings, DroppedPackets, Earlier, NotForwarding, Observed, Problem, TableUsage,
    Untranslated,
};
use nodelb_report::time::{Clocks, Time};
use tokio::sync::watch;

use super::maps::{usage, usage_with};
use super::metrics::open_files;
use super::state::{AdminState, latest};
use crate::config::PacketMode;
use crate::devices::forwarding;
use crate::devices::mode::Activity;
use crate::reconcile::publish;

/// The time after the start in milliseconds until which the daemon has looked for every problem of the node once.
const FOUND_AFTER: u64 = 10_000;

impl AdminState {
    /// Every problem, the worst first.
    pub(super) fn problems(&self, now: Clocks) -> Vec<Problem> {
        problems::problems(&self.observed(now))
    }

    /// Whether `/readyz` returns 200.
    pub(super) fn is_ready(&self, now: Clocks) -> bool {
        problems::is_ready(&self.readiness(now))
    }

    /// The dropped packets by reason and verdict. Drops that cannot be read are no problem: `/drops` reports the error.
    fn recent_drops(&self, now: Clocks) -> Vec<DroppedPackets> {
        let drops = self.packets.as_ref().and_then(|packets| (packets.drops)().ok()).unwrap_or_default();
        let ago = |seconds: u32| Time(now.time.0.saturating_sub(u64::from(seconds) * 1_000));
        let mut of_reasons: BTreeMap<_, DroppedPackets> = BTreeMap::new();
        for count in &drops.counts {
            let (reason, verdict, packets) = (count.reason, count.verdict.name(), count.packets);
            let new = DroppedPackets { reason, verdict, packets, first: ago(count.first), last: ago(count.last) };
            let add = |known: &mut DroppedPackets| {
                known.packets += packets;
                (known.first, known.last) = (known.first.min(new.first), known.last.max(new.last));
            };
            of_reasons.entry((reason, verdict)).and_modify(add).or_insert(new);
        }
        of_reasons.into_values().collect()
    }

    /// The settings that keep the kernel from forwarding packets of clients outside the node; `None` if they cannot be
    /// read.
    fn not_forwarding(&self, snapshot: &Snapshot) -> Option<Vec<NotForwarding>> {
        let families = snapshot.realised.outside.keys().map(|address| address.addr.family()).collect();
        let devices = self.devices();
        forwarding::disabled(&self.packets.as_ref()?.sysctls, &families, &devices.uplinks())
    }

    /// The setting because of which the kernel forwards no packet of this family.
    pub(super) fn forwards_nothing(&self, family: Family) -> Option<String> {
        let devices = self.devices();
        forwarding::everywhere(&self.packets.as_ref()?.sysctls, family, &devices.uplinks())?
    }

    /// Notes which maps are nearly full, for the time since which each is.
    pub(super) fn watch_tables(&self) {
        let (snapshot, now) = (self.snapshot(), (self.clock)());
        self.tables(usage_with(&snapshot.realised, self, now.moment, None), now);
    }

    /// The usage of the maps, with the time since which each is nearly full: the first call that found it so.
    fn tables(&self, mut tables: Vec<TableUsage>, now: Clocks) -> Vec<TableUsage> {
        let mut known = self.nearly_full.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|name, _| tables.iter().any(|table| table.name == *name && table.is_nearly_full()));
        for table in tables.iter_mut().filter(|table| table.is_nearly_full()) {
            table.full_since = Some(*known.entry(table.name).or_insert(now.time));
        }
        tables
    }

    /// Takes note of the problems of the node, for their time after the next start.
    pub(super) fn watch_problems(&self, beginnings: &watch::Sender<Arc<Beginnings>>) {
        let now = (self.clock)();
        let observed = self.observed_of_node(now);
        let found = problems::of_node(&observed);
        let is_complete = observed.snapshot.is_ready && now.moment >= self.started.plus(FOUND_AFTER);
        let mut earlier = self.earlier();
        earlier.note(&found, is_complete);
        publish(beginnings, Arc::new(earlier.beginnings(&found)));
    }

    fn earlier(&self) -> MutexGuard<'_, Earlier> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows of `/sources`: a problem that stood before the start has not begun with it.
    pub(super) fn shown_sources(&self, now: Clocks) -> Vec<SourceReport> {
        let (snapshot, earlier) = (self.snapshot(), self.earlier().clone());
        let observed = Observed { clocks: now, snapshot, earlier, ..Observed::default() };
        let shown = |row: Arc<SourceReport>| {
            let since = problems::source_since(&row, &observed).seconds();
            SourceReport { since, ..Arc::unwrap_or_clone(row) }
        };
        self.sources(now).into_iter().map(shown).collect()
    }

    /// The files of the state directory that cannot be written, or that have not been read.
    fn failing(&self, files: &Files) -> Vec<(Time, String)> {
        let files = files.below(&self.config.borrow().state.directory);
        files.into_iter().map(|it| (Time::from_seconds(unix_seconds(it.since)), it.text)).collect()
    }

    fn observed(&self, now: Clocks) -> Observed {
        let observed = self.observed_of_node(now);
        Observed { summary: self.summaries.of(&observed.snapshot), ..observed }
    }

    /// Why new connections of clients outside the node are not translated, unless the configuration turns that off.
    fn untranslated(&self, snapshot: &Snapshot) -> Option<Untranslated> {
        let may_translate = self.config.borrow().packets.mode != PacketMode::Off;
        let devices = self.devices();
        let decision = devices.decision.clone()?;
        // Without services of Kubernetes, nothing is left to another service proxy.
        let of_kubernetes = |id: &ServiceId| snapshot.realised.source_of(*id) == Some(Source::Kubernetes);
        let is_of_kubernetes = decision.activity == Activity::Files
            && snapshot.realised.outside.values().any(|entry| of_kubernetes(&entry.service));
        let is_draining = decision.activity == Activity::Draining || is_of_kubernetes;
        let is_off = decision.activity == Activity::Off && may_translate;
        let untranslated = Untranslated { reason: decision.reason, is_draining, is_of_kubernetes };
        (devices.is_needed && (is_draining || is_off)).then_some(untranslated)
    }

    /// What is observed, without the summary of the services, which may take long.
    fn observed_of_node(&self, now: Clocks) -> Observed {
        let snapshot = self.snapshot();
        let sweep = self.packets.as_ref().and_then(|packets| Some(latest(packets.sweep.as_ref()?)));
        let tables = self.tables(usage(&snapshot.realised, self, now.moment), now);
        let apiservers = self.apiservers();
        let socket_programs = self.datapath.socket_programs();
        Observed {
            clocks: now,
            checks: self.readiness(now),
            history: self.history(),
            sources: self.sources(now),
            apiserver: apiservers.pool.is_some().then(|| apiserver(&apiservers, now)),
            is_in_memory: self.datapath.kernel().is_none(),
            tables,
            is_reaper_down: self.stale_sockets.as_ref().is_some_and(|report| !latest(report).is_working),
            open_files: open_files(),
            reloads: latest(&self.reloads),
            unwritten: self.failing(&UNWRITTEN),
            unread: self.failing(&UNREAD),
            closed_listeners: {
                let unopened = latest(&self.unopened);
                unopened.iter().map(|it| (it.address.to_string(), it.why.clone())).collect()
            },
            drops: self.recent_drops(now),
            not_forwarding: self.not_forwarding(&snapshot),
            policies: Arc::clone(&self.devices().policies),
            has_other_proxy: self.devices().has_other_proxy,
            programs_ahead: self.devices().programs_ahead(),
            xdp_taken: self.devices().xdp_taken(),
            socket_programs: [true, false].map(|is_first| {
                socket_programs.iter().filter(|it| it.is_first == is_first).map(ToString::to_string).collect()
            }),
            untranslated: self.untranslated(&snapshot),
            is_cut_off: self.devices().is_cut_off,
            foreign_pins: self.datapath.foreign_pins(),
            missing_devices: self.devices().missing_devices(),
            packet_failure: self.devices().failure.as_ref().filter(|it| !it.is_fatal).map(|it| it.text.clone()),
            unsent_checks: latest(&self.checks)
                .unsent
                .as_ref()
                .map(|(since, why)| (now.time_of(*since), why.to_string())),
            silent: sweep.as_ref().map(|report| Arc::clone(&report.silent)).unwrap_or_default(),
            answered: sweep.as_ref().map(|report| Arc::clone(&report.answered)).unwrap_or_default(),
            accepted: sweep.as_ref().map(|report| Arc::clone(&report.accepted)).unwrap_or_default(),
            ways: Arc::clone(&self.devices().ways),
            sweep_failures: sweep.map_or(0, |report| report.failures),
            earlier: self.earlier().clone(),
            snapshot,
            ..Observed::default()
        }
    }
}

/// The apiservers; without one in use, with the reason why.
pub(super) fn apiserver(report: &PoolReport, now: Clocks) -> ApiserverState {
    let last_error = || {
        let rows = report.rows(now.moment, now.time.seconds());
        let unknown = rows.is_empty().then(|| "nodelb knows no address of one".into());
        rows.into_iter().find_map(|row| Some(format!("{}: {}", row.address, row.error?.1))).or(unknown)
    };
    ApiserverState {
        in_use: report.in_use().map(ToString::to_string),
        last_response: report.last_response.map(|at| now.time_of(at)),
        lost: report.without_server_since().map(|at| now.time_of(at)),
        problem: report.problem.clone().or_else(last_error),
        not_renewed: report.not_renewed.as_ref().map(|(since, why)| (now.time_of(*since), why.clone())),
    }
}

#[cfg(test)]
#[path = "tests/observed.rs"]
mod tests;
