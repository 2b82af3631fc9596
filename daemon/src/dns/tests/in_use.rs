use nodelb_core::model::addr::Family;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::ServiceName;

use super::*;
use crate::dns::answer::{Answer, Records};
use crate::dns::due::Which;
use crate::dns::names::{Bounds, Reply};
use crate::files::named::{DnsName, Question};

const BOUNDS: Bounds = Bounds { min_ttl: 1_000, max_ttl: 60_000, hold: Some(5_000) };

fn named() -> Named {
    Named {
        slice: SliceName::new("shop", "dns:web"),
        service: ServiceName::new("shop", "web"),
        question: Question { name: DnsName::of_labels("web.example").unwrap(), record: RecordType::A },
        port: "".into(),
        protocols: vec![Protocol::Tcp],
        families: vec![Family::Ipv4],
        backend: Backend::new(Addr::UNSPECIFIED_V4, 80),
    }
}

fn used(addr: &str) -> Used {
    let backends = vec![UsedBackend { addr: addr.parse().unwrap(), port: 80, weight: 1 }];
    Used { backends, server: "s".into(), since: 7 }
}

/// A name with what was recalled, and its answers.
struct Rig {
    names: Names,
    in_use: InUse,
    now: Moment,
}

impl Rig {
    fn new(recalled: UsedBySlice, is_start: bool) -> Self {
        let mut names = Names::new(BOUNDS, 1, BTreeMap::new());
        let mut in_use = InUse::new(recalled);
        let wanted: Wanted = [(named().slice, Arc::new(named()))].into();
        in_use.follow(&wanted, is_start);
        names.follow(Arc::new(wanted), Moment(0));
        Self { names, in_use, now: Moment(0) }
    }

    fn answer(&mut self, answer: Answer) {
        self.now = Moment(self.now.0.max(self.names.next_due(Which::All).unwrap().0));
        let question = self.names.take_due(self.now, Which::All).unwrap();
        self.names.answer(&question, Reply::Answered("s".into(), answer), self.now, 9);
    }

    /// The backends of the port; `None` without the port.
    fn slice(&mut self, refused: &str) -> Option<Vec<String>> {
        let refused: Option<Addr> = refused.parse().ok();
        let settled =
            self.in_use.settle(&named(), &self.names, &|it| Some(it.addr) == refused, Reported::Overdue).unwrap();
        let port = settled.slice.ports.first()?;
        Some(port.backends.iter().map(|it| it.addr.to_string()).collect())
    }
}

fn records(addr: &str) -> Answer {
    Answer::Records(Records::Addresses(vec![addr.parse().unwrap()]), 5)
}

#[test]
fn an_answer_that_is_refused_replaces_nothing_that_is_in_use_or_stored() {
    let mut rig = Rig::new(UsedBySlice::new(), false);
    rig.answer(records("192.0.2.1"));
    assert_eq!(rig.slice(""), Some(vec!["192.0.2.1".into()]));
    rig.answer(records("198.51.100.1"));
    assert_eq!(rig.slice("198.51.100.1"), Some(vec!["192.0.2.1".into()]));
    let saved = rig.in_use.saved();
    assert_eq!(saved[&named().slice].backends, used("192.0.2.1").backends);
    // After a restart, before and after the same answer.
    let mut rig = Rig::new(saved, true);
    assert_eq!(rig.slice("198.51.100.1"), Some(vec!["192.0.2.1".into()]));
    rig.answer(records("198.51.100.1"));
    assert_eq!(rig.slice("198.51.100.1"), Some(vec!["192.0.2.1".into()]));
    // Until it is not refused any more.
    assert_eq!(rig.slice(""), Some(vec!["198.51.100.1".into()]));
}

#[test]
fn an_answer_of_an_earlier_run_replaces_nothing_that_was_in_use() {
    let question = named().question;
    let known = super::super::entry::Known {
        records: Records::Addresses(vec!["198.51.100.1".parse().unwrap()]),
        server: "s".into(),
        since: 3,
    };
    let mut rig = Rig::new([(named().slice, used("192.0.2.1"))].into(), true);
    rig.names = Names::new(BOUNDS, 1, [(question, known)].into());
    rig.names.follow(Arc::new([(named().slice, Arc::new(named()))].into()), Moment(0));
    assert_eq!(rig.slice(""), Some(vec!["192.0.2.1".into()]));
    rig.answer(Answer::Empty(Some(1)));
    assert_eq!(rig.slice(""), Some(vec!["192.0.2.1".into()]));
}

/// Once, the record "was changed" when dns.hold ended, and no screen had the moment.
#[test]
fn a_hold_names_its_end_and_its_end_is_the_cause() {
    let mut rig = Rig::new(UsedBySlice::new(), false);
    rig.answer(records("192.0.2.1"));
    rig.slice("");
    let settle = |rig: &mut Rig| rig.in_use.settle(&named(), &rig.names, &|_| false, Reported::Before).unwrap().slice;
    rig.answer(Answer::NoSuchName(Some(1)));
    let held = settle(&mut rig);
    let until = "; dns.hold keeps its last addresses until 1970-01-01T00:00:14Z";
    assert!(held.problem.as_ref().unwrap().ends_with(until), "{held:?}");
    assert_eq!(&*held.origin.object, "DNS A record of web.example");
    rig.answer(Answer::NoSuchName(Some(1)));
    assert_eq!(settle(&mut rig), held, "another answer changes nothing");
    (0..10).for_each(|_| rig.answer(Answer::NoSuchName(Some(1))));
    let ended = settle(&mut rig);
    assert_eq!(&*ended.origin.object, "the end of dns.hold (5s) of DNS A record of web.example");
    assert_eq!(ended.problem.as_deref(), Some("s answers that the name does not exist (NXDOMAIN)"));
}

#[test]
fn the_backends_of_a_name_that_had_none_since_the_start_are_unknown_until_the_hold_ends() {
    let mut rig = Rig::new(UsedBySlice::new(), true);
    assert_eq!(rig.slice(""), Some(Vec::new()), "no answer yet");
    rig.answer(Answer::NoSuchName(Some(1)));
    assert_eq!(rig.slice(""), Some(Vec::new()), "for the time of the hold");
    for _ in 0..10 {
        rig.answer(Answer::NoSuchName(Some(1)));
    }
    assert_eq!(rig.slice(""), None);
    // An answer without records is held for any time.
    let mut rig = Rig::new(UsedBySlice::new(), true);
    (0..50).for_each(|_| rig.answer(Answer::Empty(Some(60))));
    assert_eq!(rig.slice(""), Some(Vec::new()));
    // A name that is new has no backends in the maps.
    let mut rig = Rig::new(UsedBySlice::new(), false);
    rig.answer(Answer::Empty(Some(60)));
    assert_eq!(rig.slice(""), None);
}
