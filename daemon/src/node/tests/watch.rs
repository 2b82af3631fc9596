use nodelb_core::model::node::NodePortAddress;

use super::*;

fn identity(nodeport_addresses: &[NodePortAddress]) -> Arc<Identity> {
    Arc::new(Identity { name: "n1".into(), nodeport_addresses: nodeport_addresses.into(), ..Identity::default() })
}

fn facts(batch: Option<&[Change]>) -> NodeFacts {
    match batch {
        Some([Change::Node(facts)]) => facts.clone(),
        other => panic!("{other:?}"),
    }
}

/// Works in any network: only the configuration changes in this test.
#[tokio::test]
async fn the_owner_receives_differences_and_nothing_else() {
    let (identity_in, identity_out) = watch::channel(identity(&[NodePortAddress::Primary]));
    let (changes, mut reported) = mpsc::channel(8);
    start(identity_out, changes, NodeWatchTimeouts::default(), std::future::pending()).await.unwrap();
    let first = facts(reported.try_recv().ok().as_deref());
    assert_eq!((&*first.name, &first.nodeport_addresses), ("n1", &vec![NodePortAddress::Primary]));
    assert!(first.primary.is_subset(&first.addresses));

    identity_in.send_replace(identity(&[NodePortAddress::Primary]));
    identity_in.send_replace(identity(&[NodePortAddress::Loopback]));
    let second = facts(reported.recv().await.as_deref());
    assert_eq!(second.nodeport_addresses, [NodePortAddress::Loopback]);
    drop(identity_in);
    assert!(reported.recv().await.is_none(), "it ends with who started it");
}

#[tokio::test]
async fn a_failure_is_waited_for_longer_and_longer() {
    let (changes, _reported) = mpsc::channel(1);
    let (_identity_in, identity) = watch::channel(identity(&[]));
    let timeouts = NodeWatchTimeouts::default();
    let (addresses, reported) = (Addresses::default(), NodeFacts::default());
    let (host_name, late_name, other_name) = (host_name as fn() -> _, None, None);
    let mut watch = Watch {
        events: None,
        identity,
        changes,
        timeouts,
        addresses,
        reported,
        wait: None,
        host_name,
        late_name,
        other_name,
    };
    let mut waits = Vec::new();
    for _ in 0..8 {
        watch.fail(&io::ErrorKind::TimedOut.into());
        waits.push(watch.wait.unwrap().as_millis());
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    assert!(watch.refresh().await && watch.wait.is_some(), "the new socket has yet to last");
    assert!(watch.refresh().await && watch.wait.is_none());
    assert!(!watch.settle(Err(io::ErrorKind::BrokenPipe.into())).await && watch.events.is_none());
}

/// A host name that is set late is used; a later change is not, because the kubelet ignores it too.
#[tokio::test]
async fn a_host_name_that_is_set_late_is_taken_over_once() {
    static NOW: std::sync::Mutex<&str> = std::sync::Mutex::new("localhost");
    let unset = Identity { name: "localhost".into(), is_host_name: true, ..Identity::default() };
    let (identity_in, identity) = watch::channel(Arc::new(unset));
    let (changes, mut reported) = mpsc::channel(8);
    let mut watch = Watch {
        events: None,
        identity,
        changes,
        timeouts: NodeWatchTimeouts::default(),
        addresses: Addresses::default(),
        reported: NodeFacts::default(),
        wait: None,
        host_name: || Ok((*NOW.lock().unwrap()).to_owned()),
        late_name: None,
        other_name: None,
    };
    let mut named = async |now: &'static str| {
        *NOW.lock().unwrap() = now;
        assert!(watch.refresh().await);
        let mut name = None;
        while let Ok(batch) = reported.try_recv() {
            name = Some(facts(Some(&batch)).name);
        }
        (name.as_deref().map(str::to_owned), watch.other_name.clone())
    };
    assert_eq!(named("localhost").await.0.as_deref(), Some("localhost"));
    assert_eq!(named("").await, (None, None));
    assert_eq!(named("node-7").await, (Some("node-7".into()), None), "set by DHCP");
    assert_eq!(named("node-8").await, (None, Some("node-8".into())), "changed: only reported");
    assert_eq!(named("localhost.localdomain").await, (None, None));
    assert_eq!(named("node-7").await, (None, None));
    identity_in.send_replace(Arc::new(Identity { name: "node-9".into(), ..Identity::default() }));
    let identity = watch.take_identity();
    assert!(watch.publish(&identity).await);
    let mut last = None;
    while let Ok(batch) = reported.try_recv() {
        last = Some(facts(Some(&batch)).name);
    }
    assert_eq!(last.as_deref(), Some("node-9"), "a reload has the last word");
    watch.look_at_host_name(&identity);
    assert_eq!((watch.late_name, watch.other_name), (None, None), "a name that is set counts for good");
}

/// The read after an address event notices the reload before its own notification does.
#[tokio::test]
async fn a_node_name_that_is_reloaded_in_the_moment_of_an_address_event_is_taken_over() {
    let unset = Identity { name: "localhost".into(), is_host_name: true, ..Identity::default() };
    let (identity_in, identity) = watch::channel(Arc::new(unset));
    let (changes, mut reported) = mpsc::channel(8);
    let mut watch = Watch {
        events: None,
        identity,
        changes,
        timeouts: NodeWatchTimeouts::default(),
        addresses: Addresses::default(),
        reported: NodeFacts::default(),
        wait: None,
        host_name: || Ok("node-7".to_owned()),
        late_name: None,
        other_name: None,
    };
    let mut named = async |watch: &mut Watch| {
        assert!(watch.refresh().await);
        let mut name = None;
        while let Ok(batch) = reported.try_recv() {
            name = Some(facts(Some(&batch)).name);
        }
        name.as_deref().map(str::to_owned)
    };
    assert_eq!(named(&mut watch).await.as_deref(), Some("node-7"), "set by DHCP");
    identity_in.send_replace(Arc::new(Identity { name: "node-9".into(), ..Identity::default() }));
    assert_eq!(named(&mut watch).await.as_deref(), Some("node-9"), "node.name");
    let unset = Identity { name: "localhost".into(), is_host_name: true, ..Identity::default() };
    identity_in.send_replace(Arc::new(unset));
    assert_eq!(named(&mut watch).await.as_deref(), Some("node-7"), "no node.name, and a host name that was set since");
}
