use std::time::Duration;

use nix::errno::Errno;

use super::Tally;
use crate::exchange::Failure;

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn mixed() -> Tally {
    let mut tally = Tally::default();
    tally.record(Ok("a".into()), millis(500), millis(1));
    tally.record(Err(Failure::Os(Errno::ECONNREFUSED)), millis(1000), millis(3));
    tally.record(Err(Failure::TimedOut), millis(1500), millis(2));
    tally
}

#[test]
fn shows_backends_and_failures() {
    assert_eq!(
        mixed().to_string(),
        "3 connections: a 1; 2 failed, ECONNREFUSED 1, timed-out 1, the first began after 997.0ms; slowest 3.0ms"
    );
    assert_eq!(Tally::default().to_string(), "0 connections: none answered; 0 failed; slowest 0.0ns");
}

#[test]
fn json_has_the_same_counts() {
    assert_eq!(
        mixed().json(),
        r#"{"ok":1,"failed":2,"rate":2,"slowest_us":3000,"answered":{"a":1},"failures":{"ECONNREFUSED":1,"timed-out":1}}"#
    );
}

#[test]
fn merging_keeps_the_earliest_failure_and_the_slowest_exchange() {
    let mut early = Tally::default();
    early.record(Err(Failure::TimedOut), millis(10), millis(9));
    let mut sum = mixed();
    sum.merge(&early);
    assert_eq!((sum.ok(), sum.failures(), sum.slowest), (1, 3, millis(9)));
    assert_eq!(sum.first_failure, Some((millis(1), "timed-out".into())));
}
