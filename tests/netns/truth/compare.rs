//! Compares what clients got with what the tools showed.

use std::collections::BTreeMap;
use std::fmt::Debug;

use nodelb_report::time::Time;
use serde_json::Value;

use super::node::{Fault, Kind, Node, address, name};
use super::observer::{EVERY_MILLIS, From, LONGEST_MILLIS, Sample};

/// An outage this long, in milliseconds, must be in the history, with its times correct to within [`EXACT`].
const LONG: u64 = 1_000;
const EXACT: u64 = 1_000;
/// A tool may lag behind for this long.
const LAG: u64 = 1_000;
/// What happens this long before `kill -9`, the history may lack: it is stored four times a second.
const UNSTORED: u64 = 400;
/// The same for the statuses, which are stored once a second.
const UNSTORED_STATUS: u64 = 1_500;
/// A client that sleeps or waits this much longer than it meant to is a sign that the machine stood still.
const LATE: u64 = 250;
/// Around such a time, nothing is compared.
const UNCLEAR: u64 = 1_400;

/// What the tools showed at one time.
pub(super) struct Shown {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) problems: Vec<Value>,
    pub(super) frontends: Vec<Value>,
    pub(super) metrics: String,
}

/// Whether the problem is that of the service or of its address, alone or with others.
fn is_about(problem: &Value, names: [&str; 2]) -> bool {
    let shares = |name: &str| problem["services"].as_array().is_some_and(|it| it.contains(&name.into()));
    names.iter().any(|name| problem["object"] == *name || shares(name))
}

impl Shown {
    /// The numbers of problems and of frontends in the metrics, on which alerts depend, that are not those of the rows.
    fn wrong_metrics(&self) -> Vec<String> {
        let mut expected: BTreeMap<String, usize> = BTreeMap::new();
        for problem in &self.problems {
            let (severity, reason) = (problem["severity"].as_str(), problem["reason"].as_str());
            let labels = format!("severity={:?},reason={:?}", severity.unwrap_or("-"), reason.unwrap_or("-"));
            *expected.entry(format!("nodelb_problems{{{labels}}}")).or_default() += 1;
        }
        for row in &self.frontends {
            let status = row["status"].as_str().unwrap_or("-");
            *expected.entry(format!("nodelb_frontends{{status={status:?}}}")).or_default() += 1;
        }
        let is_meant = |line: &&str| line.starts_with("nodelb_problems{") || line.starts_with("nodelb_frontends{");
        let of_line = |line: &str| {
            let (name, number) = line.rsplit_once(' ')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        let mut shown: BTreeMap<String, usize> = self.metrics.lines().filter(is_meant).filter_map(of_line).collect();
        shown.retain(|_, number| *number > 0);
        let differs = |name: &&String| shown.get(*name) != expected.get(*name);
        let names = shown.keys().chain(expected.keys());
        names.filter(differs).map(|name| format!("{name}: {:?}, {:?}", shown.get(name), expected.get(name))).collect()
    }
}

/// An answer of `/trace`.
pub(super) struct Traced {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) number: usize,
    pub(super) from: From,
    pub(super) answer: Value,
}

/// Everything that was observed in a round.
pub(super) struct Observed {
    pub(super) connections: BTreeMap<From, BTreeMap<String, Vec<Sample>>>,
    pub(super) shown: Vec<Shown>,
    pub(super) traced: Vec<Traced>,
    /// The rows of `/history`.
    pub(super) history: Vec<Value>,
    /// When the comparison begins and ends.
    pub(super) during: (u64, u64),
    /// The times in which the machine stood still, by their beginnings.
    pub(super) stalls: Vec<(u64, u64)>,
}

impl Observed {
    /// Whether the machine stood still near this time.
    fn is_stalled(&self, (from, to): (u64, u64)) -> bool {
        let (from, to) = (from.saturating_sub(UNCLEAR), to.saturating_add(UNCLEAR));
        self.stalls.iter().any(|(begin, end)| *end >= from && *begin <= to)
    }
}

