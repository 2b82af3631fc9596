//! The services of each sequence: what happens to the first one, what must follow for it, and that nothing follows for
//! the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::steps::{Expected, Form, Says, Stored};

/// The time of `dns.hold`.
pub(super) const HOLD: Duration = Duration::from_secs(3);
/// Within it, a change is in the state directory.
const STORED_WITHIN: Duration = Duration::from_secs(6);
/// A daemon that is stopped may not have received an answer that was sent so long before its end.
const RECEIVED_WITHIN: Duration = Duration::from_secs(1);

const B_BACKEND: &str = "192.0.2.9:8080/TCP";
const C_BACKEND: &str = "192.0.2.19:80/TCP";

/// What is wrong, and the sequence.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    pub(super) sequence: usize,
    pub(super) why: String,
}

/// What the daemon shows.
pub(super) struct Found {
    /// The backends of each address in the maps.
    pub(super) maps: BTreeMap<String, BTreeSet<String>>,
    /// The addresses that have the status OK.
    pub(super) ok: BTreeSet<String>,
}

pub(super) struct Pair {
    pub(super) form: Form,
    pub(super) says: Says,
    pub(super) expected: Expected,
    /// The backends that were expected before in the maps and in names.json, each with the time when that ended.
    former: Vec<(Instant, Option<String>)>,
    /// The backends that it may still have until it has the expected one.
    may_have: BTreeSet<String>,
    /// Whether it may have any backend of its name until then.
    is_free: bool,
    /// Whether it may be absent until then.
    may_be_absent: bool,
    /// Whether it had the expected backend at the last look.
    is_right: bool,
    /// Whether it has had the expected backend since the start of the daemon.
    was_right: bool,
    is_file_broken: bool,
    /// Whether the file has a health check, which fails.
    pub(super) is_checked: bool,
    /// Whether it had one since the start of the daemon, or before it and the maps still show it.
    was_checked: bool,
    /// Whether the daemon could not read the file since its start.
    is_broken: bool,
    /// Whether the other services have had their backends, the one with a name first.
    are_there: [bool; 2],
    /// Whether they have had the status OK since then.
    are_ok: [bool; 2],
}

pub(super) fn frontend_of_a(number: usize) -> String {
    format!("10.96.1.{number}:80")
}

pub(super) fn frontend_of_b(number: usize) -> String {
    format!("10.96.2.{number}:8080")
}

pub(super) fn frontend_of_d(number: usize) -> String {
    format!("10.96.3.{number}:80")
}

/// The clock of the times in names.json.
fn millis_since_boot() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000 + now.tv_nsec / 1_000_000).unwrap_or_default()
}

impl Pair {
    fn new(form: Form) -> Self {
        Self {
            form,
            says: Says::Usable(1),
            expected: Expected::default(),
            former: Vec::new(),
            may_have: BTreeSet::new(),
            is_free: true,
            may_be_absent: true,
            is_right: false,
            was_right: false,
            is_file_broken: false,
            is_checked: false,
            was_checked: false,
            is_broken: false,
            are_there: [false; 2],
            are_ok: [false; 2],
        }
    }

    /// Notes that the file cannot be read any more. A daemon that has just started may not have read it before.
    pub(super) fn break_file(&mut self) {
        self.is_file_broken = true;
        self.is_broken |= !self.was_right;
    }

