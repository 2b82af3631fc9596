use nodelb_core::model::service::Source;

use nodelb_core::engine::{Kept, KeptBecause};

use super::super::*;

#[test]
fn what_is_kept_is_said_with_its_reason_and_the_remedy() {
    let kept = |ports, because| Kept { source: Source::Kubernetes, ports, because };
    let text = reconciled(&[kept(12, KeptBecause::NotConfigured)]);
    for part in ["kubernetes is no longer configured", "12 service ports", "kept", "[kubernetes]", "kubernetes.enabled"]
    {
        assert!(text.contains(part), "{text}");
    }
    let text = reconciled(&[kept(1, KeptBecause::Incomplete("web.toml cannot be used".into()))]);
    assert!(text.contains("incomplete: web.toml cannot be used; 1 service port is kept"), "{text}");
    let nothing = reconciled(&[kept(0, KeptBecause::NotConfigured)]);
    assert_eq!(nothing, "every source is synced and the first full reconcile is done");
}
