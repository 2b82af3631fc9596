use nodelb_host::clock::Clock;

use super::*;
use crate::reconcile::Marker;

#[test]
fn the_kernels_port_range_is_read() {
    assert_eq!(parse_local_ports("32768\t60999\n"), Some(32_768..=60_999));
    assert_eq!(parse_local_ports("32768"), None);
    let local = local_ports().unwrap();
    assert!(local.start() <= local.end());
}

/// The previous run has translated connections of clients outside, this one cannot: its history had nothing about it, so that
/// "connections from outside the node are translated" was the last word.
#[tokio::test]
async fn a_packet_path_that_cannot_be_started_is_in_the_history() {
    let (changes_in, mut changes) = tokio::sync::mpsc::channel(4);
    let (_snapshots, snapshot) = channel::channel(Arc::default());
    let owner = OwnerHandle { changes: changes_in, snapshot, clock: Clock::start() };
    let config = channel::channel(Arc::new(Config::parse("[packets]\nmode = \"on\"\n").unwrap())).1;
    let failure = PacketFailure { reason: "ENOMEM".into(), is_earlier_active: false };
    drop(start(PacketPath::Failed(failure), (&owner, &Marker::default().marks()), &config, std::future::pending::<()>));
    let happened = changes.try_recv().unwrap_or_default();
    assert!(matches!(&happened[..], [Change::Happened(_)]), "{happened:?}");
}