/// The times in which the machine stood still, as all clients saw it.
pub(super) fn stalls(connections: &BTreeMap<From, BTreeMap<String, Vec<Sample>>>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for samples in connections.values().flat_map(BTreeMap::values) {
        let slow = samples.iter().filter(|sample| sample.end - sample.begin > LONGEST_MILLIS + LATE);
        found.extend(slow.map(|sample| (sample.begin, sample.end)));
        let late = samples.windows(2).map(|pair| (pair[0].end, pair[1].begin));
        found.extend(late.filter(|(end, begin)| begin.saturating_sub(*end) > EVERY_MILLIS + LATE));
    }
    found.sort_unstable();
    found
}

/// A time in which all connections failed: it began and ended between two times each.
#[derive(Clone, Copy, Debug)]
struct Outage {
    began: (u64, u64),
    ended: (u64, u64),
}

impl Outage {
    fn is_long(self) -> bool {
        self.ended.0.saturating_sub(self.began.1) > LONG
    }
}

/// The outages of one address for one kind of client. One without an end lasts until the end of the round.
fn outages(samples: &[Sample], end: u64) -> Vec<Outage> {
    let mut found = Vec::new();
    let (mut last_ok, mut failing): (u64, Option<(u64, u64)>) = (0, None);
    let mut last_failure = 0;
    for sample in samples {
        match (&sample.result, failing) {
            (Ok(_), Some(began)) => {
                found.push(Outage { began, ended: (last_failure, sample.end) });
                (failing, last_ok) = (None, sample.begin);
            }
            (Ok(_), None) => last_ok = sample.begin,
            (Err(_), _) => {
                last_failure = sample.begin;
                failing = failing.or(Some((last_ok, sample.end)));
            }
        }
    }
    found.extend(failing.map(|began| Outage { began, ended: (end, u64::MAX) }));
    found
}

fn time(row: &Value, field: &str) -> Option<u64> {
    serde_json::from_value::<Time>(row[field].clone()).ok().map(|time| time.0)
}

/// Everything that a tool showed and that was not so.
pub(super) fn lies(node: &Node<'_>, observed: &Observed) -> Vec<String> {
    let mut found = Vec::new();
    for number in 0..node.faults.len() {
        let of = Compared { node, observed, number, found: &mut found };
        of.run();
    }
    for traced in observed.traced.iter().filter(|traced| !node.is_unseen(traced.number, (traced.begin, traced.end))) {
        trace(node, observed, traced, &mut found);
    }
    if let Some(wrong) = observed.shown.iter().map(Shown::wrong_metrics).find(|wrong| !wrong.is_empty()) {
        found.push(format!("metrics are not what status and frontends show: {wrong:?}"));
    }
    found
}

impl Node<'_> {
    /// Whether something happened to the service that the daemon could not see by this time, because there was none. What
    /// health checks find takes a moment, and is stored once a second.
    fn is_unseen(&self, number: usize, (begin, end): (u64, u64)) -> bool {
        let unstored = if Kind::of(number) == Kind::Checked { 1_500 } else { 200 };
        self.dead.iter().any(|(died, ready)| {
            let absent = died.saturating_sub(200)..ready + LAG;
            let unseen = died.saturating_sub(unstored)..ready + LAG;
            let has_happened = |(when, of, _): &(u64, usize, Fault)| *of == number && unseen.contains(when);
            (absent.contains(&begin) || absent.contains(&end)) && self.done.iter().any(has_happened)
        })
    }
}

/// One service.
struct Compared<'a> {
    node: &'a Node<'a>,
    observed: &'a Observed,
    number: usize,
    found: &'a mut Vec<String>,
}

