use axum::http::Uri;
use nodelb_datapath::packets::{Captured, PacketVerdict};

use super::super::fixture::unsynced;
use super::super::query::{DROPPED, SERVICE, WATCH};
use super::*;
use crate::devices::DeviceOutputs;
use crate::devices::events::tests::{event, watchers, watchers_that_lose};
use std::sync::atomic::Ordering;

fn query(text: &str) -> Query {
    let uri: Uri = format!("/packets?{text}").parse().unwrap();
    Query::parse(&uri, &[&SERVICE, &DROPPED, &WATCH]).unwrap()
}

#[tokio::test]
async fn packets_are_rows_with_the_bytes_before_and_after() {
    let (watchers, send, _filters) = watchers();
    let published = DeviceOutputs { watchers: Some(watchers), ..DeviceOutputs::default() };
    let state = AdminState { packets: Some(published), ..unsynced() };
    let mut feed = Packets::new(&state, &query("watch&dropped"));
    let after = Some(Captured { bytes: vec![0xff, 1], length: 40, has_ethernet: true });
    send.send(event(7, PacketVerdict::Translated, None)).unwrap();
    let dropped = event(7, PacketVerdict::Rst, Some("no-backend"));
    send.send(PacketEvent { after, next_ifindex: Some(3), ..dropped }).unwrap();
    assert!(feed.changed().await);
    let changes = feed.changes();
    let [change] = &changes[..] else { panic!("{changes:?}") };
    let AnyRow::Packet(row) = &change.row else { panic!("{change:?}") };
    assert_eq!((row.device.as_str(), row.direction.as_str(), row.verdict.as_str()), ("(2)", "in", "rst"));
    assert_eq!((row.reason.as_deref(), &row.service, row.link.as_str()), (Some("no-backend"), &None, "ip"));
    assert_eq!((row.length, row.bytes.as_str()), (2, "4500"));
    assert_eq!((row.next_device.as_deref(), row.next_link.as_deref()), (Some("(3)"), Some("ethernet")));
    assert_eq!((row.next_length, row.next_bytes.as_deref(), row.lost), (Some(40), Some("ff01"), 0));
    assert_eq!(serde_json::to_value(packets(&state)).unwrap()["watchers"][0]["watchers"], 1);
}

/// Once, they were reported with the next packet, whenever that came.
#[tokio::test]
async fn lost_packets_are_reported_although_no_packet_follows() {
    let (watchers, _send, _filters, lost) = watchers_that_lose();
    let published = DeviceOutputs { watchers: Some(watchers), ..DeviceOutputs::default() };
    let state = AdminState { packets: Some(published), ..unsynced() };
    let mut feed = Packets::new(&state, &query("watch"));
    lost.store(5_000, Ordering::Relaxed);
    assert!(feed.changed().await);
    let changes = feed.changes();
    let [Change { mark: Mark::Changed, row: AnyRow::Lost(row), .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(row.line(), "# 5000 packets were not reported: too many at a time\n");
    assert!(feed.changes().is_empty());
}

#[tokio::test]
async fn without_the_packet_path_there_is_no_packet() {
    let state = unsynced();
    let mut feed = Packets::new(&state, &query("watch"));
    assert!(!feed.changed().await);
    assert!(feed.changes().is_empty());
    let answer = serde_json::to_value(packets(&state)).unwrap();
    assert_eq!((&answer["packets"], &answer["watchers"]), (&serde_json::json!([]), &serde_json::json!([])));
}
