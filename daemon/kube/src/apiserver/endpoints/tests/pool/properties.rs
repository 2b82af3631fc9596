//! Properties of random histories: no event empties the pool, changes configured addresses or causes frequent switches,
//! and nodelb finds an address that works.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Wait(u64),
    /// Connects to the address that the pool chooses; contains whether this succeeds.
    Connect(bool),
    Note(u8, Kind),
    Probed(u8, Kind),
    Close,
    Doubt,
    Learn(BTreeSet<u8>),
    Remember(u8),
    Refuse(u8),
    DemoteLearned,
    ForgetStale,
    RetryRefused,
    FailSession,
    Denied,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Worked,
    NotReady,
    Busy,
    Unavailable,
    Unproven,
    Failed,
    Refused,
}

impl Kind {
    fn outcome(self) -> Outcome {
        match self {
            Self::Worked => Outcome::Worked,
            Self::NotReady => Outcome::NotReady("503".into(), 0),
            Self::Busy => Outcome::NotReady("429".into(), 3_000),
            Self::Unavailable => Outcome::NotReady("503".into(), TIMEOUTS.retry_most),
            Self::Unproven => Outcome::Unproven("403".into()),
            Self::Failed => failed("no route"),
            Self::Refused => Outcome::Refused("403".into()),
        }
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Worked),
        Just(Kind::NotReady),
        Just(Kind::Busy),
        Just(Kind::Unavailable),
        Just(Kind::Unproven),
        Just(Kind::Failed),
        Just(Kind::Refused)
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let n = 1..12u8;
    prop_oneof![
        4 => (0..100_000u64).prop_map(Event::Wait),
        6 => any::<bool>().prop_map(Event::Connect),
        2 => (n.clone(), kind()).prop_map(|(n, kind)| Event::Note(n, kind)),
        6 => (n.clone(), kind()).prop_map(|(n, kind)| Event::Probed(n, kind)),
        2 => Just(Event::Close),
        1 => Just(Event::Doubt),
        2 => proptest::collection::btree_set(n.clone(), 0..6).prop_map(Event::Learn),
        1 => n.clone().prop_map(Event::Remember),
        1 => n.prop_map(Event::Refuse),
        1 => Just(Event::DemoteLearned),
        1 => Just(Event::FailSession),
        1 => Just(Event::Denied),
        1 => Just(Event::ForgetStale),
        1 => Just(Event::RetryRefused),
    ]
}

struct World {
    pool: Pool,
    now: Moment,
    /// The times when another address was chosen although the one in use worked.
    voluntary: Vec<Moment>,
}

impl World {
    fn new() -> Self {
        Self { pool: pool(&[1, 2, 3]), now: Moment(0), voluntary: Vec::new() }
    }

    fn connect(&mut self, works: bool) {
        let Some(Choice { server, why }) = self.pool.next(self.now) else { return };
        assert!(!why.is_empty());
        assert!(self.pool.find(&server.address).is_some(), "{} is no candidate", server.address);
        assert_ne!(self.pool.in_use(), Some(&server.address));
        self.pool.connecting(self.now, &server.address);
        if works {
            let left = self.pool.in_use().cloned();
            let was_good = left.and_then(|left| self.pool.find(&left).map(|left| !left.is_unready() && !left.is_out()));
            self.pool.opened(self.now, &server.address);
            if was_good == Some(true) {
                self.voluntary.push(self.now);
            }
        } else {
            self.pool.note(self.now, &server.address, failed("refused"));
        }
    }

    fn take(&mut self, event: Event) {
        let Self { pool, now, .. } = self;
        match event {
            Event::Wait(millis) => *now = now.plus(millis),
            Event::Connect(works) => self.connect(works),
            Event::Note(n, kind) => pool.note(*now, &address(n), kind.outcome()),
            Event::Probed(n, kind) => {
                pool.probes(*now);
                pool.probed(*now, &address(n), kind.outcome());
            }
            Event::Close => pool.closed(*now, "reset"),
            Event::Doubt => pool.doubt(*now),
            Event::Learn(listed) => drop(pool.learn(&listed.into_iter().map(socket).collect(), *now)),
            Event::Remember(n) => pool.remember([RememberedServer { server: server(n), worked: 1 }], *now),
            Event::Refuse(n) => drop(pool.forget_refused(|at| at == socket(n))),
            Event::DemoteLearned => pool.demote_learned(),
            Event::FailSession => pool.fail_session(*now, "500".into()),
            Event::Denied => pool.denied(*now, "403".into()),
            Event::ForgetStale => drop(pool.forget_stale(*now)),
            Event::RetryRefused => pool.retry_refused(*now),
        }
        if let Some(error) = self.pool.lost() {
            self.pool.closed(self.now, &error);
        }
    }