impl Compared<'_> {
    fn samples(&self, from: From) -> &[Sample] {
        self.observed.connections[&from].get(&address(self.number)).map_or(&[], Vec::as_slice)
    }

    /// The first of each kind counts.
    fn lie(&mut self, at: u64, kind: &str, detail: &dyn Debug) {
        let prefix = format!("{} ({kind}", name(self.number));
        if self.found.iter().any(|lie| lie.starts_with(&prefix)) {
            return;
        }
        let fault = self.node.done.iter().rfind(|(when, number, _)| *number == self.number && *when <= at);
        let fault = fault
            .map_or("since the beginning".to_owned(), |(when, _, fault)| format!("{fault:?}, {} ms before", at - when));
        let seconds = at.saturating_sub(self.observed.during.0);
        let done: Vec<_> = self.node.done.iter().filter(|(_, number, _)| *number == self.number).collect();
        self.found
            .push(format!("{prefix}) at {seconds} ms ({fault}): {detail:?}; {done:?}; dead {:?}", self.node.dead));
    }

    /// The time that the daemon may be late at this time, because there was none.
    fn late(&self, at: u64) -> u64 {
        let dead = self.node.dead.iter().find(|(begin, end)| (begin.saturating_sub(200)..end + LAG).contains(&at));
        dead.map_or(at, |(_, end)| at.max(*end))
    }

    fn run(mut self) {
        let (begin, end) = self.observed.during;
        for from in From::ALL {
            let outages = outages(self.samples(from), end);
            for outage in outages.iter().filter(|outage| outage.is_long() && outage.began.0 > begin) {
                self.outage(from, *outage);
            }
        }
        let outages: Vec<Vec<Outage>> = From::ALL.map(|from| outages(self.samples(from), end)).into();
        for shown in &self.observed.shown {
            if shown.begin > begin && shown.end < end {
                self.shown(shown, &outages);
            }
        }
        for (died, ready) in &self.node.dead {
            self.restart((*died, *ready), &outages);
        }
    }

    /// Of two rows with the address, that with the status that clients get.
    fn row<'s>(&self, shown: &'s Shown) -> Option<&'s Value> {
        let address = format!("{}/TCP", address(self.number));
        // A service that another one took the address from has a row with its status, and what clients get is the other's.
        let rows = shown.frontends.iter().filter(|row| row["address"] == address.as_str());
        rows.max_by_key(|row| (row["service"] == name(self.number).as_str(), row["status"] == "Kept"))
    }

    /// A restart that changes nothing for clients is the beginning of nothing.
    fn restart(&mut self, (died, ready): (u64, u64), outages: &[Vec<Outage>]) {
        let observed = self.observed;
        let Some(before) = observed.shown.iter().rfind(|shown| shown.end + UNSTORED < died) else { return };
        let effect = |row: &Value| row["status"].as_str().map(|it| if it == "Kept" { "OK" } else { it }.to_owned());
        // What has just begun may not be stored yet.
        let is_stored = |row: &&Value| time(row, "since").is_some_and(|since| since + UNSTORED_STATUS < died);
        let Some(had) = self.row(before).filter(is_stored) else { return };
        for shown in observed.shown.iter().filter(|shown| shown.begin > died) {
            let Some(row) = self.row(shown).filter(|row| effect(row) == effect(had)) else { continue };
            let Some(since) = time(row, "since").filter(|since| (died..ready + LAG).contains(since)) else { continue };
            let during = died.saturating_sub(UNSTORED_STATUS)..since + EXACT;
            let is_done = self.node.done.iter().any(|(when, it, _)| *it == self.number && during.contains(when));
            let begins_or_ends =
                |it: &Outage| [it.began, it.ended].iter().any(|(from, to)| *from < during.end && *to > during.start);
            let is_changed = is_done || outages.iter().flatten().any(begins_or_ends);
            let is_own = row["service"].is_null() || row["service"] == had["service"];
            if !is_changed && is_own && !observed.is_stalled((died, since)) {
                self.lie(shown.begin, "since the restart, which changed nothing", &(had, row));
                return;
            }
        }
    }

    /// The history has the beginning, with its cause, and the end.
    fn outage(&mut self, from: From, outage: Outage) {
        // What no source describes after a start has no name if the daemon died before it had stored that.
        let (service, address) = (name(self.number), format!("{}/TCP", address(self.number)));
        let is_own = |row: &&Value| {
            let of_address = row["frontends"].as_array().is_some_and(|all| all.contains(&address.as_str().into()));
            row["service"] == service.as_str() || row["what"] == "Pruned" && of_address
        };
        let rows: Vec<&Value> = self.observed.history.iter().filter(is_own).collect();
        let within = |(from, to): (u64, u64)| -> Vec<&Value> {
            let range = from.saturating_sub(EXACT)..=self.late(to).saturating_add(EXACT);
            let is_within = |row: &&&Value| time(row, "time").is_some_and(|time| range.contains(&time));
            rows.iter().filter(is_within).copied().collect()
        };
        let (began, ended) = (within(outage.began), within(outage.ended));
        let fault =
            self.node.done.iter().rfind(|(when, number, _)| *number == self.number && *when <= outage.began.1 + 50);
        let fault = fault.map_or(Fault::None, |(_, _, fault)| *fault);
        // A change that had to wait has an event of its own, with the cause.
        // No object tells why a source lacks a service after a start.
        let is_unseen = |row: &&Value| row["what"] == "Pruned" || row["what"] == "Removed" && row["object"].is_null();
        let has_waited = began.iter().any(|row| row["what"] == "Healed" || is_unseen(row));
        let named = if has_waited { &rows } else { &began };
        let is_named =
            began.iter().any(is_unseen) || named.iter().any(|row| row.to_string().contains(&fault.cause(self.number)));
        let is_unended = ended.is_empty() && outage.ended.1 != u64::MAX;
        let is_lost = |(from, to): (u64, u64)| {
            self.node.dead.iter().any(|(begin, _)| to.saturating_add(UNSTORED) > *begin && from < *begin)
        };
        let is_unclear = |during| is_lost(during) || self.observed.is_stalled(during);
        let (is_begin_unclear, is_end_unclear) = (is_unclear(outage.began), is_unclear(outage.ended));
        let last: Vec<String> = rows.iter().rev().take(4).map(ToString::to_string).collect();
        if began.is_empty() && !is_begin_unclear {
            self.lie(outage.began.1, "history lacks the beginning of an outage", &(from, outage, &last));
        } else if !is_named && !is_begin_unclear {
            let rows: Vec<String> = began.iter().map(ToString::to_string).collect();
            self.lie(outage.began.1, "history lacks the cause of an outage", &(from, outage, rows));
        }
        if is_unended && !is_end_unclear {
            self.lie(outage.ended.1, "history lacks the end of an outage", &(from, outage, last));
        }
    }

    /// Status, severity and since are those of the outages at that time.
    fn shown(&mut self, shown: &Shown, outages: &[Vec<Outage>]) {
        let is_certain = |outage: &&Outage| outage.began.1 + LAG < shown.begin && shown.end < outage.ended.0;
        let current: Vec<Option<Outage>> = outages.iter().map(|all| all.iter().find(is_certain).copied()).collect();
        let failing = current.iter().flatten().count();
        let is_near =
            |outage: &Outage| outage.began.0 < shown.end + 200 && shown.begin < outage.ended.1.saturating_add(LAG);
        let is_fine = !outages.iter().flatten().any(is_near);
        let is_unseen = self.node.is_unseen(self.number, (shown.begin, shown.end));
        if is_unseen || self.observed.is_stalled((shown.begin, shown.end)) {
            return;
        }
        let has_changed = |(when, number, _): &(u64, usize, Fault)| {
            *number == self.number && (shown.begin.saturating_sub(LAG)..shown.end).contains(when)
        };
        if self.node.done.iter().any(has_changed) {
            return;
        }
        let service = name(self.number);
        let address = format!("{}/TCP", address(self.number));
        let is_own = |problem: &&Value| is_about(problem, [&service, &address]);
        let of_service: Vec<&Value> = shown.problems.iter().filter(is_own).collect();
        let is_critical = |but: &str| of_service.iter().any(|it| it["severity"] == "critical" && it["reason"] != but);
        let is_unready = shown.problems.iter().any(|problem| problem["blocks_readiness"] == true);
        let row = self.row(shown);
        if row.is_some_and(|row| !row["service"].is_null() && row["service"] != service.as_str()) {
            return;
        }
        let is_in_conflict = row.is_some_and(|row| row["status"] == "Conflict");
        // The sweep has to find out that backends answer clients outside: `silence.rs` waits for it.
        if is_fine && is_critical("Unanswered") && !is_in_conflict {
            self.lie(shown.begin, "nothing fails, but a problem is critical", &of_service);
        }
        // A daemon that has not read its sources says so, and that the kernel does what it did before.
        let is_as_before =
            |row: &Value| is_unready && ["Pending", "Kept"].iter().any(|status| row["status"] == *status);
        let is_pending = row.is_some_and(is_as_before);
        let is_shown = is_pending || row.is_none_or(|row| current[0].is_none() && row["outside"] != "Served");
        // A start may serve a service from the state directory for a moment, until the list of the API server lacks it.
        let has_just_begun = row.and_then(|row| time(row, "since")).is_some_and(|since| since + LAG > shown.begin);
        if failing > 0 && of_service.is_empty() && !is_shown && !has_just_begun {
            self.lie(shown.begin, "connections fail, but status has no problem", &(&current, row));
        }
        if failing == 3 && !is_critical("") && !is_pending && row.is_some() {
            self.lie(shown.begin, "everything fails, but no problem is critical", &of_service);
        }
        let Some(row) = row else {
            if is_fine {
                self.lie(shown.begin, "served, but not in frontends", &());
            }
            return;
        };
        let status = row["status"].as_str().unwrap_or_default().to_owned();
        if is_fine && !["OK", "Held", "Kept"].contains(&&*status) {
            self.lie(shown.begin, "nothing fails, but the status is bad", row);
        }
        if current[0].is_some() && !is_pending && ["OK", "Held", "Kept"].contains(&&*status) {
            self.lie(shown.begin, "connections of the node fail, but the status is good", row);
        }
        let Some(since) = time(row, "since") else {
            self.lie(shown.begin, "no since", row);
            return;
        };
        let last =
            outages[0].iter().rfind(|outage| outage.is_long() && outage.ended.1.saturating_add(LAG) < shown.begin);
        if let Some(last) = last.filter(|_| is_fine)
            && since + EXACT < last.ended.0
        {
            self.lie(shown.begin, "OK since before the end of an outage", &(last, row));
        }
        if let Some(current) = current[0]
            && since + EXACT < current.began.0
        {
            self.lie(shown.begin, "not OK since before the outage", &(current, row));
        }
    }
}

