#[path = "pool/properties.rs"]
mod properties;

use std::time::Duration;

use super::*;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::endpoints::preflight::outcome_of;

pub(super) const TIMEOUTS: PoolTimeouts = PoolTimeouts::DEFAULT;

pub(super) fn socket(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 6443))
}

pub(super) fn address(n: u8) -> Address {
    socket(n).into()
}

pub(super) fn server(n: u8) -> Server {
    Server { address: address(n), tls_server_name: None }
}

pub(super) fn pool(configured: &[u8]) -> Pool {
    let servers: Vec<_> = configured.iter().copied().map(server).collect();
    Pool::new(&servers, TIMEOUTS, 7, Moment(0))
}

fn chosen(pool: &Pool, now: Moment) -> Option<Address> {
    pool.next(now).map(|choice| choice.server.address)
}

fn failed(error: &str) -> Outcome {
    Outcome::Failed(error.into())
}

fn status(pool: &Pool, n: u8, now: Moment) -> ServerStatus {
    pool.find(&address(n)).unwrap().status(now, &TIMEOUTS)
}

fn why(pool: &Pool, n: u8, now: Moment) -> String {
    let report = PoolReport { pool: Some(pool.clone()), ..PoolReport::default() };
    report.rows(now, 0).into_iter().find(|row| row.address == address(n)).unwrap().why
}

fn connect(pool: &mut Pool, now: Moment) -> Address {
    let address = chosen(pool, now).expect("something to connect");
    pool.connecting(now, &address);
    address
}

#[test]
fn the_first_configured_address_is_used_and_nothing_else_is_tried() {
    let mut pool = pool(&[1, 2, 1]);
    assert_eq!(pool.candidates().len(), 2);
    assert_eq!(connect(&mut pool, Moment(0)), address(1));
    assert_eq!(pool.next(Moment(100)), None);
    pool.opened(Moment(100), &address(1));
    assert_eq!(pool.next(Moment(200)), None);
    assert_eq!(pool.in_use(), Some(&address(1)));
    assert_eq!(why(&pool, 1, Moment(200)), "it is the preferred one");
    assert_eq!(why(&pool, 2, Moment(200)), "not needed yet");
}

#[test]
fn a_failure_leads_to_the_next_at_once_and_to_the_first_again_later() {
    let mut pool = pool(&[1, 2]);
    connect(&mut pool, Moment(0));
    pool.note(Moment(10), &address(1), failed("connection refused"));
    assert_eq!(connect(&mut pool, Moment(10)), address(2));
    pool.opened(Moment(20), &address(2));
    let reason = "192.0.2.1:6443, which is preferred, failed 12 s ago: connection refused";
    assert_eq!(why(&pool, 2, Moment(12_010)), reason);
    let mut other = pool.clone();
    other.note(Moment(12_010), &address(1), failed(&"x".repeat(100)));
    assert_eq!(why(&other, 2, Moment(12_010)), "192.0.2.1:6443, which is preferred, failed 0.0 s ago: see Error");

    // It works again, and must do so for the min_uptime time.
    let up = Moment(13_000);
    pool.probed(up, &address(1), Outcome::Worked);
    assert_eq!(status(&pool, 1, up), ServerStatus::Recovering);
    assert_eq!(pool.next(up.plus(29_999)), None);
    assert_eq!(why(&pool, 1, up.plus(10_000)), "preferred; used again in 20 s if it keeps working");
    assert_eq!(status(&pool, 1, up.plus(30_000)), ServerStatus::Healthy);
    assert_eq!(connect(&mut pool, up.plus(30_000)), address(1));
    pool.opened(up.plus(30_100), &address(1));
    assert_eq!(pool.in_use(), Some(&address(1)));
    let mut report = PoolReport { pool: Some(pool), ..PoolReport::default() };
    assert_eq!((report.switches(), report.without_server_since()), (1, None));
    let lost = up.plus(60_000);
    report.pool.as_mut().unwrap().closed(lost, "reset by the server");
    assert_eq!(report.without_server_since(), Some(lost));
}

#[test]
fn a_relapse_starts_the_minimum_uptime_again() {
    let mut pool = pool(&[1, 2]);
    pool.note(Moment(0), &address(1), failed("refused"));
    pool.opened(Moment(0), &address(2));
    for second in [1, 20, 40, 60] {
        pool.probed(Moment(second * 1_000), &address(1), Outcome::Worked);
        pool.probed(Moment(second * 1_000 + 500), &address(1), failed("refused"));
        assert_eq!(pool.next(Moment(second * 1_000 + 600)), None);
    }
    pool.probed(Moment(61_000), &address(1), Outcome::Worked);
    assert_eq!(pool.next(Moment(90_999)), None);
    assert_eq!(chosen(&pool, Moment(91_000)), Some(address(1)));
}

