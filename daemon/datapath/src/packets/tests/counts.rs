use super::*;

#[test]
fn counts_of_all_cpus_are_added() {
    let words = |factor: u64| (0..WORDS as u64).flat_map(|word| (word * factor).to_ne_bytes()).collect::<Vec<u8>>();
    let counts = sum(&[words(1), words(10)]);
    let totals = [counts.forward, counts.reverse, counts.begun, counts.port_tries];
    assert_eq!(totals, [0, 11, 22, 44]);
    let last = REASONS.len() - 1;
    let ends = [counts.dropped[0], counts.dropped[last], counts.passed[0], counts.passed[last]];
    assert_eq!(ends, [5, 5 + last, 6 + last, 6 + 2 * last].map(|word| word as u64 * 11));
    assert_eq!(sum(&[]), PacketCounts::default());
}

#[test]
fn answers_are_counted_by_their_kind() {
    let mut words = [0_u64; WORDS];
    words[3] = 7;
    words[RESETS] = 5;
    let counts = sum(&[words.iter().flat_map(|word| word.to_ne_bytes()).collect()]);
    assert_eq!((counts.resets, counts.icmp_errors), (5, 2));
}

/// An entry of `packet_drops`, as the programs write it.
fn entry(id: u32, reason: u16, verdict: u16, cpus: &[(u64, u32, u32)]) -> Option<DropCount> {
    let key = [&id.to_ne_bytes()[..], &reason.to_ne_bytes(), &verdict.to_ne_bytes()].concat();
    let value = |(packets, first, last): &(u64, u32, u32)| {
        [&packets.to_ne_bytes()[..], &first.to_ne_bytes(), &last.to_ne_bytes(), &[0; 8]].concat()
    };
    drop_count(&key, &cpus.iter().map(value).collect::<Vec<_>>(), 1000)
}

#[test]
fn drops_of_all_cpus_are_added() {
    let found = entry(7, 4, 2, &[(3, 900, 990), (0, 0, 0), (1, 950, 995)]).unwrap();
    let (service, reason, verdict) = (Some(ServiceId(7)), "no-backend", PacketVerdict::Rst);
    assert_eq!(found, DropCount { service, reason, verdict, packets: 4, first: 100, last: 5 });
    let unknown = entry(0, 0, 0, &[(1, 1000, 1000)]).unwrap();
    assert_eq!((unknown.service, unknown.verdict), (None, PacketVerdict::Passed));
}

#[test]
fn entries_of_no_packet_and_unknown_numbers_are_left_out() {
    assert_eq!(entry(7, 4, 1, &[(0, 0, 0)]), None);
    assert_eq!(entry(7, u16::try_from(REASONS.len()).unwrap(), 1, &[(1, 0, 0)]), None);
    assert_eq!(entry(7, 4, u16::try_from(PacketVerdict::ALL.len()).unwrap(), &[(1, 0, 0)]), None);
}

#[test]
fn names_are_in_the_order_of_the_numbers() {
    for (number, name) in PacketVerdict::NAMES.iter().enumerate() {
        assert_eq!(PacketVerdict::new(number).map(PacketVerdict::name), Some(*name));
    }
}