/// The verdict is what clients got.
fn trace(node: &Node<'_>, observed: &Observed, traced: &Traced, found: &mut Vec<String>) {
    let samples = observed.connections[&traced.from].get(&address(traced.number)).map_or(&[][..], Vec::as_slice);
    let (from, to) = (traced.begin.saturating_sub(800), traced.end + 700);
    let near: Vec<&Sample> = samples.iter().filter(|sample| sample.begin >= from && sample.end <= to).collect();
    let (ok, failed) =
        (near.iter().filter(|it| it.result.is_ok()).count(), near.iter().filter(|it| it.result.is_err()).count());
    if traced.answer["verdict"]["service"].as_str().is_some_and(|service| service != name(traced.number)) {
        return;
    }
    let verdict = traced.answer["verdict"]["verdict"].as_str().unwrap_or_default();
    // The maps alone do not tell which backends fail.
    let is_without_daemon = traced.answer["backends"][0]["state"].is_null();
    let is_last_resort = is_without_daemon || traced.answer["trace"].to_string().contains("last resort");
    let is_wrong = match verdict {
        "Forwarded" => ok == 0 && failed > 1 && !is_last_resort,
        _ => failed == 0 && ok > 1,
    };
    if is_wrong && !observed.is_stalled((from, to)) {
        let name = name(traced.number);
        let results: Vec<_> = near.iter().map(|sample| &sample.result).collect();
        let of_service = |(_, number, _): &&(u64, usize, Fault)| *number == traced.number;
        let done: Vec<_> = node.done.iter().filter(of_service).collect();
        found.push(format!(
            "trace of {name} from {:?} at {}: {verdict}, but {results:?}: {done:?}, dead {:?}: {}",
            traced.from, traced.begin, node.dead, traced.answer
        ));
    }
}
