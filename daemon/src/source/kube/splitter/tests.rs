use proptest::prelude::*;

use super::*;

/// What comes out when the text arrives in pieces of `step` bytes.
fn split(form: Form, max: usize, text: &str, step: usize) -> Result<Vec<String>, SplitError> {
    let mut splitter = Splitter::with_max(form, max);
    let mut found = Vec::new();
    for bytes in text.as_bytes().chunks(step.max(1)) {
        splitter.feed(bytes, |piece| {
            found.push(match piece {
                Piece::Object(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Piece::TooLong(length) => format!("too long: {length}"),
                Piece::Shell(bytes) => format!("shell {}", String::from_utf8_lossy(bytes)),
            });
        })?;
    }
    assert!(splitter.is_between_objects(), "{text} is complete");
    Ok(found)
}

#[test]
fn a_stream_is_cut_into_events_wherever_the_pieces_end() {
    let text = " {\"a\":{\"b\":[1,{}]}}\n{\"c\":\"}{\\\"\\\\\"}{}\r\n";
    for step in 1..text.len() {
        let found = split(Form::Stream, 100, text, step).expect("valid");
        assert_eq!(found, ["{\"a\":{\"b\":[1,{}]}}", "{\"c\":\"}{\\\"\\\\\"}", "{}"], "{step}");
    }
}

#[test]
fn a_list_is_cut_into_items_and_the_rest() {
    let text = r#"{"kind":"items","x":{"items":[{"no":1}]},"items":[{"a":[{}]} , {"b":2},null,3],"metadata":{"continue":"c"}}"#;
    for step in 1..text.len() {
        let found = split(Form::List, 100, text, step).expect("valid");
        let shell = r#"shell {"kind":"items","x":{"items":[{"no":1}]},"items":[],"metadata":{"continue":"c"}}"#;
        assert_eq!(found, [r#"{"a":[{}]}"#, r#"{"b":2}"#, shell], "{step}");
    }
}

#[test]
fn a_list_without_items_is_only_a_shell() {
    for text in [r#"{"items":null}"#, r#"{"items":[]}"#, "{}", r#"{"message":"items"}"#] {
        assert_eq!(split(Form::List, 9, text, 3), Ok(vec![format!("shell {text}")]));
    }
}

#[test]
fn an_object_that_is_too_long_is_counted_and_not_kept() {
    let text = format!("{{\"a\":\"{}\"}}{{\"b\":1}}", "x".repeat(30));
    for step in 1..text.len() {
        assert_eq!(split(Form::Stream, 10, &text, step), Ok(vec!["too long: 38".into(), "{\"b\":1}".into()]));
    }
}

#[test]
fn what_is_not_objects_is_refused() {
    for text in ["<html>", "[1]", "}", "null", "\"{}\"", "{}]"] {
        for form in [Form::Stream, Form::List] {
            assert!(matches!(split(form, 9, text, 2), Err(SplitError::NotObjects(_))), "{text}");
        }
    }
    let endless = "[".repeat(MAX_DEPTH + 1);
    assert_eq!(split(Form::Stream, 9, &format!("{{\"a\":{endless}"), 999), Err(SplitError::TooDeep));
    let shell = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_SHELL));
    assert_eq!(split(Form::List, 9, &shell, 4096), Err(SplitError::ShellTooLong));
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_do_no_harm(bytes: Vec<u8>, step in 1_usize..20) {
        for form in [Form::Stream, Form::List] {
            let mut splitter = Splitter::with_max(form, 64);
            for bytes in bytes.chunks(step) {
                if splitter.feed(bytes, |_| {}).is_err() {
                    break;
                }
            }
        }
    }
}
