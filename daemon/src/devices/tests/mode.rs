use super::super::proxies::ServiceProxy;
use super::*;

const EVERY_STATE: [Before; 3] = [Before::Nothing, Before::NoConnections, Before::Connections];

fn findings(proxies: &[ServiceProxy], is_complete: bool, error: Option<&str>) -> Findings {
    Findings {
        proxies: proxies.iter().cloned().collect(),
        is_complete,
        error: error.map(str::to_owned),
        ..Findings::default()
    }
}

#[test]
fn another_service_proxy_gets_new_connections() {
    let (none, kube_proxy) = (findings(&[], true, None), findings(&[ServiceProxy::NftablesTable], true, None));
    let activity = |mode, findings: &Findings, before| decide(mode, findings, before, Need::Kubernetes).activity;
    for before in EVERY_STATE {
        assert_eq!(activity(PacketMode::On, &kube_proxy, before), Activity::On);
        assert_eq!(activity(PacketMode::Drain, &none, before), Activity::Draining);
        assert_eq!(activity(PacketMode::Off, &none, before), Activity::Off);
        assert_eq!(activity(PacketMode::Auto, &none, before), Activity::On);
    }
    assert_eq!(activity(PacketMode::Auto, &kube_proxy, Before::Nothing), Activity::Off);
    assert_eq!(activity(PacketMode::Auto, &kube_proxy, Before::Connections), Activity::Draining);
    assert_eq!(activity(PacketMode::Auto, &kube_proxy, Before::NoConnections), Activity::Off, "drained");
    let reason = decide(PacketMode::Auto, &kube_proxy, Before::Connections, Need::Kubernetes).reason;
    assert!(reason.ends_with("another service proxy is present: the nftables table kube-proxy"), "{reason}");
}

/// What a saved firewall brings back after a reboot, such as the table of a former kube-proxy, ended all connections of
/// clients outside to services of files.
#[test]
fn another_service_proxy_gets_no_service_of_a_file() {
    let kube_proxy = findings(&[ServiceProxy::NftablesTable], true, None);
    for before in EVERY_STATE {
        assert_eq!(decide(PacketMode::Auto, &kube_proxy, before, Need::Files).activity, Activity::Files, "{before:?}");
    }
}

#[test]
fn an_error_changes_nothing() {
    let (never, later) = (findings(&[], false, Some("EPERM")), findings(&[], true, Some("EPERM")));
    for (known, before, expected) in [
        (&never, Before::Nothing, Activity::Off),
        (&never, Before::NoConnections, Activity::On),
        (&never, Before::Connections, Activity::On),
        (&later, Before::Nothing, Activity::On),
        (&later, Before::Connections, Activity::On),
    ] {
        let decision = decide(PacketMode::Auto, known, before, Need::Kubernetes);
        assert_eq!(decision.activity, expected, "{before:?} {known:?}");
        assert!(decision.reason.contains("EPERM"), "{}", decision.reason);
    }
}

#[test]
fn only_auto_waits_for_an_address_to_serve() {
    let none = findings(&[], true, None);
    let activity = |mode, before| decide(mode, &none, before, Need::Nothing).activity;
    assert_eq!(activity(PacketMode::On, Before::Nothing), Activity::On);
    assert_eq!(activity(PacketMode::Auto, Before::Nothing), Activity::Off);
    assert_eq!(activity(PacketMode::Auto, Before::NoConnections), Activity::Off);
    assert_eq!(activity(PacketMode::Auto, Before::Connections), Activity::On, "until they have ended");
}
