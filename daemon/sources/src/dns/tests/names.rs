use std::collections::BTreeMap;

use nodelb_core::model::addr::{Addr, Family, Protocol};
use nodelb_core::model::named::{DnsName, NameRecords, NamedAddress};
use nodelb_core::model::service::{Backend, ServiceName};
use proptest::prelude::*;

use super::*;
use crate::dns::answer::{Records, Target};
use crate::dns::entry::MAX_TARGETS;

const BOUNDS: Bounds = Bounds { min_ttl: 1_000, max_ttl: 60_000, hold: Some(300_000) };

fn question(name: &str, record: RecordType) -> Question {
    Question { name: DnsName::of_labels(name).unwrap(), record }
}

fn wanted(questions: &[Question]) -> Arc<Wanted> {
    let named = |question: &Question| {
        let slice = SliceName::new("shop", &question.to_string());
        let named = Named {
            slice: slice.clone(),
            service: ServiceName::new("shop", "web"),
            question: question.clone(),
            port: "".into(),
            protocols: vec![Protocol::Tcp],
            families: vec![Family::Ipv4],
            backend: Backend::new(Addr::UNSPECIFIED_V4, 80),
        };
        (slice, Arc::new(named))
    };
    Arc::new(questions.iter().map(named).collect())
}

/// A question that is due, which is open then.
fn due(names: &mut Names, now: Moment) -> Option<Question> {
    names.take_due(now).map(|(_, question)| question)
}

fn records(addresses: &[&str], ttl: Ttl) -> Reply {
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
    Reply::Answered("192.0.2.53:53".into(), Answer::Records(Records::Addresses(addresses), ttl))
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let ttl = any::<Option<u32>>();
    prop_oneof![
        (prop::collection::vec(1_u8..=250, 1..4), any::<u32>()).prop_map(|(hosts, ttl)| {
            let hosts: Vec<String> = hosts.into_iter().map(|host| format!("192.0.2.{host}")).collect();
            records(&hosts.iter().map(String::as_str).collect::<Vec<_>>(), ttl)
        }),
        Just(records(&["0.0.0.0", "127.0.0.1"], 5)),
        Just(Reply::Failed("192.0.2.53:53 answers SERVFAIL".into())),
        ttl.prop_map(|ttl| Reply::Answered("192.0.2.53:53".into(), Answer::Empty(ttl))),
        any::<Option<u32>>().prop_map(|ttl| Reply::Answered("192.0.2.53:53".into(), Answer::NoSuchName(ttl))),
    ]
}

proptest! {
    /// Only NXDOMAIN for the whole time of the hold takes the last records away; the next query is never earlier than
    /// the bounds permit, and never later; and there is always a next one.
    #[test]
    fn records_stay_and_times_are_within_the_bounds(
        replies in prop::collection::vec((any_reply(), 0_u64..400_000), 1..40),
        hold in prop_oneof![Just(None), (0_u64..400_000).prop_map(Some)],
    ) {
        let question = question("web.example", RecordType::A);
        let mut names = Names::new(Bounds { hold, ..BOUNDS }, 1);
        names.follow(wanted(std::slice::from_ref(&question)), Moment(0));
        let mut now = Moment(0);
        let mut gone_since: Option<Moment> = None;
        for (reply, wait) in replies {
            now = Moment(now.0.max(names.next_due().unwrap().0) + wait);
            prop_assert_eq!(due(&mut names, now), Some(question.clone()));
            let had = names.entry(&question).unwrap().known.clone();
            let is_gone = matches!(&reply, Reply::Answered(_, Answer::NoSuchName(_)));
            names.answer(&question, reply.clone(), now, 0);
            let entry = names.entry(&question).unwrap();
            match &reply {
                Reply::Answered(_, Answer::NoSuchName(_)) if had.is_some() => {
                    let since = *gone_since.get_or_insert(now);
                    let is_over = hold.is_some_and(|hold| now.0 - since.0 >= hold);
                    prop_assert_eq!(entry.known.is_none(), is_over);
                }
                Reply::Answered(_, Answer::Records(records, _)) if records.is_usable() => {
                    prop_assert_eq!(&entry.known.as_ref().unwrap().records, records);
                    prop_assert!(entry.problem.is_none());
                }
                _ => {
                    prop_assert_eq!(&entry.known, &had);
                    prop_assert!(entry.problem.is_some());
                }
            }
            if !is_gone && !matches!(reply, Reply::Failed(_)) || entry.known.is_none() {
                gone_since = None;
            }
            let pause = entry.due.0 - now.0;
            let longest = BOUNDS.max_ttl.max(MAX_PAUSE);
            prop_assert!((BOUNDS.min_ttl..=longest + longest / 10).contains(&pause), "{}", pause);
            if let Reply::Answered(_, Answer::Records(_, ttl)) = &reply
                && entry.problem.is_none()
            {
                let ttl = (u64::from(*ttl) * 1_000).clamp(BOUNDS.min_ttl, BOUNDS.max_ttl);
                prop_assert!((ttl..=ttl + ttl / 10).contains(&pause), "{} for {}", pause, ttl);
            }
        }
    }
}

