use nodelb_core::model::service::Source;

use nodelb_core::awaited::Awaited;
use nodelb_core::engine::Kept;

use super::super::*;

#[test]
fn what_is_kept_is_said_with_its_reason_and_the_remedy() {
    let kept = |ports, because| Kept { source: Source::Kubernetes, ports, because };
    let text = reconciled(&[kept(12, Awaited::NotConfigured(Source::Kubernetes))]);
    for part in ["kubernetes is no longer configured", "12 service ports", "kept", "[kubernetes]", "kubernetes.enabled"]
    {
        assert!(text.contains(part), "{text}");
    }
    let text = reconciled(&[kept(1, Awaited::Incomplete(Source::Kubernetes, "web.toml cannot be used".into()))]);
    assert!(
        text.contains(
            "1 service port is kept from before the start until nodelb has read everything from kubernetes: web.toml"
        ),
        "{text}"
    );
    let nothing = reconciled(&[kept(0, Awaited::NotConfigured(Source::Kubernetes))]);
    assert_eq!(nothing, "every source is synced and the first full reconcile is done");
}