/// For how many seconds the first server has to work before it is used again, each time after `fails` has ended the use of
/// the first one.
fn waits_to_return(times: usize, fails: impl Fn(&mut Pool, Moment)) -> Vec<u64> {
    let mut pool = pool(&[1, 2]);
    let (mut now, mut waits) = (Moment(0), Vec::new());
    for _ in 0..times {
        pool.opened(now, &address(1));
        now = now.plus(5_000);
        fails(&mut pool, now);
        pool.opened(now, &address(2));
        let up = now;
        pool.probed(now, &address(1), Outcome::Worked);
        while pool.next(now).is_none() {
            now = now.plus(1_000);
        }
        waits.push((now.0 - up.0) / 1_000);
    }
    waits
}

#[test]
fn a_server_has_to_work_for_longer_each_time_that_its_session_breaks() {
    let waits = waits_to_return(4, |pool, now| {
        pool.note(now, &address(1), failed("reset"));
        pool.closed(now, "reset");
    });
    assert_eq!(waits, [30, 60, 120, 240]);
}

#[test]
fn a_server_has_to_work_for_longer_each_time_that_its_requests_keep_failing() {
    let waits = waits_to_return(3, |pool, now| {
        pool.fail_session(now, "3 requests in a row failed".into());
        pool.fail_session(now, "3 more requests in a row failed".into());
        assert_eq!(connect(pool, now), address(2));
    });
    assert_eq!(waits, [30, 60, 120]);
}

#[test]
fn a_server_that_denied_a_permission_is_avoided_for_long_unless_the_other_one_denies_it_too() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    pool.denied(Moment(5_000), "may not watch".into());
    assert_eq!(connect(&mut pool, Moment(5_000)), address(2));
    pool.opened(Moment(5_000), &address(2));
    pool.probed(Moment(6_000), &address(1), Outcome::Worked);
    assert_eq!(pool.next(Moment(100_000)), None);
    assert_eq!(why(&pool, 1, Moment(100_000)), "preferred; used again in 8 min if it keeps working");
    let mut other = pool.clone();
    assert_eq!(connect(&mut pool, Moment(605_000)), address(1));

    other.denied(Moment(100_000), "may not watch".into());
    assert_eq!(status(&other, 2, Moment(100_000)), ServerStatus::Healthy, "no other server is left to try");
    assert_eq!(chosen(&other, Moment(100_000)), Some(address(1)));
}

#[test]
fn a_link_that_ends_is_the_reason_for_the_next_one() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    pool.probed(Moment(14_000), &address(1), Outcome::Worked);
    pool.closed(Moment(15_000), "no answer to a ping within 2 s");
    assert_eq!(connect(&mut pool, Moment(15_000)), address(1));
    let choice = pool.next(Moment(15_400)).unwrap();
    assert_eq!(choice.server, server(2));
    assert_eq!(choice.why, "192.0.2.1:6443, which is preferred, failed 0.4 s ago: no answer to a ping within 2 s");
}

#[test]
fn a_session_that_breaks_is_opened_again_at_once_unless_it_was_short() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    pool.closed(Moment(5_000), "reset");
    assert_eq!(chosen(&pool, Moment(5_000)), Some(address(1)));
    pool.opened(Moment(5_001), &address(1));
    pool.closed(Moment(5_041), "reset");
    assert_eq!(chosen(&pool, Moment(5_041)), Some(address(2)));
    let (_, error) = pool.find(&address(1)).unwrap().error.clone().unwrap();
    assert_eq!(error, "the session ended 40 ms after it was opened: reset");
}

#[test]
fn an_attempt_that_takes_long_gets_company_and_loses() {
    let mut pool = pool(&[1, 2, 3]);
    connect(&mut pool, Moment(0));
    assert_eq!(pool.next(Moment(399)), None);
    assert_eq!(pool.wake(Moment(0)), Some(Moment(400)));
    assert_eq!(connect(&mut pool, Moment(400)), address(2));
    pool.opened(Moment(450), &address(2));
    assert_eq!(status(&pool, 1, Moment(450)), ServerStatus::Failed);
    assert_eq!(status(&pool, 3, Moment(450)), ServerStatus::Untried);
    let reason = "192.0.2.1:6443, which is preferred, failed 0.0 s ago: no response within 450 ms, while \
                  192.0.2.2:6443 responded";
    assert_eq!(why(&pool, 2, Moment(450)), reason);
}