/// Targets of one SRV answer: hosts, each with or without an address in the answer.
fn any_targets() -> impl Strategy<Value = Vec<Target>> {
    let target = (0_u8..4, any::<bool>()).prop_map(|(host, has_address)| Target {
        priority: 0,
        weight: 1,
        port: 80,
        name: DnsName::of_labels(&format!("host{host}.example")).unwrap(),
        addresses: if has_address { vec!["192.0.2.1".parse().unwrap()] } else { Vec::new() },
    });
    prop::collection::vec(target, 0..4)
}

proptest! {
    /// An SRV answer changes the questions about its own targets alone, to what all questions together would be.
    #[test]
    fn an_srv_answer_changes_its_own_targets(answers in prop::collection::vec((0_usize..3, any_targets()), 1..20)) {
        let questions = ["a", "b", "c"].map(|name| question(&format!("_http._tcp.{name}.example"), RecordType::Srv));
        let mut wanted = (*wanted(&questions)).clone();
        // Another slice with the first name, for both families.
        let first = wanted.values().next().unwrap();
        let both = Named {
            slice: SliceName::new("shop", "both"),
            families: vec![Family::Ipv4, Family::Ipv6],
            ..Named::clone(first)
        };
        wanted.insert(both.slice.clone(), Arc::new(both));
        let mut names = Names::new(BOUNDS, 1);
        names.follow(Arc::new(wanted), Moment(0));
        let state = |names: &Names| {
            let entries = names.entries().map(|(question, entry)| (question.clone(), entry.slices.clone()));
            (entries.collect::<Vec<_>>(), names.due.clone())
        };
        for (at, targets) in answers {
            let answer = Answer::Records(Records::Targets(targets), 5);
            names.answer(&questions[at], Reply::Answered("s".into(), answer), Moment(1), 0);
            let after = state(&names);
            names.rewire(Moment(1));
            prop_assert_eq!(after, state(&names));
        }
    }
}

/// The cost of an SRV answer does not depend on the number of names.
#[test]
fn many_srv_names_are_answered_soon() {
    let questions: Vec<Question> =
        (0..3_000).map(|name| question(&format!("_http._tcp.web{name}.example"), RecordType::Srv)).collect();
    let mut names = Names::new(BOUNDS, 1);
    names.follow(wanted(&questions), Moment(0));
    let began = std::time::Instant::now();
    while let Some(asked) = due(&mut names, Moment(0)) {
        let target = Target {
            priority: 0,
            weight: 1,
            port: 80,
            name: DnsName::of_labels(&format!("host.{}", asked.name)).unwrap(),
            addresses: Vec::new(),
        };
        let reply = match asked.record {
            RecordType::Srv => Reply::Answered("s".into(), Answer::Records(Records::Targets(vec![target]), 5)),
            _ => records(&["192.0.2.1"], 5),
        };
        assert!(names.answer(&asked, reply, Moment(0), 0));
    }
    assert_eq!(names.entries().count(), 2 * questions.len());
    // With a look at all names for each answer, this takes a minute.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn failures_are_repeated_with_growing_pauses() {
    let question = question("web.example", RecordType::A);
    let mut names = Names::new(BOUNDS, 1);
    names.follow(wanted(std::slice::from_ref(&question)), Moment(0));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let now = names.next_due().unwrap();
        assert!(due(&mut names, now).is_some());
        names.answer(&question, Reply::Failed("no".into()), now, 0);
        pauses.push((names.next_due().unwrap().0 - now.0) / 1_000);
    }
    for (pause, expected) in pauses.iter().zip([1, 2, 4, 8, 16, 30, 30, 30]) {
        assert!((expected..=expected + 3).contains(pause), "{pauses:?}");
    }
}

