use proptest::prelude::*;

use super::*;

/// The pieces of a text that arrives in chunks of `step` bytes.
fn cut(
    text: &str,
    step: usize,
    mut feed: impl FnMut(&[u8], &mut dyn FnMut(Piece<'_>)) -> Result<(), SplitError>,
) -> Result<Vec<String>, SplitError> {
    let mut found = Vec::new();
    for bytes in text.as_bytes().chunks(step.max(1)) {
        feed(bytes, &mut |piece| {
            found.push(match piece {
                Piece::Object(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Piece::TooLong => "too long".into(),
                Piece::ListFields(bytes) => format!("shell {}", String::from_utf8_lossy(bytes)),
            });
        })?;
    }
    Ok(found)
}

fn events(max: usize, text: &str, step: usize) -> Result<Vec<String>, SplitError> {
    let mut lines = Lines::with_max(max);
    cut(text, step, |bytes, found| lines.feed(bytes, found))
}

fn items(max: usize, text: &str, step: usize) -> Result<Vec<String>, SplitError> {
    let mut splitter = Splitter::with_max(max);
    let found = cut(text, step, |bytes, found| splitter.feed(bytes, found))?;
    assert!(splitter.is_between_objects(), "{text} is complete");
    Ok(found)
}

#[test]
fn a_watch_is_cut_into_events_wherever_the_pieces_end() {
    let text = " {\"a\":{\"b\":[1,{}]}}\n\n{\"c\":\"}{\\\"\\\\\"}\r\n{}\n{\"half\"";
    for step in 1..=text.len() {
        let found = events(100, text, step).expect("valid");
        assert_eq!(found, [" {\"a\":{\"b\":[1,{}]}}", "{\"c\":\"}{\\\"\\\\\"}", "{}"], "{step}");
    }
}

#[test]
fn a_list_is_cut_into_items_and_the_rest() {
    let text = r#"{"kind":"items","x":{"items":[{"no":1}]},"items":[{"a":[{}]} , {"b":2},null,3],"metadata":{"continue":"c"}}"#;
    for step in 1..text.len() {
        let found = items(100, text, step).expect("valid");
        let shell = r#"shell {"kind":"items","x":{"items":[{"no":1}]},"items":[],"metadata":{"continue":"c"}}"#;
        assert_eq!(found, [r#"{"a":[{}]}"#, r#"{"b":2}"#, shell], "{step}");
    }
}

#[test]
fn a_list_without_items_is_only_a_shell() {
    for text in [r#"{"items":null}"#, r#"{"items":[]}"#, "{}", r#"{"message":"items"}"#] {
        assert_eq!(items(9, text, 3), Ok(vec![format!("shell {text}")]));
    }
}

#[test]
fn an_object_that_is_too_long_is_not_kept() {
    let long = "x".repeat(30);
    for step in 1..100 {
        let found = events(10, &format!("{{\"a\":\"{long}\"}}\n{{\"b\":1}}\n"), step);
        assert_eq!(found, Ok(vec!["too long".into(), "{\"b\":1}".into()]), "{step}");
        let found = items(10, &format!("{{\"items\":[{{\"a\":\"{long}\"}},{{\"b\":1}}]}}"), step);
        assert_eq!(found, Ok(vec!["too long".into(), "{\"b\":1}".into(), "shell {\"items\":[]}".into()]), "{step}");
    }
}

#[test]
fn a_line_without_end_is_not_collected() {
    let mut lines = Lines::with_max(1000);
    let mut found = 0;
    for _ in 0..1000 {
        lines.feed(&b"{\"a\":".repeat(50), |_| found += 1).expect("it begins well");
        assert!(lines.begun.len() <= 1000);
    }
    assert_eq!(found, 1);
}

#[test]
fn what_is_not_objects_is_refused() {
    for text in ["<html>", "[1]", "}", "null", "\"{}\"", "{}\n]"] {
        assert!(matches!(events(9, text, 2), Err(SplitError::NotObjects(_))), "{text}");
    }
    for text in ["<html>", "[1]", "}", "null", "\"{}\"", "{}]"] {
        assert!(matches!(items(9, text, 2), Err(SplitError::NotObjects(_))), "{text}");
    }
    let endless = "[".repeat(MAX_DEPTH + 1);
    assert_eq!(items(9, &format!("{{\"a\":{endless}"), 999), Err(SplitError::TooDeep));
    let shell = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_LIST_FIELDS));
    assert_eq!(items(9, &shell, 4096), Err(SplitError::ListFieldsTooLong));
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_do_no_harm(bytes: Vec<u8>, step in 1_usize..20) {
        let (mut splitter, mut lines) = (Splitter::with_max(64), Lines::with_max(64));
        _ = bytes.chunks(step).try_for_each(|bytes| splitter.feed(bytes, |_| {}));
        _ = bytes.chunks(step).try_for_each(|bytes| lines.feed(bytes, |_| {}));
    }
}
