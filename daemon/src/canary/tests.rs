use std::convert::Infallible;

use nix::errno::Errno;
use nodelb_core::addr::Family;
use nodelb_core::state::CANARIES;

use super::{Answer, CanaryError, check, judge};

const REFUSED: Answer = Answer::Failed(Errno::ECONNREFUSED);
const UNREACHABLE: Answer = Answer::Failed(Errno::ENETUNREACH);

#[test]
fn the_canaries_are_the_documented_addresses() {
    assert_eq!(CANARIES.map(|frontend| frontend.to_string()), ["192.0.0.8:9/UDP", "[100::8]:9/UDP"]);
}

#[test]
fn alive_means_refused_for_others_and_untouched_for_nodelb() {
    let [ipv4, ipv6] = CANARIES;
    assert_eq!(judge(ipv4, REFUSED, Answer::Connected), Ok(None));
    assert_eq!(judge(ipv6, REFUSED, UNREACHABLE), Ok(None));
    let note = judge(ipv6, Answer::NoFamily, Answer::NoFamily).unwrap().unwrap();
    assert_eq!(note, "IPv6 is not tried: this host has no IPv6 sockets");
}

#[test]
fn each_half_fails_with_its_own_meaning() {
    let [ipv4, ipv6] = CANARIES;
    assert_eq!(judge(ipv6, REFUSED, REFUSED), Err(CanaryError::OwnTranslated { family: Family::Ipv6 }));
    for answer in [Answer::Connected, UNREACHABLE, Answer::Failed(Errno::EPERM)] {
        let error = judge(ipv4, answer, Answer::Connected).unwrap_err();
        assert!(matches!(error, CanaryError::NotInEffect { family: Family::Ipv4, .. }), "{error}");
        assert!(error.to_string().contains("not in effect for processes of cgroup /"), "{error}");
        assert!(error.to_string().contains("canary 192.0.0.8:9/UDP should be refused, but: "), "{error}");
    }
}

/// Test processes run where no hook of nodelb is attached.
#[test]
fn without_hooks_the_first_half_fails() {
    let error = check(|_| Ok::<(), Infallible>(())).unwrap_err();
    assert!(matches!(error, CanaryError::NotInEffect { .. }), "{error}");
}

#[test]
fn a_socket_that_cannot_be_registered_proves_nothing() {
    let error = check(|_| Err("no map")).unwrap_err();
    assert!(matches!(error, CanaryError::NotTried { .. }), "{error}");
    assert!(error.to_string().contains("registered as nodelb's own: no map"), "{error}");
}
