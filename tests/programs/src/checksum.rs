//! The Internet checksum (RFC 1071), computed in full and updated after a change (RFC 1624).

/// The one's complement sum of the 16-bit words in network order. An odd last byte is the upper half of its word.
pub fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum, word| add(sum, u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
}

/// The one's complement sum of two numbers.
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, has_carry) = a.overflowing_add(b);
    // A sum that has wrapped is at most 0xfffe.
    if has_carry { sum + 1 } else { sum }
}

/// The checksum of the bytes. The field of the checksum itself is 0 in them.
pub fn of(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// The checksum after `old`, which begins at an even offset, has been replaced with `new`. A wrong checksum stays
/// wrong by the same difference.
pub fn updated(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    !add(add(!checksum, !sum(old)), sum(new))
}

#[cfg(test)]
#[path = "tests/checksum.rs"]
mod tests;