    /// Compares the maps with what must be.
    fn check(&mut self, number: usize, found: &Found) -> Result<(), String> {
        let backends = |address: &str| found.maps.get(&format!("{address}/TCP"));
        let others = [(frontend_of_b(number), B_BACKEND), (format!("198.51.100.{number}:80"), C_BACKEND)];
        for (((address, to), is_there), was_ok) in others.iter().zip(&mut self.are_there).zip(&mut self.are_ok) {
            match backends(address) {
                Some(it) if *it == [(*to).to_owned()].into() => {
                    let is_ok = found.ok.contains(&format!("{address}/TCP"));
                    if *was_ok && !is_ok {
                        return Err(format!("{address} is not OK any more"));
                    }
                    (*is_there, *was_ok) = (true, is_ok);
                }
                None if !*is_there => {}
                Some(it) if !*is_there && it.is_empty() => {}
                it => return Err(format!("{address} leads to {it:?}, not to {to}")),
            }
        }
        let address = frontend_of_a(number);
        let its = backends(&address);
        let expected = self.expected.backend.as_ref();
        self.is_right = expected.is_some_and(|expected| its == Some(&[format!("{expected}/TCP")].into()));
        if self.is_right {
            self.was_right = true;
            self.may_have.clear();
            (self.is_free, self.may_be_absent) = (false, false);
            return Ok(());
        }
        let is_of_name = |it: &String| it.starts_with("192.0.2.") && it.ends_with(":8080/TCP");
        // A backend that failed its check and has none any more is used next to the one of the time before the start.
        let returns =
            |it: &String| self.was_checked && expected.is_some_and(|expected| *it == format!("{expected}/TCP"));
        let is_former = |it: &BTreeSet<String>| {
            it.iter().filter(|it| !returns(it)).count() == 1
                && it.iter().all(|it| self.may_have.contains(it) || returns(it))
        };
        let is_possible = match its {
            Some(its) if its.iter().any(|it| !is_of_name(it)) => false,
            _ if self.is_free || expected.is_none() => true,
            None => self.may_be_absent,
            Some(its) => is_former(its) || its.is_empty() && self.may_be_absent,
        };
        let former = &self.may_have;
        if is_possible { Ok(()) } else { Err(format!("{address} leads to {its:?}, not to {expected:?} or {former:?}")) }
    }

    /// Whether nothing more is to follow. What the maps had before the start stays until the daemon has read the file.
    fn is_settled(&self) -> bool {
        let is_kept = self.is_broken && (self.may_be_absent || !self.may_have.is_empty());
        let is_settled = self.is_right || self.expected.backend.is_none() || is_kept;
        is_settled && self.are_ok == [true; 2]
    }

    /// Notes that the daemon has ended, with this backend of the service in names.json, which is damaged next. `gone_since`
    /// is what the file has then: a daemon that is killed may not have stored that the name exists again.
    fn end(
        &mut self,
        (in_file, gone_since): (Option<String>, Option<u64>),
        (stored, is_killed): (Stored, bool),
        keeps_maps: bool,
    ) -> Result<(), String> {
        let expected = self.expected.backend.clone();
        let within = if is_killed { STORED_WITHIN } else { RECEIVED_WITHIN };
        let is_recent = |(until, _): &&(Instant, _)| until.elapsed() < within;
        let recent: Vec<&Option<String>> = self.former.iter().filter(is_recent).map(|(_, it)| it).collect();
        let is_possible =
            in_file == expected || !self.is_right || recent.iter().any(|it| it.is_none() || **it == in_file);
        if self.expected.is_stored && !is_possible {
            return Err(format!("names.json has {in_file:?}, not {expected:?}"));
        }
        if stored == Stored::Kept && keeps_maps && self.is_right {
            self.expected.is_stored = in_file == expected;
        } else if stored == Stored::Kept && in_file.is_some() && !self.form.has_many() {
            self.is_free |= expected.is_none();
            self.may_have.extend(expected.filter(|it| in_file.as_ref() != Some(it)).map(|it| format!("{it}/TCP")));
            (self.expected.backend, self.expected.is_stored) = (in_file, true);
        } else {
            self.expected.is_stored = false;
        }
        self.expected.gone_since = gone_since;
        Ok(())
    }

    pub(super) fn set_check(&mut self, is_checked: bool) {
        self.is_checked = is_checked;
        self.was_checked |= is_checked;
    }

    /// Notes that the file can be read again.
    pub(super) fn repair_file(&mut self) {
        (self.is_file_broken, self.is_broken) = (false, false);
    }

    /// Whether the daemon may not know which services the file has.
    pub(super) fn is_unreadable(&self) -> bool {
        self.is_file_broken || self.is_broken
    }

    /// Notes that a daemon starts, with or without the maps of the last one.
    fn begin(&mut self, has_maps: bool) {
        let is_known = self.expected.is_stored || has_maps && self.is_right;
        if !is_known {
            self.expected.backend = None;
            self.is_free = true;
        }
        self.may_be_absent |= !has_maps;
        self.are_there = self.are_there.map(|it| it && has_maps);
        self.are_ok = [false; 2];
        self.was_checked &= has_maps && !self.is_right;
        self.was_checked |= self.is_checked;
        (self.is_right, self.was_right, self.is_broken) = (false, false, self.is_file_broken);
    }
}

