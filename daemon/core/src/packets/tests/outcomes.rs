use proptest::prelude::*;

use super::*;
use crate::state::entries::Slot;

const WEB: ServiceId = ServiceId(1);
const A: BackendId = BackendId(10);
const B: BackendId = BackendId(11);

fn answered(number: u64) -> Outcomes {
    Outcomes { answered: number, ..Outcomes::default() }
}

fn unanswered(number: u64) -> Outcomes {
    Outcomes { unanswered: number, ..Outcomes::default() }
}

/// Intervals of ten seconds from the start of the clock.
struct Node {
    answers: Answers,
    now: Moment,
}

impl Node {
    fn new() -> Self {
        Self { answers: Answers::default(), now: Moment(0) }
    }

    fn pass(&mut self, outcomes: &[(BackendId, Outcomes)]) -> &mut Self {
        let begun = self.now;
        self.now = begun.plus(10_000);
        let outcomes: Vec<Outcome> = outcomes.iter().map(|(backend, outcomes)| (WEB, *backend, *outcomes)).collect();
        let entry = ServiceEntry::default();
        self.answers.take(&outcomes, begun, self.now, |_| Some(&entry));
        self
    }

    /// When the last connections that one of these backends accepted began, at the earliest.
    fn accepted(&self, backends: impl IntoIterator<Item = BackendId>) -> Option<Moment> {
        let slot = |backend| Slot { backend, addr: "192.0.2.1:80/TCP".parse().unwrap() };
        let entry = ServiceEntry { cluster: backends.into_iter().map(slot).collect(), ..ServiceEntry::default() };
        self.answers.accepted(|_| Some(&entry)).get(&WEB).copied()
    }

    /// Whether all are silent, and which, and the number of connections.
    fn silent(&self) -> Option<(bool, Vec<BackendId>, u64)> {
        let silent = self.answers.silent(WEB, Protocol::Tcp, [A, B])?;
        Some((silent.is_whole, silent.backends, silent.connections))
    }
}

#[test]
fn three_connections_without_an_answer_are_a_problem_of_the_service() {
    let mut node = Node::new();
    assert_eq!(node.pass(&[(A, unanswered(1))]).silent(), None);
    assert_eq!(node.pass(&[(B, unanswered(1))]).silent(), None);
    assert_eq!(node.pass(&[(A, unanswered(1))]).silent(), Some((true, vec![A, B], 3)));
    assert_eq!(node.answers.silent(WEB, Protocol::Tcp, [A, B]).map(|it| it.since), Some(Moment(10_000)));
    assert_eq!(node.pass(&[]).silent(), Some((true, vec![A, B], 3)), "no client has tried since");
    assert_eq!(node.pass(&[(B, answered(1))]).silent(), None, "one backend answers, the other has too few");
    assert_eq!(node.pass(&[(A, unanswered(1))]).silent(), Some((false, vec![A], 3)));
    assert_eq!(node.answers.silent(WEB, Protocol::Tcp, [A]).map(|it| it.is_whole), Some(true), "B is not its any more");
}

/// A connection from before the fault is no evidence (A1 of the operators' findings: `diagnose` was silent while an older
/// connection existed).
#[test]
fn what_was_answered_before_does_not_count() {
    let mut node = Node::new();
    node.pass(&[(A, answered(1_000)), (B, answered(1_000))]);
    assert_eq!(node.pass(&[(A, unanswered(2)), (B, unanswered(2))]).silent(), Some((true, vec![A, B], 4)));
    let mixed = Outcomes { answered: 1, unanswered: 500, ..Outcomes::default() };
    assert_eq!(node.pass(&[(A, mixed)]).silent(), None, "the last one may have been answered");
}

/// Clients were refused by every backend, and the status said "No problems found".
#[test]
fn a_refusal_by_the_backend_is_no_answer_that_a_client_wants() {
    let mut node = Node::new();
    let refused = |refused| Outcomes { refused, ..Outcomes::default() };
    let counts = |node: &Node| node.answers.silent(WEB, Protocol::Tcp, [A, B]).map(|it| (it.connections, it.refused));
    node.pass(&[(A, refused(2))]);
    assert_eq!(counts(&node), None);
    node.pass(&[(A, refused(1))]);
    assert_eq!((node.silent(), counts(&node)), (Some((true, vec![A], 3)), Some((3, 3))));
    node.pass(&[(B, unanswered(4))]);
    assert_eq!((node.silent(), counts(&node)), (Some((true, vec![A, B], 7)), Some((7, 3))));
    let some = Outcomes { answered: 1, refused: 9, unanswered: 0 };
    assert_eq!(node.pass(&[(A, some)]).silent(), Some((false, vec![B], 4)), "a server that is busy refuses some");
}

