use super::super::proxies::ServiceProxy;
use super::*;

#[test]
fn another_service_proxy_gets_new_connections() {
    let none = Findings::default();
    let kube_proxy = Findings { proxies: [ServiceProxy::NftablesTable].into(), rules_unknown: None };
    let activity = |mode, findings: &Findings, was_on| decide(mode, findings, was_on).activity;
    for was_on in [false, true] {
        assert_eq!(activity(PacketMode::On, &kube_proxy, was_on), Activity::On);
        assert_eq!(activity(PacketMode::Drain, &none, was_on), Activity::Draining);
        assert_eq!(activity(PacketMode::Off, &none, was_on), Activity::Off);
        assert_eq!(activity(PacketMode::Auto, &none, was_on), Activity::On);
    }
    assert_eq!(activity(PacketMode::Auto, &kube_proxy, false), Activity::Off);
    assert_eq!(activity(PacketMode::Auto, &kube_proxy, true), Activity::Draining);
    let reason = decide(PacketMode::Auto, &kube_proxy, true).reason;
    assert!(reason.ends_with("another service proxy is present: the nftables table kube-proxy"), "{reason}");
}

#[test]
fn unknown_rules_are_mentioned() {
    let unknown = Findings { rules_unknown: Some("EPERM".into()), ..Findings::default() };
    let decision = decide(PacketMode::Auto, &unknown, false);
    assert_eq!(decision.activity, Activity::On);
    assert!(decision.reason.contains("rules of nftables cannot be read (EPERM)"));
}