#[test]
fn one_failed_probe_is_none_and_two_end_the_session() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    pool.probed(Moment(4_000), &address(1), failed("no answer"));
    assert_eq!(pool.lost(), None);
    assert_eq!(pool.wake(Moment(4_000)), Some(Moment(4_500)));
    assert_eq!(pool.probes(Moment(4_500)), [server(1)]);
    pool.probed(Moment(4_600), &address(1), Outcome::Worked);
    pool.probed(Moment(9_000), &address(1), failed("no answer"));
    assert_eq!(pool.lost(), None);
    pool.probed(Moment(9_600), &address(1), failed("still no answer"));
    assert_eq!(pool.lost().as_deref(), Some("still no answer"));
    pool.closed(Moment(9_600), "still no answer");
    assert_eq!(chosen(&pool, Moment(9_600)), Some(address(2)));
}

#[test]
fn doubt_is_probed_at_once_and_one_failure_is_enough() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    pool.doubt(Moment(1_000));
    assert_eq!(pool.probes(Moment(1_000)), [server(1)]);
    pool.probed(Moment(1_010), &address(1), failed("no answer"));
    assert!(pool.lost().is_some());
}

#[test]
fn doubt_does_not_wait_for_a_probe_that_is_under_way() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    assert_eq!(pool.probes(Moment(6_000)), [server(1)]);
    assert!(!pool.is_doubted(&address(1)));
    pool.doubt(Moment(6_010));
    assert!(pool.is_doubted(&address(1)));
    assert_eq!(pool.probes(Moment(6_010)), [server(1)]);
    pool.doubt(Moment(6_020));
    assert_eq!(pool.probes(Moment(6_900)), [], "one impatient probe is enough");
}

#[test]
fn a_server_that_is_not_ready_is_left_for_a_better_one_and_kept_without() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    let unready = || Outcome::NotReady("503: [-]etcd failed".into(), 0);
    pool.probed(Moment(4_000), &address(1), unready());
    pool.probed(Moment(4_500), &address(1), unready());
    assert_eq!(pool.lost(), None);
    assert_eq!(connect(&mut pool, Moment(4_500)), address(2));
    pool.note(Moment(4_600), &address(2), unready());
    assert_eq!(pool.next(Moment(4_600)), None);
    assert_eq!(pool.next(Moment(60_000)), None);
    pool.probed(Moment(61_000), &address(2), Outcome::Worked);
    assert_eq!(chosen(&pool, Moment(61_000)), Some(address(2)));
}

/// A rolling restart: the standby has just been down, and now the address in use goes down.
#[test]
fn while_the_one_in_use_is_not_ready_the_others_are_probed_as_soon_as_they_may_be_back() {
    let mut pool = pool(&[1, 2]);
    pool.opened(Moment(0), &address(1));
    let mut now = Moment(5_000);
    for _ in 0..8 {
        pool.probed(now, &address(2), failed("refused"));
        now = now.plus(10_000);
    }
    let unready = || Outcome::NotReady("503: shutdown".into(), 0);
    pool.probed(now, &address(1), unready());
    pool.probes(now);
    assert_eq!(pool.probes(now), [], "one strike is none");
    pool.probed(now.plus(500), &address(1), unready());
    let start = now.plus(500);
    let mut now = start;
    let back = start.plus(10_000);
    while pool.next(now).is_none() {
        assert_eq!(pool.in_use(), Some(&address(1)), "a failure of another one disturbs nothing");
        for server in pool.probes(now) {
            let found = match server.address == address(1) {
                true => unready(),
                false if now < back => failed("refused"),
                false => Outcome::Worked,
            };
            pool.probed(now, &server.address, found);
        }
        if pool.next(now).is_none() {
            now = pool.wake(now).expect("something to wait for");
        }
    }
    assert_eq!(chosen(&pool, now), Some(address(2)));
    assert!(now <= back.plus(7_000), "{now:?}");
}

#[test]
fn while_no_address_works_each_one_is_tried() {
    let mut pool = pool(&[1, 2, 3]);
    let mut now = Moment(0);
    let mut turns = [0; 4];
    for _ in 0..300 {
        match pool.next(now) {
            Some(choice) => {
                let n = (1..4).find(|n| address(*n) == choice.server.address).unwrap();
                turns[usize::from(n)] += 1;
                pool.connecting(now, &choice.server.address);
                now = now.plus(2_000);
                pool.note(now, &choice.server.address, failed("no route"));
            }
            None => now = pool.wake(now).unwrap(),
        }
    }
    assert!(turns[1..].iter().all(|turns| *turns > 60), "{turns:?}");
}

