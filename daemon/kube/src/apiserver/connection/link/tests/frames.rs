use proptest::prelude::*;

use super::*;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
}

fn goaway(code: u8, debug: &[u8]) -> Vec<u8> {
    frame(GOAWAY, &[&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, code], debug].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The result does not depend on the size of the chunks or the content of other frames.
    #[test]
    fn a_goaway_without_an_error_is_found_among_other_frames(
        before in proptest::collection::vec((0..10u8, proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
        code in proptest::option::of(0..3u8),
        debug in proptest::collection::vec(any::<u8>(), 0..5),
        piece in 1..50usize,
    ) {
        let others = before.iter().filter(|(kind, _)| *kind != GOAWAY).map(|(kind, payload)| frame(*kind, payload));
        let mut bytes: Vec<u8> = others.flatten().collect();
        bytes.extend(code.map(|code| goaway(code, &debug)).into_iter().flatten());
        bytes.extend(frame(0, b"more"));
        let mut frames = Frames::default();
        let found = bytes.chunks(piece).filter(|piece| frames.read(piece)).count();
        prop_assert_eq!(found, usize::from(code == Some(0)));
    }
}
