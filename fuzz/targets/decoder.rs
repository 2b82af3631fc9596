//! Decodes arbitrary bytes as the response to a list or a watch: no panic, and the chunk boundaries
//! make no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodelb::source::kube::decode::{Decoder, Kind, shell};
use nodelb::source::kube::splitter::{Form, Piece, Splitter};

/// The objects found when the bytes arrive in chunks of this size; `None` if they are rejected.
fn split(form: Form, bytes: &[u8], step: usize) -> Option<Vec<Vec<u8>>> {
    let mut splitter = Splitter::new(form);
    let mut found = Vec::new();
    for bytes in bytes.chunks(step) {
        let fed = splitter.feed(bytes, |piece| match piece {
            Piece::Object(object) => found.push(object.to_vec()),
            Piece::TooLong(length) => found.push(length.to_string().into_bytes()),
            Piece::Shell(shell) => found.push(shell.to_vec()),
        });
        if fed.is_err() {
            return None;
        }
    }
    Some(found)
}

fuzz_target!(|bytes: &[u8]| {
    for form in [Form::Stream, Form::List] {
        let whole = split(form, bytes, bytes.len().max(1));
        assert_eq!(whole, split(form, bytes, 1));
        assert_eq!(whole, split(form, bytes, 7));
        for piece in whole.into_iter().flatten() {
            for kind in Kind::ALL {
                let mut decoder = Decoder::new(kind);
                _ = decoder.event(&piece);
                _ = decoder.item(&piece);
            }
            _ = shell(&piece);
        }
    }
});
