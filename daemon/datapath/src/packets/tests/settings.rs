use super::*;

fn numbers(settings: PacketSettings) -> Vec<u32> {
    let bytes = settings.words().map(u64::to_ne_bytes);
    let (numbers, _) = bytes.as_flattened().as_chunks::<4>();
    numbers.iter().map(|number| u32::from_ne_bytes(*number)).collect()
}

#[test]
fn the_words_are_the_numbers_of_the_struct() {
    let settings = PacketSettings { unknown: UnknownPackets::Reset, answers: true, ..PacketSettings::default() };
    assert_eq!(numbers(settings), [0, 1, 1, 0, 0, 0]);
    let settings =
        PacketSettings { draining: Draining::Kubernetes, always_masquerades: true, ..PacketSettings::default() };
    assert_eq!(numbers(settings), [2, 0, 0, 1, 0, 0]);
    let unknown = UnknownPackets::AutoWithProxy;
    let settings = PacketSettings { unknown, owns_addresses: true, ..PacketSettings::default() };
    assert_eq!(numbers(settings), [0, 3, 0, 0, 1, 0]);
}