#[test]
fn refused_addresses_are_retried_slowly_and_at_once_with_new_credentials() {
    let mut pool = pool(&[1]);
    pool.note(Moment(0), &address(1), Outcome::Refused("401".into()));
    assert_eq!(pool.next(Moment(3_000)), None);
    assert!(pool.next(Moment(6_300)).is_some());
    pool.retry_refused(Moment(1_000));
    assert!(pool.next(Moment(1_000)).is_some());
}

#[test]
fn what_the_cluster_lists_is_added_debounced_and_never_taken_away() {
    let mut pool = pool(&[1]);
    pool.opened(Moment(0), &address(1));
    assert!(pool.learn(&[socket(1), socket(2)].into(), Moment(1_000)).is_empty());
    let origins: Vec<_> = pool.candidates().iter().map(|candidate| candidate.origin).collect();
    assert_eq!(origins, [Origin::Configured, Origin::Learned]);
    assert!(pool.probes(Moment(1_000)).iter().all(|server| server.address != address(2)));
    let waits = why(&pool, 2, Moment(2_000));
    assert_eq!(waits, "listed recently; usable in 9 s");
    pool.learn(&BTreeSet::new(), Moment(3_000));
    assert_eq!(pool.candidates().len(), 2);

    // An address that may work is better than a recently listed one, which is better than none.
    pool.note(Moment(3_000), &address(1), failed("refused"));
    pool.closed(Moment(3_000), "refused");
    assert_eq!(chosen(&pool, Moment(3_000)), Some(address(2)));
    assert_eq!(chosen(&pool, Moment(11_000)), Some(address(2)));
}

#[test]
fn learned_addresses_carry_the_name_of_the_first_configured_one() {
    let named = |address: &str, name: Option<&str>| {
        let server = Server { address: address.parse().unwrap(), tls_server_name: name.map(Arc::from) };
        let pool = Pool::new(&[server], TIMEOUTS, 7, Moment(0));
        pool.learned_server(socket(9)).tls_server_name.unwrap()
    };
    assert_eq!(&*named("192.0.2.1:6443", Some("api")), "api");
    assert_eq!(&*named("api.example.com:6443", Some("api")), "api");
    assert_eq!(&*named("api.example.com:6443", None), "api.example.com");
    assert_eq!(&*named("192.0.2.1:6443", None), "kubernetes");
}

#[test]
fn the_strongest_origin_wins() {
    let mut pool = pool(&[1]);
    let remembered = |n, worked| RememberedServer { server: server(n), worked };
    pool.remember([remembered(1, 100), remembered(2, 200), remembered(3, 300)], Moment(0));
    let origins = |pool: &Pool| pool.candidates().iter().map(|candidate| candidate.origin).collect::<Vec<_>>();
    assert_eq!(origins(&pool), [Origin::Configured, Origin::Remembered, Origin::Remembered]);
    pool.learn(&[socket(3)].into(), Moment(0));
    assert_eq!(origins(&pool), [Origin::Configured, Origin::Learned, Origin::Remembered]);
    let report = PoolReport { pool: Some(pool.clone()), ..PoolReport::default() };
    let worked: Vec<_> = report.rows(Moment(0), 310).into_iter().map(|row| (row.address, row.worked)).collect();
    assert_eq!(worked[1], (address(3), Some(10_000)));

    pool.demote_learned();
    assert_eq!(origins(&pool), [Origin::Configured, Origin::Remembered, Origin::Remembered]);
}

#[test]
fn a_server_that_is_configured_later_comes_after_the_others_and_takes_nothing_away() {
    let mut pool = pool(&[1]);
    pool.learn(&[socket(2)].into(), Moment(0));
    pool.opened(Moment(0), &address(2));
    assert!(pool.configure(server(2), Moment(5)));
    assert!(pool.configure(server(3), Moment(5)));
    assert!(!pool.configure(server(3), Moment(6)) && !pool.configure(server(1), Moment(6)));
    let servers: Vec<_> = pool.candidates().iter().map(|candidate| candidate.server.clone()).collect();
    assert_eq!(servers, [1, 2, 3].map(server));
    assert!(pool.candidates().iter().all(|candidate| candidate.origin == Origin::Configured));
    assert_eq!(pool.in_use(), Some(&address(2)));
    assert_eq!(status(&pool, 2, Moment(6)), ServerStatus::Healthy);
}