/// All sequences of a run.
pub(super) struct Pairs {
    pub(super) all: Vec<Pair>,
    /// Whether the run has ended.
    pub(super) is_over: bool,
    /// The number of looks at the maps.
    pub(super) looks: u64,
    /// The number of starts of the daemon. What was read before the last one says nothing about it.
    pub(super) starts: u32,
    /// Whether the removed services have disappeared.
    pub(super) has_removed: bool,
    pub(super) wrong: Option<Wrong>,
    /// Whether an answer took too long.
    pub(super) has_stalled: bool,
}

impl Pairs {
    pub(super) fn new(forms: &[Form]) -> Self {
        let all = forms.iter().map(|form| Pair::new(*form)).collect();
        Self { all, is_over: false, looks: 0, starts: 0, has_removed: false, wrong: None, has_stalled: false }
    }

    /// The number of targets of the SRV records of a sequence.
    pub(super) fn targets(&self, number: usize) -> u8 {
        match self.all[number].form {
            Form::Srv(count) => count,
            Form::Address => 0,
        }
    }

    /// What a server answers to a query of the name of a sequence, and what follows from that.
    pub(super) fn asked(&mut self, number: usize, (is_first, is_srv): (bool, bool)) -> Says {
        let now = millis_since_boot();
        let pair = &mut self.all[number];
        let says = if is_first || pair.says == Says::Nothing { pair.says } else { Says::NoSuchName };
        if matches!(says, Says::Silence | Says::Nothing | Says::Error) {
            return says;
        }
        let (before, was_stored) = (pair.expected.backend.clone(), pair.expected.is_stored);
        // The daemon measures the time between arrivals.
        let hold = u64::try_from(HOLD.as_millis()).unwrap_or(u64::MAX) - 200;
        pair.expected.receive(says, (pair.form, is_srv), (hold, now));
        if pair.expected.is_stored && !was_stored {
            pair.former.push((Instant::now(), None));
        }
        if before != pair.expected.backend {
            pair.former.push((Instant::now(), before.clone()));
            pair.is_right = false;
            match before {
                Some(before) => drop(pair.may_have.insert(format!("{before}/TCP"))),
                None => pair.is_free = true,
            }
        }
        says
    }

    fn each(&mut self, mut check: impl FnMut(usize, &mut Pair) -> Result<(), String>) {
        for (sequence, pair) in self.all.iter_mut().enumerate() {
            if let Err(why) = check(sequence, pair) {
                self.wrong.get_or_insert(Wrong { sequence, why });
            }
        }
    }

    /// Takes the content of the maps.
    pub(super) fn look(&mut self, found: &Found) {
        self.each(|number, pair| pair.check(number, found));
        let is_there = |number| found.maps.contains_key(&format!("{}/TCP", frontend_of_d(number)));
        self.has_removed = !(0..self.all.len()).any(is_there);
        self.looks += 1;
    }

    /// The daemon has ended. `in_file` is what names.json had, `stored` what has happened to it since, and whether the daemon
    /// was killed, and `gone` since when the names do not exist that it has now.
    pub(super) fn end(
        &mut self,
        (in_file, gone): (&BTreeMap<usize, String>, &BTreeMap<usize, u64>),
        stored: (Stored, bool),
        keeps_maps: bool,
    ) {
        self.each(|number, pair| {
            pair.end((in_file.get(&number).cloned(), gone.get(&number).copied()), stored, keeps_maps)
        });
    }

    pub(super) fn begin(&mut self, has_maps: bool) {
        self.starts += 1;
        self.all.iter_mut().for_each(|pair| pair.begin(has_maps));
    }

    /// What is not as it must be at the end of a wait.
    pub(super) fn unsettled(&self) -> Option<Wrong> {
        let (sequence, pair) = self.all.iter().enumerate().find(|(_, pair)| !pair.is_settled())?;
        let why = format!("{:?} has not followed, or another service is not OK: {:?}", pair.expected, pair.are_ok);
        Some(Wrong { sequence, why })
    }
}