#[test]
fn what_no_client_has_tried_for_minutes_is_forgotten() {
    let mut node = Node::new();
    node.pass(&[(A, unanswered(5))]);
    for _ in 0..29 {
        assert!(node.pass(&[]).silent().is_some());
    }
    assert_eq!((node.pass(&[]).silent(), node.answers.services().count()), (None, 0));
    assert_eq!(node.answers.total(), unanswered(5));
}

#[test]
fn another_service_port_with_the_same_id_begins_again() {
    let mut node = Node::new();
    node.pass(&[(A, answered(1))]).pass(&[(A, unanswered(3))]);
    let entry = ServiceEntry::default();
    node.answers.take(&[], node.now, node.now, |service| (service != WEB).then_some(&entry));
    assert_eq!(node.silent(), None);
    node.pass(&[(A, unanswered(3))]);
    assert_eq!(node.answers.silent(WEB, Protocol::Udp, [A]), None, "what is known of UDP, too");
}

#[test]
fn udp_counts_where_it_was_answered_before() {
    let mut node = Node::new();
    let silent = |node: &Node| node.answers.silent(WEB, Protocol::Udp, [A]).map(|it| it.connections);
    node.pass(&[(A, unanswered(100))]);
    assert_eq!(silent(&node), None, "syslog");
    node.pass(&[(A, answered(1))]);
    assert_eq!(silent(node.pass(&[(A, unanswered(4))])), Some(4));
}

/// What a backend accepted before its checks failed does not contradict them.
#[test]
fn accepted_connections_count_from_the_beginning_of_their_interval() {
    let mut node = Node::new();
    assert_eq!(node.pass(&[(A, unanswered(1))]).accepted([A, B]), None);
    assert_eq!(node.pass(&[(B, answered(1))]).accepted([A, B]), Some(Moment(10_000)));
    assert_eq!(node.pass(&[(A, answered(1))]).accepted([A, B]), Some(Moment(20_000)), "the last ones");
    assert_eq!(node.accepted([B]), Some(Moment(10_000)), "A is not its any more");
    assert_eq!(node.pass(&[]).accepted([A, B]), Some(Moment(20_000)), "no client has tried since");
    assert_eq!(node.pass(&[(A, unanswered(1))]).accepted([A, B]), Some(Moment(10_000)));
    assert_eq!(node.pass(&[(B, unanswered(1))]).accepted([A, B]), None);
}

proptest! {
    /// The last connection to each backend decides, whatever was before: a backend is silent only if the last interval with
    /// connections to it had no answer but a refusal.
    #[test]
    fn silence_is_about_the_last_connections(
        intervals in prop::collection::vec(prop::collection::vec((0_u32..3, 0_u64..3, 0_u64..3, 0_u64..2), 0..3), 1..60)
    ) {
        let mut node = Node::new();
        let mut last: BTreeMap<BackendId, (u64, u64, usize)> = BTreeMap::new();
        for (number, interval) in intervals.iter().enumerate() {
            let mut outcomes: BTreeMap<BackendId, Outcomes> = BTreeMap::new();
            for (backend, answered, unanswered, refused) in interval {
                let added = Outcomes { answered: *answered, refused: *refused, unanswered: *unanswered };
                *outcomes.entry(BackendId(*backend)).or_default() += added;
            }
            outcomes.retain(|_, it| *it != Outcomes::default());
            for (backend, it) in &outcomes {
                let known = last.entry(*backend).or_default();
                known.0 = if it.answered > 0 { 0 } else { known.0 + it.unanswered + it.refused };
                (known.1, known.2) = (it.answered, number);
            }
            node.pass(&outcomes.into_iter().collect::<Vec<_>>());
            last.retain(|_, (.., at)| (number - *at) * 10_000 < usize::try_from(FORGOTTEN_AFTER).unwrap());
            let found = node.answers.silent(WEB, Protocol::Tcp, (0..3).map(BackendId));
            let silent: Vec<(BackendId, u64)> =
                last.iter().filter(|(_, it)| it.1 == 0).map(|(backend, it)| (*backend, it.0)).collect();
            let begun = |number: usize| Moment(u64::try_from(number).unwrap() * 10_000);
            let accepted = last.values().filter(|it| it.1 > 0).map(|it| begun(it.2)).max();
            prop_assert_eq!(node.accepted((0..3).map(BackendId)), accepted);
            let all: u64 = silent.iter().map(|(_, number)| number).sum();
            let is_whole = silent.len() == last.len() && all >= SILENT_FROM;
            let shown: Vec<BackendId> =
                silent.iter().filter(|(_, number)| is_whole || *number >= SILENT_FROM).map(|(it, _)| *it).collect();
            prop_assert_eq!(found.as_ref().map(|it| (it.is_whole, it.backends.clone())), (!shown.is_empty()).then_some((is_whole, shown)));
        }
    }
}
