use super::*;

#[test]
fn counts_of_all_cpus_are_added() {
    let words = |factor: u64| (0..WORDS as u64).flat_map(|word| (word * factor).to_ne_bytes()).collect::<Vec<u8>>();
    let counts = sum(&[words(1), words(10)]);
    let totals = [counts.forward, counts.reverse, counts.begun, counts.answered, counts.port_tries];
    assert_eq!(totals, [0, 11, 22, 33, 44]);
    assert_eq!((counts.dropped[0], counts.dropped[REASONS.len() - 1]), (55, 17 * 11));
    assert_eq!(sum(&[]), PacketCounts::default());
}
