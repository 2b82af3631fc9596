//! An idle daemon does not log.

use std::time::Duration;

use crate::daemon::Daemon;
use crate::extent;

/// While nothing changes the daemon logs nothing, although it keeps checking its directory, its
/// node and its timers.
#[test]
fn an_idle_daemon_logs_nothing() {
    let (daemon, said) = Daemon::start();
    assert!(said.len() < 20, "a start is a few lines: {said:#?}");
    assert!(said.iter().any(|line| line.contains("shop/web")), "the service is served: {said:#?}");
    assert!(said.iter().all(|line| !line.contains("message_id")), "ids are for the journal: {said:#?}");
    // Consequences of the start itself.
    daemon.log_within(Duration::from_secs(3));
    let seconds = if extent::is_all() { 25 } else { 5 };
    let said = daemon.log_within(Duration::from_secs(seconds));
    assert!(said.is_empty(), "{said:#?}");
    // Requests are not logged, either.
    for path in ["/", "/services", "/metrics", "/readyz"] {
        daemon.get(path);
    }
    let said = daemon.log_within(Duration::from_secs(1));
    assert!(said.is_empty(), "{said:#?}");
}
