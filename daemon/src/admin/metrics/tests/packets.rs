use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodelb_datapath::packets::ConnectionCount;
use tokio::sync::watch;

use super::*;

#[test]
fn counts_sweeps_and_devices_are_published() {
    let mut counts =
        PacketCounts { forward: 10, reverse: 9, begun: 2, resets: 1, icmp_errors: 6, ..PacketCounts::default() };
    counts.dropped[5] = 7;
    counts.passed[3] = 8;
    let report = SweepReport {
        swept: BTreeMap::from([(SweepReason::Idle, 3)]),
        duration: Duration::from_millis(250),
        count: Some(ConnectionCount { connections: 4, handshakes: 5, forwarded: 6 }),
        limit: 100,
        outcomes: Outcomes { answered: 11, refused: 12, unanswered: 13 },
        ..SweepReport::default()
    };
    let published = DeviceOutputs {
        sweep: Some(watch::channel(Arc::new(report)).1),
        counts: Arc::new(move || Some(counts)),
        ..DeviceOutputs::default()
    };
    let mut exposition = Exposition::default();
    packets(&mut exposition, &published);
    let text = exposition.text().unwrap();
    for sample in [
        "nodelb_packet_translated_total{direction=\"forward\"} 10",
        "nodelb_packet_translated_total{direction=\"reverse\"} 9",
        "nodelb_packet_dropped_total{reason=\"no-local-backend\"} 7",
        "nodelb_packet_dropped_total{reason=\"short\"} 0",
        "nodelb_packet_passed_total{reason=\"fragment\"} 8",
        "nodelb_packet_answered_total{kind=\"rst\"} 1",
        "nodelb_packet_answered_total{kind=\"icmp\"} 6",
        "nodelb_packet_connections 4",
        "nodelb_packet_handshakes 5",
        "nodelb_packet_connections_limit 100",
        "nodelb_packet_connections_created_total 2",
        "nodelb_packet_swept_total{reason=\"idle\"} 3",
        "nodelb_packet_swept_total{reason=\"reset\"} 0",
        "nodelb_packet_outcomes_total{outcome=\"unanswered\"} 13",
        "nodelb_packet_sweep_duration_seconds 0.25",
        "nodelb_packet_devices{state=\"attached\"} 0",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample}: {text}");
    }
}
