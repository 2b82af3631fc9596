use super::*;

fn bytes(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
}

#[test]
fn messages_are_separated_however_they_end() {
    let (one, other) = (bytes(1, &[7]), bytes(2, &[8; 4]));
    let padded = [&one[..], &[0; 3], &other].concat();
    assert_eq!(messages(&padded).collect::<Vec<_>>(), [&one[..], &other]);
    for length in 0..padded.len() {
        assert!(messages(&padded[..length]).count() < 2, "{length}");
    }
    let mut lies = one;
    for length in [0_u32, 15, 18, u32::MAX] {
        lies[..4].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(messages(&lies).count(), 0, "{length}");
    }
}
