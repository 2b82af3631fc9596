use super::*;
use crate::packets::counts::REASONS;

/// No reason.
#[expect(clippy::cast_possible_truncation, reason = "there are few")]
const NONE: u8 = REASONS.len() as u8;

/// An event as the programs write it: the numbers, the four small ones, and the lengths of the packet.
fn record(verdict: u8, reason: u8, l2_length: u8, lengths: [u32; 2]) -> Vec<u8> {
    let mut record = 7_000_u64.to_ne_bytes().to_vec();
    for number in [2, 3, 9, lengths[0], lengths[1]] {
        record.extend(number.to_ne_bytes());
    }
    record.extend([1, verdict, reason, l2_length]);
    record.extend([0xaa; EVENT_BYTES]);
    record.extend((0..96).collect::<Vec<u8>>());
    record
}

#[test]
fn an_event_has_the_packet_before_and_after() {
    let event = parse(&record(4, NONE, 14, [60, 1500])).unwrap();
    assert_eq!((event.time, event.ifindex, event.next_ifindex, event.is_leaving), (7_000, 2, Some(3), true));
    assert_eq!((event.service, event.verdict, event.reason), (Some(ServiceId(9)), PacketVerdict::Translated, None));
    assert_eq!(event.before, Captured { bytes: vec![0xaa; 60], length: 60, has_ethernet: true });
    let after = event.after.unwrap();
    assert_eq!((after.bytes.len(), after.length, after.bytes[95]), (96, 1500, 95));
}

#[test]
fn a_dropped_packet_has_no_after_and_has_a_reason() {
    let event = parse(&record(1, 5, 14, [60, 0])).unwrap();
    assert_eq!((event.verdict, event.reason, event.after), (PacketVerdict::Dropped, Some("no-local-backend"), None));
}

/// On a device without Ethernet headers, a program adds one before it redirects a packet.
#[test]
fn an_added_ethernet_header_is_left_out() {
    let after = parse(&record(5, NONE, 0, [40, 54])).unwrap().after.unwrap();
    assert_eq!((after.bytes[0], after.bytes.len(), after.length, after.has_ethernet), (14, 40, 40, false));
}

#[test]
fn records_that_are_no_events_are_left_out() {
    assert_eq!(parse(&record(4, NONE, 14, [60, 60])[..EVENT - 1]), None);
    assert_eq!(parse(&record(6, NONE, 14, [60, 60])), None, "an unknown verdict");
}

#[test]
fn the_words_of_a_filter_are_its_services_and_the_flag() {
    let numbers = |filter: &EventFilter| {
        let bytes = words(filter).map(u64::to_ne_bytes);
        let (numbers, _) = bytes.as_flattened().as_chunks::<4>();
        numbers.iter().map(|number| u32::from_ne_bytes(*number)).collect::<Vec<_>>()
    };
    let filter = EventFilter { services: Some([5, 6, 7].map(ServiceId).into()), only_dropped: true };
    assert_eq!(numbers(&filter), [5, 6, 7, 0, 0, 0, 0, 0, 1, 0]);
    let many = EventFilter { services: Some((1..=9).map(ServiceId).collect()), only_dropped: false };
    assert_eq!(numbers(&many), [0; 10], "more than fit: all");
}

#[test]
fn times_are_near_the_wall_clock() {
    let now = nanoseconds(ClockId::CLOCK_MONOTONIC).unwrap();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let earlier = u128::from(unix_micros(now - 2_000_000_000));
    assert!((wall - 2_500_000..wall - 1_500_000).contains(&earlier), "{earlier} is not 2 s before {wall}");
}
