use super::*;

const A: (MessageId, Level) = (messages::BACKENDS_LOST, Level::WARN);
const B: (MessageId, Level) = (messages::APPLIED, Level::INFO);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_first_of_a_storm_are_told_and_the_others_counted() {
    let mut limiter = Limiter::default();
    let told = (0..1_000).filter(|_| limiter.admit(A, seconds(5))).count();
    assert_eq!(told, BURST as usize);
    assert!(limiter.admit(B, seconds(5)), "another message has a window of its own");
    assert!(limiter.admit((A.0, Level::INFO), seconds(5)));
    assert_eq!(limiter.due(seconds(64)), []);
    assert_eq!(limiter.due(seconds(65)), [(A, 1_000 - u64::from(BURST))]);
    assert_eq!(limiter.due(seconds(65)), [], "each is counted once");
    assert!(limiter.admit(A, seconds(66)));
}

#[test]
fn what_was_left_out_is_never_forgotten() {
    let mut limiter = Limiter::default();
    (0..BURST).for_each(|_| assert!(limiter.admit(A, seconds(0))));
    assert!(!limiter.admit(A, seconds(59)));
    // The window is over, but its count has not been told yet.
    assert!(!limiter.admit(A, seconds(61)));
    assert_eq!(limiter.due(seconds(61)), [(A, 2)]);
}

#[test]
fn what_comes_now_and_then_is_always_told() {
    let mut limiter = Limiter::default();
    for second in 0..10_000 {
        assert!(limiter.admit(A, seconds(second)));
        if second % 7 == 0 {
            assert_eq!(limiter.due(seconds(second)), []);
        }
    }
}
