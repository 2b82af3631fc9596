use super::*;

const EVERY: [Feature; 8] = [
    Feature::RefuseConnect,
    Feature::RefuseBind,
    Feature::Netns,
    Feature::Mptcp,
    Feature::Flows,
    Feature::EndSockets,
    Feature::NoCapability,
    Feature::TcxLinks,
];

#[test]
fn every_feature_has_one_row() {
    assert_eq!(OPTIONAL.each_ref().map(|row| row.feature), EVERY);
    assert!(EVERY.iter().all(|feature| optional(*feature).feature == *feature));
}

#[test]
fn one_line_says_what_is_there_and_what_is_not() {
    let mut findings = Findings::default();
    findings.note(Feature::Netns, true);
    findings.note(Feature::Mptcp, true);
    assert_eq!(
        findings.sentence("Linux 6.1"),
        "Linux 6.1 has all optional features: SO_NETNS_COOKIE (Linux 5.14); bpf_skc_to_mptcp_sock() (Linux 5.19)"
    );
    assert_eq!(findings.missing().count(), 0);
    findings.note(Feature::Mptcp, false);
    assert_eq!(
        findings.sentence("Linux 5.17"),
        "Linux 5.17 lacks 1 of 2 optional features: bpf_skc_to_mptcp_sock() (Linux 5.19): getpeername() on an MPTCP \
         socket returns the backend. It has SO_NETNS_COOKIE (Linux 5.14)"
    );
    findings.note(Feature::Netns, false);
    assert!(findings.sentence("Linux 5.10").ends_with("returns the backend"), "{}", findings.sentence("Linux 5.10"));
    assert_eq!(findings.missing().map(|row| row.feature).collect::<Vec<_>>(), [Feature::Netns, Feature::Mptcp]);
}
