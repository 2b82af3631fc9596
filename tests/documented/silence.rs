//! A steady state is silent.

use std::time::Duration;

use crate::daemon::Daemon;

/// While nothing happens nothing is said, however long the daemon looks at its directory, its node and its clock.
#[test]
fn nothing_is_said_while_nothing_happens() {
    let (daemon, said) = Daemon::start();
    assert!(said.len() < 20, "a start is a few lines: {said:#?}");
    assert!(said.iter().any(|line| line.contains("shop/web")), "the service is served: {said:#?}");
    assert!(said.iter().all(|line| !line.contains("message_id")), "ids are for the journal: {said:#?}");
    // What follows from the start itself.
    daemon.says_within(Duration::from_secs(3));
    let said = daemon.says_within(Duration::from_secs(25));
    assert!(said.is_empty(), "{said:#?}");
    // Readers are nobody's business either.
    for path in ["/", "/services", "/metrics", "/readyz"] {
        daemon.get(path);
    }
    let said = daemon.says_within(Duration::from_secs(1));
    assert!(said.is_empty(), "{said:#?}");
}