#[test]
fn the_targets_of_srv_records_are_asked_for_unless_the_answer_has_their_addresses() {
    let srv = question("_http._tcp.web.example", RecordType::Srv);
    let mut names = Names::new(BOUNDS, 1);
    names.follow(wanted(std::slice::from_ref(&srv)), Moment(0));
    assert_eq!(due(&mut names, Moment(0)), Some(srv.clone()));
    let target = |name: &str, addresses: Vec<Addr>| Target {
        priority: 0,
        weight: 1,
        port: 80,
        name: DnsName::of_labels(name).unwrap(),
        addresses,
    };
    let targets = vec![target("a.example", vec!["192.0.2.1".parse().unwrap()]), target("b.example", Vec::new())];
    let reply = Reply::Answered("s".into(), Answer::Records(Records::Targets(targets), 5));
    assert!(names.answer(&srv, reply, Moment(0), 0));
    assert_eq!(due(&mut names, Moment(0)), Some(question("b.example", RecordType::A)));
    assert_eq!(due(&mut names, Moment(0)), None);
    // A name that is not wanted any more is not asked for, with its targets.
    names.follow(Arc::default(), Moment(0));
    assert_eq!((names.next_due(), names.entries().count()), (None, 0));
    // An open question that has left the file.
    assert!(!names.answer(&question("b.example", RecordType::A), records(&["192.0.2.1"], 1), Moment(1), 0));
    assert_eq!(names.next_due(), None);
}

