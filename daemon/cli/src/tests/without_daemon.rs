use super::*;
use crate::client::{self, At};

fn stored(pins: Pins) -> StoredState {
    let answer = |_: &str| Err(Failure::message(Code::Unavailable, "there are no rows"));
    StoredState {
        answer: Box::new(answer),
        pins: PathBuf::new(),
        find_pins: Box::new(move || pins.clone()),
        history: PathBuf::new(),
        notice: Box::new(|| None),
    }
}

fn nothing() -> StoredState {
    stored(Pins::Absent("/sys/fs/bpf/nodelb".into()))
}

fn silent() -> Failure {
    client::get(&[At::Unix("/nonexistent/nodelb.sock".into())], "/status").unwrap_err()
}

/// Once, every command said that connections keep working.
#[test]
fn a_daemon_that_does_not_answer_is_no_claim_that_connections_work() {
    let mut failure = silent();
    assert!(!failure.to_string().contains("connections"), "{failure}");
    explain(&mut failure, nothing);
    let effect = "No BPF maps of nodelb are pinned in /sys/fs/bpf/nodelb: service addresses do not work\n";
    assert!(failure.to_string().contains(effect), "{failure}");
    explain(&mut failure, || stored(Pins::Present));
    assert!(failure.to_string().contains("\nExisting and new connections continue with the last known"), "{failure}");
    explain(&mut failure, || stored(Pins::Unknown("EPERM".into())));
    assert!(failure.to_string().contains("\nWhether service addresses work is not known: EPERM\n"), "{failure}");

    let failure = Fallback::new(nothing, Shown::Kernel).answer("/frontends", silent()).unwrap_err();
    assert!(failure.to_string().contains(effect) && !failure.to_string().contains("no rows"), "{failure}");
    let failure = Fallback::new(nothing, Shown::History).answer("/history", silent()).unwrap_err();
    assert!(failure.to_string().ends_with("\nWithout the daemon: there are no rows"), "{failure}");
}