#[test]
fn what_was_remembered_is_no_news_when_the_cluster_lists_it() {
    let mut pool = pool(&[1]);
    pool.remember([RememberedServer { server: server(2), worked: 100 }], Moment(0));
    pool.opened(Moment(0), &address(1));
    // Long before the debounce time has passed.
    pool.learn(&[socket(2), socket(3)].into(), Moment(5));
    assert_eq!(why(&pool, 2, Moment(6)), "not needed yet");
    assert_eq!(why(&pool, 3, Moment(6)), "listed recently; usable in 9 s");
}

#[test]
fn what_has_ever_worked_stays_whatever_services_come_to_its_address() {
    let mut pool = pool(&[1]);
    pool.remember([RememberedServer { server: server(2), worked: 100 }], Moment(0));
    pool.learn(&[socket(3), socket(4)].into(), Moment(0));
    pool.opened(Moment(20_000), &address(1));
    pool.probed(Moment(20_000), &address(3), Outcome::Worked);
    pool.note(Moment(30_000), &address(3), failed("no route"));
    assert_eq!(pool.forget_refused(|_| true), [address(4)]);
    assert_eq!(pool.candidates().len(), 3);
}

#[test]
fn a_list_without_end_finds_no_room_unless_something_is_stale() {
    let mut pool = pool(&[1]);
    let many: BTreeSet<_> = (10..60).map(socket).collect();
    let left_out = pool.learn(&many, Moment(0));
    assert_eq!(pool.candidates().len(), 1 + MOST_LEARNED);
    assert_eq!(left_out.len(), 50 - MOST_LEARNED);
    pool.note(Moment(0), &address(10), failed("refused"));
    assert!(pool.learn(&[socket(200)].into(), Moment(1)).is_empty());
    assert!(pool.find(&address(10)).is_none());
}

#[test]
fn what_failed_for_very_long_is_forgotten_while_another_is_in_use_for_a_while() {
    let mut pool = pool(&[1]);
    pool.learn(&[socket(2), socket(3)].into(), Moment(0));
    pool.note(Moment(0), &address(2), failed("no route"));
    pool.note(Moment(0), &address(3), failed("no route"));
    let late = Moment(FORGET_AFTER);
    assert!(pool.forget_stale(late).is_empty(), "nothing in use");
    pool.opened(late, &address(1));
    assert!(pool.forget_stale(late).is_empty(), "in use since just now");
    let later = late.plus(TIMEOUTS.stable_after);
    assert!(pool.forget_stale(later).is_empty(), "listed");
    pool.learn(&BTreeSet::new(), later);
    assert!(pool.forget_stale(later).is_empty(), "an empty list says nothing");
    pool.learn(&[socket(3)].into(), later);
    assert_eq!(pool.forget_stale(later), [address(2)]);
}

/// The time when an address can be opened.
fn next_attempt(pool: &Pool, mut now: Moment) -> Moment {
    while pool.next(now).is_none() {
        now = pool.wake(now).expect("something to wait for");
    }
    now
}

#[test]
fn the_first_refusal_after_network_failures_is_the_first() {
    let mut pool = pool(&[1]);
    let mut now = Moment(0);
    for _ in 0..7 {
        assert_eq!(connect(&mut pool, now), address(1));
        pool.note(now, &address(1), failed("connection refused"));
        now = next_attempt(&pool, now);
    }
    let later = now.plus(TIMEOUTS.starting);
    for (at, status_then, most) in [(now, ServerStatus::NotReady, 250), (later, ServerStatus::Refused, 6_250)] {
        let mut pool = pool.clone();
        pool.note(at, &address(1), Outcome::Refused("403".into()));
        assert_eq!(status(&pool, 1, at), status_then);
        let again = next_attempt(&pool, at);
        assert!(again.0 - at.0 <= most, "{} ms", again.0 - at.0);
    }
}

#[test]
fn a_server_that_asks_to_be_left_alone_is_within_bounds() {
    for (code, asked, left) in [(429, 3, 3_000), (429, 3_600, 60_000), (503, 3, 3_000), (503, 60, TIMEOUTS.retry_most)]
    {
        let retry_after = Some(Duration::from_secs(asked));
        let outcome = outcome_of(&LinkError::Busy { code, message: "wait".into(), retry_after }, &TIMEOUTS);
        let mut pool = pool(&[1]);
        connect(&mut pool, Moment(0));
        pool.note(Moment(0), &address(1), outcome);
        assert_eq!(status(&pool, 1, Moment(0)), ServerStatus::NotReady);
        assert_eq!(pool.next(Moment(left - 1)), None);
        assert_eq!(connect(&mut pool, Moment(left)), address(1));
    }
}
