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

/// The identity of a node that has no name yet.
fn unset() -> Arc<Identity> {
    Arc::new(Identity { name: "localhost".into(), is_host_name: true, ..Identity::default() })
}

/// The identity of a node with this name in the configuration.
fn named(name: &str) -> Arc<Identity> {
    Arc::new(Identity { name: name.into(), ..Identity::default() })
}

/// A watch that has read nothing, with the other ends of its channels.
struct Rig {
    watch: Watch,
    identity: watch::Sender<Arc<Identity>>,
    changes: mpsc::Receiver<Vec<Change>>,
}

impl Rig {
    fn new(identity: Arc<Identity>, host_name: fn() -> io::Result<String>) -> Self {
        let (identity, identity_out) = watch::channel(identity);
        let (changes_in, changes) = mpsc::channel(8);
        let watch = Watch {
            events: None,
            identity: identity_out,
            changes: changes_in,
            addresses: Addresses::default(),
            reported: NodeFacts::default(),
            wait: None,
            host_name,
            late_name: None,
            other_name: None,
        };
        Self { watch, identity, changes }
    }

    /// The name in the last facts that were sent to the owner since the last call.
    fn last_name(&mut self) -> Option<String> {
        let mut name = None;
        while let Ok(batch) = self.changes.try_recv() {
            name = Some(facts(Some(&batch)).name.to_string());
        }
        name
    }

    /// The name after another read.
    async fn refreshed_name(&mut self) -> Option<String> {
        assert!(self.watch.refresh().await);
        self.last_name()
    }
}

/// Works in any network: only the configuration changes in this test.
#[tokio::test]
async fn the_owner_receives_differences_and_nothing_else() {
    let (identity_in, identity_out) = watch::channel(identity(&[NodePortAddress::Primary]));
    let (changes, mut reported) = mpsc::channel(8);
    start(identity_out, Vec::new(), changes, std::future::pending()).await.unwrap();
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
    let Rig { mut watch, changes: _open, .. } = Rig::new(identity(&[]), host_name);
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
    let mut rig = Rig::new(unset(), || Ok((*NOW.lock().unwrap()).to_owned()));
    let mut named_by_host = async |now: &'static str| {
        *NOW.lock().unwrap() = now;
        (rig.refreshed_name().await, rig.watch.other_name.clone())
    };
    assert_eq!(named_by_host("localhost").await.0.as_deref(), Some("localhost"));
    assert_eq!(named_by_host("").await, (None, None));
    assert_eq!(named_by_host("node-7").await, (Some("node-7".into()), None), "set by DHCP");
    assert_eq!(named_by_host("node-8").await, (None, Some("node-8".into())), "changed: only reported");
    assert_eq!(named_by_host("localhost.localdomain").await, (None, None));
    assert_eq!(named_by_host("node-7").await, (None, None));
    rig.identity.send_replace(named("node-9"));
    let identity = rig.watch.take_identity();
    assert!(rig.watch.publish(&identity).await);
    assert_eq!(rig.last_name().as_deref(), Some("node-9"), "a reload has the last word");
    rig.watch.look_at_host_name(&identity);
    assert_eq!((rig.watch.late_name, rig.watch.other_name), (None, None), "a name that is set counts for good");
}

/// The read after an address event notices the reload before its own notification does.
#[tokio::test]
async fn a_node_name_that_is_reloaded_in_the_moment_of_an_address_event_is_taken_over() {
    let mut rig = Rig::new(unset(), || Ok("node-7".to_owned()));
    assert_eq!(rig.refreshed_name().await.as_deref(), Some("node-7"), "set by DHCP");
    rig.identity.send_replace(named("node-9"));
    assert_eq!(rig.refreshed_name().await.as_deref(), Some("node-9"), "node.name");
    rig.identity.send_replace(unset());
    assert_eq!(
        rig.refreshed_name().await.as_deref(),
        Some("node-7"),
        "no node.name, and a host name that was set since"
    );
}

/// The kernel was busy with the end of many network namespaces, and the start ended.
#[tokio::test]
async fn a_kernel_that_does_not_answer_in_time_is_asked_again() {
    let read_with = async |kinds: &[Option<io::ErrorKind>]| {
        let asked = std::cell::Cell::new(0);
        let outcome = until_answered(|| {
            let kind = kinds[asked.replace(asked.get() + 1)];
            async move { kind.map_or(Ok(()), |kind| Err(kind.into())) }
        });
        (outcome.await.map_err(|error| error.kind()), asked.get())
    };
    let late = Some(io::ErrorKind::TimedOut);
    assert_eq!(read_with(&[late, Some(io::ErrorKind::WouldBlock), None]).await, (Ok(()), 3));
    assert_eq!(read_with(&[late; 3]).await, (Err(io::ErrorKind::TimedOut), 3));
    assert_eq!(read_with(&[Some(io::ErrorKind::PermissionDenied)]).await, (Err(io::ErrorKind::PermissionDenied), 1));
}
