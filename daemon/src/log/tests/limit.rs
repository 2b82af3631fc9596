use super::*;

const A: (MessageId, Level) = (messages::BACKENDS_LOST, Level::WARN);
const B: (MessageId, Level) = (messages::APPLIED, Level::INFO);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_first_of_a_storm_are_logged_and_the_others_counted() {
    let mut limiter = Limiter::default();
    let reported = (0..1_000).filter(|words| limiter.admit(A, *words, seconds(5))).count();
    assert_eq!(reported, BURST as usize);
    assert!(limiter.admit(B, 0, seconds(5)), "another message has a window of its own");
    assert!(limiter.admit((A.0, Level::INFO), 0, seconds(5)));
    assert_eq!(limiter.due(seconds(64)), []);
    assert_eq!(limiter.due(seconds(65)), [(A, 1_000 - u64::from(BURST))]);
    assert_eq!(limiter.due(seconds(65)), [], "each is counted once");
    assert!(limiter.admit(A, 0, seconds(66)));
}

#[test]
fn what_was_left_out_is_never_forgotten() {
    let mut limiter = Limiter::default();
    (0..u64::from(BURST)).for_each(|words| assert!(limiter.admit(A, words, seconds(0))));
    assert!(!limiter.admit(A, 1_000, seconds(59)));
    // The window has ended, but its count has not been logged yet.
    assert!(!limiter.admit(A, 1_000, seconds(61)));
    assert_eq!(limiter.due(seconds(61)), [(A, 2)]);
}

#[test]
fn rare_messages_are_always_logged() {
    let mut limiter = Limiter::default();
    for second in 0..10_000 {
        assert!(limiter.admit(A, second / 5, seconds(second)));
        if second % 7 == 0 {
            assert_eq!(limiter.due(seconds(second)), []);
        }
    }
}

#[test]
fn a_repeated_failure_is_logged_a_few_times() {
    let mut limiter = Limiter::default();
    let reported = |limiter: &mut Limiter, alike| (0..50).filter(|_| limiter.admit(alike, 7, seconds(1))).count();
    assert_eq!(reported(&mut limiter, A), SAME as usize);
    assert!(limiter.admit(A, 8, seconds(1)), "other words are news");
    assert_eq!(reported(&mut limiter, B), 50, "what is done again is no failure");
    assert_eq!(limiter.due(seconds(61)), [(A, 40)]);
    assert!(limiter.admit(A, 7, seconds(61)));
}