/// A server adds as many addresses of targets as it likes: those of the other family are asked for.
#[test]
fn the_other_family_of_a_target_is_asked_for() {
    let srv = question("_http._tcp.web.example", RecordType::Srv);
    let mut wanted = (*wanted(std::slice::from_ref(&srv))).clone();
    for named in wanted.values_mut() {
        *named = Arc::new(Named { families: vec![Family::Ipv4, Family::Ipv6], ..Named::clone(named) });
    }
    let mut names = Names::new(BOUNDS, 1);
    names.follow(Arc::new(wanted), Moment(0));
    assert_eq!(due(&mut names, Moment(0)), Some(srv.clone()));
    let target = Target {
        priority: 0,
        weight: 1,
        port: 80,
        name: DnsName::of_labels("a.example").unwrap(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
    };
    let reply = Reply::Answered("s".into(), Answer::Records(Records::Targets(vec![target]), 5));
    assert!(names.answer(&srv, reply, Moment(0), 0));
    assert_eq!(due(&mut names, Moment(0)), Some(question("a.example", RecordType::Aaaa)));
    assert_eq!(due(&mut names, Moment(0)), None);
}

/// Many ports of few hosts leave room for each host.
#[test]
fn the_limit_of_targets_counts_hosts() {
    let srv = question("_http._tcp.web.example", RecordType::Srv);
    let mut names = Names::new(BOUNDS, 1);
    names.follow(wanted(std::slice::from_ref(&srv)), Moment(0));
    assert_eq!(due(&mut names, Moment(0)), Some(srv.clone()));
    let target = |priority, port, name: &str| Target {
        priority,
        weight: 1,
        port,
        name: DnsName::of_labels(name).unwrap(),
        addresses: Vec::new(),
    };
    let ports = (1..=300).map(|port| target(0, port, "a.example"));
    let hosts = (0..300).map(|host| target(1, 80, &format!("b{host}.example")));
    let targets = Records::Targets(ports.chain(hosts).collect());
    assert!(names.answer(&srv, Reply::Answered("s".into(), Answer::Records(targets, 5)), Moment(0), 0));
    let asked: BTreeSet<Question> = std::iter::from_fn(|| due(&mut names, Moment(0))).collect();
    assert_eq!(asked.len(), MAX_TARGETS);
    assert!(asked.contains(&question("a.example", RecordType::A)));
    assert!(asked.contains(&question("b254.example", RecordType::A)));
}

#[test]
fn records_of_an_earlier_run_are_in_use_also_those_of_targets() {
    let srv = question("_http._tcp.web.example", RecordType::Srv);
    let target = Target {
        priority: 0,
        weight: 1,
        port: 80,
        name: DnsName::of_labels("b.example").unwrap(),
        addresses: Vec::new(),
    };
    let known = |records| Known { records, server: "s".into(), since: 7 };
    let of_target = question("b.example", RecordType::A);
    let recalled: BTreeMap<_, _> = [
        (srv.clone(), known(Records::Targets(vec![target]))),
        (of_target.clone(), known(Records::Addresses(vec!["192.0.2.1".parse().unwrap()]))),
    ]
    .into();
    let mut names = Names::new(BOUNDS, 1);
    names.recall(Saved { answers: recalled.clone(), ..Saved::default() }, Moment(0));
    names.follow(wanted(&[srv]), Moment(0));
    assert!(names.entry(&of_target).is_some_and(|entry| entry.known.is_some()));
    assert_eq!(names.saved(&Facts::default()).answers, recalled);
}

/// The problem names the end of the hold. A restart once moved it by the time that it took.
#[test]
fn a_hold_ends_when_it_was_said_also_after_a_restart() {
    let question = question("web.example", RecordType::A);
    let gone = || Reply::Answered("s".into(), Answer::NoSuchName(Some(5)));
    let problem = |names: &Names| names.entry(&question).unwrap().problem.as_deref().unwrap().to_owned();
    let mut names = Names::new(BOUNDS, 1);
    names.follow(wanted(std::slice::from_ref(&question)), Moment(0));
    assert!(names.answer(&question, records(&["192.0.2.1"], 5), Moment(0), 1_000));
    assert!(names.answer(&question, gone(), Moment(10_000), 1_010), "it is stored");
    assert!(!names.answer(&question, gone(), Moment(15_000), 1_015));
    let said = problem(&names);
    let restarted = |now: Moment| {
        let (mut next, stored) = (Names::new(BOUNDS, 1), names.saved(&Facts::default()));
        next.recall(stored.clone(), now);
        next.follow(wanted(std::slice::from_ref(&question)), now);
        assert_eq!(next.saved(&Facts::default()).answers, stored.answers);
        next
    };
    let mut next = restarted(Moment(200_000));
    assert_eq!(problem(&next), said, "before the first answer");
    next.answer(&question, gone(), Moment(200_500), 1_999);
    assert_eq!(problem(&next), said);
    next.answer(&question, Reply::Failed("no server answers".into()), Moment(300_000), 2_098);
    next.answer(&question, gone(), Moment(309_999), 2_099);
    assert!(!next.entry(&question).unwrap().is_gone);
    next.answer(&question, gone(), Moment(310_000), 2_100);
    assert!(next.entry(&question).unwrap().is_gone);

    // While the daemon was stopped, the name may have existed; nor has it been gone since a time to come.
    for now in [Moment(310_000), Moment(9_999)] {
        let mut late = restarted(now);
        assert!(late.entry(&question).unwrap().is_held(), "no address changes at the start");
        assert_eq!(Some(&*problem(&late)), said.split("; dns.hold").next(), "the end has passed");
        late.answer(&question, gone(), now.plus(1_000), 3_000);
        late.answer(&question, gone(), now.plus(300_999), 3_300);
        assert!(!late.entry(&question).unwrap().is_gone);
        late.answer(&question, gone(), now.plus(301_000), 3_301);
        assert!(late.entry(&question).unwrap().is_gone);
    }
    let mut back = restarted(Moment(200_000));
    assert!(back.answer(&question, records(&["192.0.2.1"], 5), Moment(200_001), 1_200));
    assert_eq!(back.saved(&Facts::default()).held, BTreeMap::new());
}

#[test]
fn a_question_that_returns_while_it_is_open_is_not_asked_twice_from_then_on() {
    let question = question("web.example", RecordType::A);
    let mut names = Names::new(BOUNDS, 1);
    names.follow(wanted(std::slice::from_ref(&question)), Moment(0));
    assert!(due(&mut names, Moment(0)).is_some());
    names.follow(Arc::default(), Moment(1));
    names.follow(wanted(std::slice::from_ref(&question)), Moment(2));
    assert!(due(&mut names, Moment(2)).is_some());
    for now in [Moment(3), Moment(4)] {
        names.answer(&question, records(&["192.0.2.1"], 5), now, 0);
    }
    assert!(due(&mut names, Moment(60_000)).is_some());
    assert_eq!(due(&mut names, Moment(60_000)), None);
}

/// An assertion in this module would end the daemon at each start.
#[test]
fn no_accepted_configuration_and_no_answer_ends_the_daemon() {
    let seconds = [1_u64, 2, 60, 3_599, 3_600, 3_601, 604_800];
    let ttls = [0, 1, 10, 3_600, i32::MAX as u32, u32::MAX];
    let question = question("web.example", RecordType::A);
    for (min, max) in seconds.iter().flat_map(|min| seconds.map(|max| (min * 1_000, max * 1_000))) {
        for hold in [None, Some(0), Some(1_000), Some(u64::MAX)] {
            let mut names = Names::new(Bounds { min_ttl: min, max_ttl: max, hold }, 1);
            names.follow(wanted(std::slice::from_ref(&question)), Moment(0));
            let server = || Arc::from("192.0.2.53:53");
            let negative = |ttl: u32| {
                [Answer::Empty(Some(ttl)), Answer::NoSuchName(Some(ttl)), Answer::NoSuchName(None)]
                    .map(|answer| Reply::Answered(server(), answer))
            };
            let failed = || Reply::Failed("192.0.2.53:53 answers SERVFAIL".into());
            let replies = ttls.into_iter().flat_map(|ttl| {
                let positive = [records(&["0.0.0.0"], ttl), records(&["192.0.2.1"], ttl), failed()];
                negative(ttl).into_iter().chain(positive).chain(negative(ttl))
            });
            for reply in replies {
                let now = names.next_due().unwrap();
                assert!(due(&mut names, now).is_some());
                names.answer(&question, reply, now, 0);
                let pause = names.next_due().unwrap().0 - now.0;
                assert!(pause >= min, "{pause} for {min} to {max}");
            }
        }
    }
}

/// A disk that hangs at the start: what has been answered since then is newer.
#[test]
fn what_is_recalled_late_does_not_replace_answers() {
    let all = ["answered.example", "failed.example", "gone.example", "open.example", "used.example", "left.example"];
    let [answered, failed, gone, open, used, left] = all.map(|name| question(name, RecordType::A));
    let asked = [&answered, &failed, &gone, &open, &used].map(Clone::clone);
    let mut names = Names::new(BOUNDS, 1);
    names.follow(wanted(&asked), Moment(0));
    names.answer(&answered, records(&["192.0.2.1"], 5), Moment(1), 1_000);
    for failed in [&failed, &used] {
        names.answer(failed, Reply::Failed("no server answers".into()), Moment(1), 1_000);
    }
    names.answer(&gone, Reply::Answered("s".into(), Answer::NoSuchName(Some(5))), Moment(70_000), 1_070);
    names.take_news();
    let addresses = |at: &str| Records::Addresses(vec![at.parse().unwrap()]);
    let old = |question: &Question| {
        (question.clone(), Known { records: addresses("192.0.2.9"), server: "old".into(), since: 7 })
    };
    let in_use = NameRecords {
        priorities: vec![vec![NamedAddress { addr: "192.0.2.8".parse().unwrap(), srv: None }]],
        server: "old".into(),
        since: 7,
        is_recalled: true,
    };
    let held = Held { problem: "from before".into(), gone_since: Some((Moment(60_000), 1_060)) };
    let saved = Saved {
        answers: [&answered, &failed, &gone, &open, &left].map(old).into(),
        used: [&answered, &used].map(|question| (question.clone(), in_use.clone())).into(),
        held: [&answered, &failed, &gone, &open].map(|question| (question.clone(), held.clone())).into(),
    };
    let mut changes = names.recall(saved, Moment(70_001));
    changes.extend(names.take_news());
    let mut sent = BTreeMap::new();
    for change in changes {
        let Change::Answer(question, Some(NameAnswer { records, problem, .. })) = change else { panic!("{change:?}") };
        let addresses = records.into_iter().flat_map(|it| it.priorities.concat()).map(|it| it.addr.to_string());
        sent.insert(
            question.name.to_string(),
            (addresses.collect::<String>(), problem.unwrap_or_default().to_string()),
        );
    }
    assert_eq!(sent.remove("gone.example").unwrap().0, "192.0.2.9");
    let sent: Vec<_> = sent.iter().map(|(name, (records, problem))| format!("{name} {records} {problem}")).collect();
    let expected = [
        "failed.example 192.0.2.9 no server answers",
        "left.example 192.0.2.9 ",
        "open.example 192.0.2.9 from before",
        "used.example 192.0.2.8 no server answers",
    ];
    assert_eq!(sent, expected);
    let stored = names.saved(&Facts::default());
    assert_eq!(stored.answers[&answered].records, addresses("192.0.2.1"));
    assert_eq!((stored.answers.len(), stored.used.len()), (5, 1));
    assert_eq!(stored.held[&gone].gone_since, held.gone_since, "the end of the hold does not move");
    names.forget_recalled();
    assert_eq!(names.saved(&Facts::default()).answers.get(&left), None);
    let withdrawn = names.take_news();
    assert!(matches!(&withdrawn[..], [Change::Answer(question, None)] if *question == left), "{withdrawn:?}");
}