    fn check(&self) {
        let configured = self.pool.candidates().iter().filter(|candidate| candidate.origin == Origin::Configured);
        let configured: Vec<_> = configured.map(|candidate| candidate.server.clone()).collect();
        assert_eq!(configured, [server(1), server(2), server(3)]);
        let candidates = self.pool.candidates();
        let addresses: BTreeSet<_> = candidates.iter().map(|candidate| &candidate.server.address).collect();
        assert_eq!(addresses.len(), candidates.len(), "an address twice");
        assert!(candidates.is_sorted_by_key(|candidate| (candidate.origin, candidate.order)));
        assert!(self.pool.in_use().is_none_or(|in_use| self.pool.find(in_use).is_some()));
        assert!(self.pool.wake(self.now).is_none_or(|wake| self.now < wake));
        let report = PoolReport { pool: Some(self.pool.clone()), ..PoolReport::default() };
        assert!(report.rows(self.now, 0).iter().all(|row| !row.why.is_empty()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nothing_empties_the_pool_or_makes_it_flap(events in proptest::collection::vec(event(), 0..120)) {
        let mut world = World::new();
        for event in events {
            world.take(event);
            world.check();
        }
        for pair in world.voluntary.windows(2) {
            prop_assert!(pair[0].plus(TIMEOUTS.min_uptime) <= pair[1], "{:?}", world.voluntary);
        }
    }

    #[test]
    fn whatever_works_is_found(events in proptest::collection::vec(event(), 0..60), works in 0..12usize) {
        let mut world = World::new();
        events.into_iter().for_each(|event| world.take(event));
        // From now on exactly one of the known addresses works.
        let World { mut pool, mut now, .. } = world;
        if let Some(in_use) = pool.in_use().cloned() {
            pool.note(now, &in_use, failed("refused"));
            pool.closed(now, "refused");
        }
        let working = pool.candidates()[works % pool.candidates().len()].server.address.clone();
        let mut steps = 0;
        while pool.in_use().is_none() {
            steps += 1;
            prop_assert!(steps < 1_000, "{working} is never tried: {pool:#?}");
            match pool.next(now) {
                Some(Choice { server, .. }) => {
                    pool.connecting(now, &server.address);
                    now = now.plus(2_000);
                    if server.address == working {
                        pool.opened(now, &server.address);
                    } else {
                        pool.note(now, &server.address, failed("no answer"));
                    }
                }
                None => now = pool.wake(now).expect("something to wait for"),
            }
        }
    }
}

/// Simulates an apiserver that restarts: it is unreachable, then refuses all requests, then works. Returns the time
/// between its recovery and its use in milliseconds.
fn restart(pool: &mut Pool, begun: Moment, away: u64, refuses: u64, refusal: Kind) -> u64 {
    let (answers, works) = (begun.plus(away), begun.plus(away + refuses));
    let mut now = begun;
    while pool.in_use().is_none() {
        let Some(Choice { server, .. }) = pool.next(now) else {
            now = pool.wake(now).expect("something to wait for");
            continue;
        };
        pool.connecting(now, &server.address);
        match now {
            _ if works <= now => pool.opened(now, &server.address),
            _ if answers <= now => pool.note(now, &server.address, refusal.outcome()),
            _ => pool.note(now, &server.address, failed("connection refused")),
        }
    }
    now.0 - works.0
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_only_apiserver_is_in_use_within_five_seconds_of_a_restart(
        seed in any::<u64>(),
        restarts in proptest::collection::vec((0..120_000u64, 0..90_000u64, 0..30_000u64, kind()), 1..6),
    ) {
        let mut pool = Pool::new(&[server(1)], TIMEOUTS, seed, Moment(0));
        let mut now = Moment(0);
        pool.opened(now, &address(1));
        for (lasted, away, refuses, refusal) in restarts {
            let refusal = if matches!(refusal, Kind::Worked) { Kind::Refused } else { refusal };
            now = now.plus(lasted);
            pool.closed(now, "reset");
            let waited = restart(&mut pool, now, away, refuses, refusal);
            prop_assert!(waited <= 5_000, "{waited} ms after {away} ms away and {refuses} ms of {refusal:?}");
            now = now.plus(away + refuses + waited);
        }
    }
}
