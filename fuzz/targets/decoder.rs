//! Decodes arbitrary bytes as the response to a list or a watch: no panic, and neither the chunk boundaries
//! nor a space before an object make a difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodelb_kube::api::decode::{Decode, Decoder, Kind, ListWatchEvent, list_metadata};
use nodelb_kube::api::splitter::{Lines, Piece, SplitError, Splitter};

/// The objects found when the bytes arrive in chunks of this size; `None` if they are rejected.
fn cut(
    bytes: &[u8],
    step: usize,
    mut feed: impl FnMut(&[u8], &mut dyn FnMut(Piece<'_>)) -> Result<(), SplitError>,
) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for bytes in bytes.chunks(step) {
        let fed = feed(bytes, &mut |piece| match piece {
            Piece::Object(object) => found.push(object.to_vec()),
            Piece::TooLong => found.push(b"too long".to_vec()),
            Piece::ListFields(list) => found.push(list.to_vec()),
        });
        if fed.is_err() {
            return None;
        }
    }
    Some(found)
}

fn events(bytes: &[u8], step: usize) -> Option<Vec<Vec<u8>>> {
    let mut lines = Lines::default();
    cut(bytes, step, |bytes, found| lines.feed(bytes, found))
}

fn items(bytes: &[u8], step: usize) -> Option<Vec<Vec<u8>>> {
    let mut splitter = Splitter::default();
    cut(bytes, step, |bytes, found| splitter.feed(bytes, found))
}

/// The event without the text of an error, which contains a column.
fn without_reason(event: ListWatchEvent) -> ListWatchEvent {
    match event {
        ListWatchEvent::Skipped { key, .. } => ListWatchEvent::Skipped { key, reason: String::new() },
        event => event,
    }
}

fuzz_target!(|bytes: &[u8]| {
    for split in [events, items] {
        let whole = split(bytes, bytes.len().max(1));
        assert_eq!(whole, split(bytes, 1));
        assert_eq!(whole, split(bytes, 7));
        for piece in whole.into_iter().flatten() {
            for kind in Kind::ALL {
                let mut decoder = Decoder::new(kind);
                // With a space, serde_json decodes it in any case.
                let spaced = [b" ".as_slice(), &piece].concat();
                let [event, other] = [&piece, &spaced].map(|piece| decoder.event(piece).map(without_reason).ok());
                assert_eq!(event, other);
                let [item, other] = [&piece, &spaced].map(|piece| without_reason(decoder.item(piece)));
                assert_eq!(item, other);
            }
            _ = list_metadata(&piece);
        }
    }
});
