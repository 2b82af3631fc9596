use std::time::Instant;

use super::{Duration, Grace, thread};

/// Also for a request during a wait; and no caller has to wait.
#[test]
fn what_is_asked_for_passes_soon_and_asking_takes_no_time() {
    let mut grace = Grace::default();
    assert!(grace.is_available(), "this kernel has MEMBARRIER_CMD_GLOBAL");
    let began = Instant::now();
    for rounds in 1..=1_000 {
        grace.request(rounds);
    }
    assert!(began.elapsed() < super::COLLECT, "no call waits for a grace period");
    assert_eq!(grace.completed(), Some(0));
    while grace.completed() != Some(1_000) {
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", grace.completed());
        thread::sleep(Duration::from_millis(1));
    }
}
