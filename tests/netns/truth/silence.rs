//! Compares what clients outside the node got with the problems that the status showed.
//!
//! A client that fails has a problem with the name of its service, and a problem that clients get no answer has a client
//! that fails. Both are judged when the daemon has had to find out, which follows from what it promises and from its own
//! sweeps, never from the time alone: a slow machine makes nothing a lie.

use serde_json::Value;

use super::outside_clients::{Got, Sample};
use super::outside_kinds::{Done, Kind, State, is_excepted};

/// The daemon counts a connection three seconds after its SYN, in a sweep (every two to ten seconds). Its clock has whole
/// seconds.
const COUNTED_AFTER: u64 = 4_000;
/// The first sweep after this time may still count connections from before it, as many of its seconds are not yet over.
const ROUNDED: u64 = 2_000;
/// So many connections without an answer are a problem. With two backends, as all services have at most, one of them has them, or
/// neither answers.
const FAILURES: usize = 3;
/// So many connections have reached each of two backends.
const ANSWERS: usize = 15;
/// Connections that fail belong together if they begin within this time.
const GAP: u64 = 3_000;
/// On a slow machine, the daemon may read so late what has changed in a file or at an API server, and says what it serves until then.
const LATE: u64 = 60_000;
/// Around a time in which the machine stood still, nothing is compared.
const UNCLEAR: u64 = 1_500;

/// Problems that concern every client outside the node.
const OF_NODE: [&str; 4] = ["NodeWithoutAddress", "OutsideUntranslated", "PacketPathFailed", "DevicesFailed"];
/// Problems that say that clients outside get no answer.
const OF_CLIENTS: [&str; 3] = ["Unanswered", "NotForwarding", "NoOutsideBackend"];

/// What the daemon answered at one time.
#[derive(Default)]
pub(super) struct Seen {
    /// Before and after all of it, in milliseconds.
    pub(super) begin: u64,
    pub(super) end: u64,
    /// The duration of the last sweep, which no other sweep has, read before the problems.
    pub(super) sweep: Option<String>,
    /// `None` if there was no answer: then the command says that the daemon does not run.
    pub(super) problems: Option<Vec<Value>>,
}

/// A sweep: when it may have been at the earliest, and when it was over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swept {
    pub(super) after: u64,
    pub(super) until: u64,
}

/// The sweeps that can be seen in the answers.
pub(super) fn sweeps(seen: &[Seen]) -> Vec<Swept> {
    let differs = |pair: &&[Seen]| matches!((&pair[0].sweep, &pair[1].sweep), (Some(one), Some(other)) if one != other);
    seen.windows(2).filter(differs).map(|pair| Swept { after: pair[0].begin, until: pair[1].end }).collect()
}

/// From when on the daemon has counted so many of these connections, each in a sweep for which every connection began
/// after `from`.
fn counted(sweeps: &[Swept], from: u64, begun: &[u64], count: usize) -> Option<u64> {
    let mut later = sweeps.iter().skip_while(|sweep| sweep.after < from + COUNTED_AFTER);
    let first = later.next()?.until - ROUNDED;
    let is_enough = |sweep: &&Swept| {
        let counted = first..=sweep.after - COUNTED_AFTER;
        begun.iter().filter(|begin| counted.contains(begin)).count() >= count
    };
    later.find(is_enough).map(|sweep| sweep.until)
}

/// Whether the problem names the service or one of its addresses, or concerns all.
fn concerns(problem: &Value, kind: Kind) -> bool {
    let is_of_node = OF_NODE.iter().any(|reason| problem["reason"] == **reason);
    is_of_node || names(problem, kind)
}

fn names(problem: &Value, kind: Kind) -> bool {
    let is_object = |name: &str| problem["object"] == *name;
    let name = kind.name();
    let shares = problem["services"].as_array().is_some_and(|services| services.contains(&name.as_str().into()));
    is_object(&name)
        || shares
        || kind.addresses().iter().any(|address| is_object(&format!("{address}/{}", kind.protocol())))
}

/// What is compared.
pub(super) struct Compared<'a> {
    pub(super) got: &'a Got,
    pub(super) seen: &'a [Seen],
    pub(super) done: &'a [Done],
}

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) lies: Vec<String>,
    /// How often clients that fail, and clients that are answered, were compared with the status.
    pub(super) failing: usize,
    pub(super) answered: usize,
}

