use super::*;

/// The example of RFC 1071 section 3.
#[test]
fn the_sum_is_that_of_the_rfc() {
    assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    assert_eq!(of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0x220d);
}

#[test]
fn an_odd_last_byte_is_the_upper_half_of_a_word() {
    assert_eq!(sum(&[0x01, 0x02, 0x03]), 0x0402);
}

/// The example of RFC 1624 section 4, where the wrong equation of RFC 1141 returns 0xffff.
#[test]
fn an_updated_checksum_is_that_of_the_rfc() {
    assert_eq!(updated(0xdd2f, &[0x55, 0x55], &[0x32, 0x85]), 0x0000);
}

#[test]
fn an_updated_checksum_is_the_one_of_the_new_bytes() {
    let (old, new) = ([0x12, 0x34, 0xff, 0xfe, 0x00, 0x01], [0xab, 0xcd, 0x00, 0x00, 0xff, 0xff]);
    assert_eq!(updated(of(&old), &old[2..], &[new[2], new[3], new[4], new[5]]), of(&[0x12, 0x34, 0, 0, 0xff, 0xff]));
    assert_eq!(updated(of(&old), &old, &new), of(&new));
}
