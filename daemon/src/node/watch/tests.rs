use nodelb_core::nodeport::NodePortAddress;

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

/// In whatever network this runs: only the configuration changes here.
#[tokio::test]
async fn the_owner_is_told_what_differs_and_nothing_else() {
    let (identity_in, identity_out) = watch::channel(identity(&[NodePortAddress::Primary]));
    let (changes, mut told) = mpsc::channel(8);
    let connections = Connections { identity: identity_out, changes };
    start(connections, Timing::default(), std::future::pending()).await.unwrap();
    let first = facts(told.try_recv().ok().as_deref());
    assert_eq!((&*first.name, &first.nodeport_addresses), ("n1", &vec![NodePortAddress::Primary]));
    assert!(first.primary.is_subset(&first.addresses));

    identity_in.send_replace(identity(&[NodePortAddress::Primary]));
    identity_in.send_replace(identity(&[NodePortAddress::Loopback]));
    let second = facts(told.recv().await.as_deref());
    assert_eq!(second.nodeport_addresses, [NodePortAddress::Loopback]);
    drop(identity_in);
    assert!(told.recv().await.is_none(), "it ends with who started it");
}

#[tokio::test]
async fn a_failure_is_waited_for_longer_and_longer() {
    let (changes, _told) = mpsc::channel(1);
    let (_identity_in, identity) = watch::channel(identity(&[]));
    let timing = Timing::default();
    let (addresses, told) = (Addresses::default(), NodeFacts::default());
    let mut watch = Watch { events: None, identity, changes, timing, addresses, told, wait: None };
    let mut waits = Vec::new();
    for _ in 0..8 {
        watch.fail(&io::ErrorKind::TimedOut.into());
        waits.push(watch.wait.unwrap().as_millis());
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    assert!(watch.look().await && watch.wait.is_some(), "the new socket has yet to last");
    assert!(watch.look().await && watch.wait.is_none());
    assert!(!watch.settle(Err(io::ErrorKind::BrokenPipe.into())).await && watch.events.is_none());
}
