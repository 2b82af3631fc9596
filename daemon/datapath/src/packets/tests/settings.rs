use super::*;

#[test]
fn the_words_are_the_four_numbers_of_the_struct() {
    let settings = PacketSettings { resets_unknown: true, answers: true, ..PacketSettings::default() };
    let bytes = settings.words().map(u64::to_ne_bytes);
    let (numbers, _) = bytes.as_flattened().as_chunks::<4>();
    assert_eq!(numbers.iter().map(|number| u32::from_ne_bytes(*number)).collect::<Vec<_>>(), [0, 1, 1, 0]);
    let settings = PacketSettings { is_draining: true, always_masquerades: true, ..PacketSettings::default() };
    let bytes = settings.words().map(u64::to_ne_bytes);
    let (numbers, _) = bytes.as_flattened().as_chunks::<4>();
    assert_eq!(numbers.iter().map(|number| u32::from_ne_bytes(*number)).collect::<Vec<_>>(), [1, 0, 0, 1]);
}
