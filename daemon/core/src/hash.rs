//! A hash that is the same in every version and on every machine: it is in pinned maps, and hosts compare it.

/// The FNV-1a hash of the words, each terminated by 0.
pub fn hash<'w>(words: impl IntoIterator<Item = &'w [u8]>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = words.into_iter().flat_map(|word| word.iter().copied().chain([0]));
    bytes.fold(OFFSET, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME))
}