impl Compared<'_> {
    pub(super) fn find(&self) -> Found {
        let (mut found, sweeps) = (Found::default(), sweeps(self.seen));
        for kind in Kind::ALL {
            for seen in self.seen.iter().filter(|seen| !self.is_stalled(seen)) {
                self.look(kind, seen, &sweeps, &mut found);
            }
        }
        found
    }

    fn is_stalled(&self, seen: &Seen) -> bool {
        let (from, to) = (seen.begin.saturating_sub(UNCLEAR), seen.end + UNCLEAR);
        self.got.stalls.iter().any(|(begin, end)| *begin <= to && *end >= from)
    }

    fn look(&self, kind: Kind, seen: &Seen, sweeps: &[Swept], found: &mut Found) {
        let Some(problems) = &seen.problems else { return };
        let state = State::at(self.done, kind, seen.end);
        if state.until > seen.begin {
            return;
        }
        let addresses = kind.addresses();
        let samples = || addresses.iter().filter_map(|address| Some((address, self.got.samples.get(address)?)));
        let mut is_calm = samples().count() == addresses.len();
        for (address, samples) in samples() {
            let trouble = trouble(samples, seen);
            let first = trouble.first().copied().unwrap_or_default();
            let since = counted(sweeps, first.max(state.until), &trouble, FAILURES);
            if since.is_some_and(|since| since <= seen.begin) {
                found.failing += 1;
                let is_late = state.repaired > 0 && state.repaired + LATE > seen.begin;
                let is_said = problems.iter().any(|problem| concerns(problem, kind));
                let is_before = |it: &&Sample| it.begin > state.started && it.begin < first;
                let has_answered = samples.iter().filter(is_before).any(|sample| sample.failure.is_none());
                if !is_said && !is_excepted(kind, state, has_answered) {
                    self.lie("clients fail, and no problem names the service", (address, kind, seen), found);
                } else if !(state.explains(kind) || is_late && problems.iter().any(|it| names(it, kind))) {
                    self.lie("clients fail, though nothing is broken for them", (address, kind, seen), found);
                }
            }
            is_calm &= is_answered(samples, seen, state.until, sweeps);
        }
        let false_one = problems
            .iter()
            .find(|problem| OF_CLIENTS.iter().any(|reason| problem["reason"] == **reason) && names(problem, kind));
        found.answered += usize::from(is_calm);
        if is_calm && false_one.is_some() {
            self.lie("all clients are answered, but a problem says otherwise", (&addresses[0], kind, seen), found);
        }
    }

    /// The first of each kind counts.
    fn lie(&self, what: &str, (address, kind, seen): (&str, Kind, &Seen), found: &mut Found) {
        let prefix = format!("{} ({what})", kind.name());
        if found.lies.iter().any(|lie| lie.starts_with(&prefix)) {
            return;
        }
        let done: Vec<String> = self.done.iter().filter(|done| done.concerns(kind)).map(ToString::to_string).collect();
        let problems: Vec<String> = seen.problems.iter().flatten().map(shown).collect();
        let near = |sample: &&Sample| sample.begin + 8_000 > seen.begin && sample.begin < seen.end;
        let samples = self.got.samples.get(address).into_iter().flatten().filter(near);
        let samples: Vec<String> =
            samples.map(|sample| format!("{}: {}", sample.begin, sample.failure.as_deref().unwrap_or("ok"))).collect();
        found.lies.push(format!(
            "{prefix} at {} ms, {address}; done: {}; problems: {problems:?}; connections: {}",
            seen.begin,
            done.join(", "),
            samples.join(", ")
        ));
    }
}

fn shown(problem: &Value) -> String {
    let text = |column: &str| problem[column].as_str().unwrap_or_default().to_owned();
    format!("{} {} {}: {}", text("severity"), text("reason"), text("object"), text("cause"))
}

/// When the connections began that fail around this time, one after another; none if they do not fail before and after it.
fn trouble(samples: &[Sample], seen: &Seen) -> Vec<u64> {
    let mut run: Vec<u64> = Vec::new();
    for sample in samples.iter().filter(|sample| sample.failure.is_some()) {
        if run.last().is_some_and(|last| sample.begin > last + GAP) {
            if run.last().is_some_and(|last| *last >= seen.end) {
                break;
            }
            run.clear();
        }
        run.push(sample.begin);
    }
    let is_around =
        run.first().is_some_and(|first| *first <= seen.begin) && run.last().is_some_and(|it| *it >= seen.end);
    if is_around { run } else { Vec::new() }
}

/// Whether every connection has been answered for so long that the daemon has counted some to each backend.
fn is_answered(samples: &[Sample], seen: &Seen, from: u64, sweeps: &[Swept]) -> bool {
    let before = samples.iter().filter(|sample| sample.begin <= seen.end);
    let last_failure = before.filter(|sample| sample.failure.is_some()).map(|sample| sample.end).max();
    let from = from.max(last_failure.unwrap_or_default());
    let begun: Vec<u64> = samples.iter().map(|sample| sample.begin).filter(|begin| *begin > from).collect();
    counted(sweeps, from, &begun, ANSWERS).is_some_and(|since| since <= seen.begin)
}
