use std::convert::Infallible;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nodelb_core::model::addr::Family;
use nodelb_core::state::entries::CANARIES;

use super::{Answer, CanaryError, Probe, check, judge};

const REFUSED: Answer = Err(Errno::ECONNREFUSED);
const UNREACHABLE: Answer = Err(Errno::ENETUNREACH);

#[test]
fn the_canaries_are_the_documented_addresses() {
    assert_eq!(CANARIES.map(|frontend| frontend.to_string()), ["192.0.0.8:9/UDP", "[100::8]:9/UDP"]);
}

#[test]
fn alive_means_refused_for_others_and_untouched_for_nodelb() {
    let [ipv4, ipv6] = CANARIES;
    assert_eq!(judge(ipv4, Some((REFUSED, true)), Some((Ok(()), true))), Ok(None));
    assert_eq!(judge(ipv6, Some((REFUSED, true)), Some((UNREACHABLE, true))), Ok(None));
    let note = judge(ipv6, None, None).unwrap().unwrap();
    assert_eq!(note, "IPv6 is not tested: this host has no IPv6 sockets");
}

/// Every pair of answers, each with and without this daemon's program having seen the socket: exactly one case is a
/// success.
#[test]
fn only_what_the_own_program_did_counts() {
    let [ipv4, _] = CANARIES;
    let answers = [REFUSED, Ok(()), UNREACHABLE, Err(Errno::EPERM)];
    let seen = answers.iter().flat_map(|answer| [(*answer, false), (*answer, true)]);
    for (ordinary, own) in seen.clone().flat_map(|ordinary| seen.clone().map(move |own| (ordinary, own))) {
        let judged = judge(ipv4, Some(ordinary), Some(own));
        let case = format!("{ordinary:?}, {own:?}: {judged:?}");
        match (ordinary, own) {
            ((REFUSED, true), (answer, true)) if answer != REFUSED => assert_eq!(judged, Ok(None), "{case}"),
            ((REFUSED, a), (_, b)) => {
                let error = CanaryError::AnotherAnswers { family: Family::Ipv4, is_shared: a && b };
                assert_eq!(judged, Err(error), "{case}");
            }
            _ => assert!(matches!(judged, Err(CanaryError::NotInEffect { .. })), "{case}"),
        }
    }
}

#[test]
fn hooks_that_are_not_in_effect_are_named_with_the_cgroup() {
    let [ipv4, _] = CANARIES;
    for answer in [Ok(()), UNREACHABLE, Err(Errno::EPERM)] {
        let error = judge(ipv4, Some((answer, false)), Some((Ok(()), false))).unwrap_err();
        assert!(matches!(error, CanaryError::NotInEffect { family: Family::Ipv4, .. }), "{error}");
        assert!(error.to_string().contains("do not apply to processes of cgroup /"), "{error}");
        assert!(error.to_string().contains("canary 192.0.0.8:9/UDP should be refused, but: "), "{error}");
    }
}

/// Test processes run in a cgroup without hooks of nodelb.
#[test]
fn without_hooks_the_first_half_fails() {
    let error = check(|_, _| Ok::<(), Infallible>(()), |_| Ok(false)).unwrap_err();
    assert!(matches!(error, CanaryError::NotInEffect { .. }), "{error}");
}

#[test]
fn a_socket_that_cannot_be_registered_proves_nothing() {
    let refuse = |probe, _: BorrowedFd<'_>| if probe == Probe::Own { Err("no map") } else { Ok(()) };
    let error = check(refuse, |_| Ok(true)).unwrap_err();
    assert!(matches!(error, CanaryError::NotTried { .. }), "{error}");
    assert!(error.to_string().contains("cannot register a socket of nodelb: no map"), "{error}");
}
