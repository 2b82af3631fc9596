//! Makes external text safe for a terminal and for the journal: replaces control characters and limits the length.
//! Formats lists and numbers in sentences.

use std::borrow::Cow;
use std::fmt::{Display, Write};

/// The maximum length of a name in Kubernetes. Field manager names have at most 128 characters.
const MAX_NAME: usize = 253;

/// The maximum length of an explanation.
const MAX_SENTENCE: usize = 600;

/// A name without control characters, shortened if it is too long.
pub fn name(text: &str) -> Cow<'_, str> {
    limited(text, MAX_NAME)
}

/// An explanation that quotes external text, without control characters, shortened if it is too long.
pub fn sentence(text: &str) -> Cow<'_, str> {
    limited(text, MAX_SENTENCE)
}

/// Text without control characters, and of at most `most` characters.
pub fn limited(text: &str, most: usize) -> Cow<'_, str> {
    // Most texts are ASCII, which is examined faster by its bytes.
    let is_printable = || text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.chars().any(is_control);
    let is_harmless = text.len() <= most && is_printable();
    if is_harmless {
        return Cow::Borrowed(text);
    }
    let mut characters = text.chars().map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c });
    let mut shown: String = characters.by_ref().take(most).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    Cow::Owned(shown)
}

/// Line ends, escape characters, characters that change the writing direction, and invisible ones: two texts that look
/// the same must be the same.
pub fn is_control(c: char) -> bool {
    let is_invisible = matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    c.is_control() || is_invisible
}

/// An absent value for an empty text.
pub fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Formats as `a, b and 3 more`, with at most `max` items.
pub fn listed(items: impl IntoIterator<Item = impl Display>, max: usize) -> String {
    let mut items = items.into_iter();
    let mut text = String::new();
    for item in items.by_ref().take(max) {
        let separator = if text.is_empty() { "" } else { ", " };
        write!(text, "{separator}{item}").expect("invariant: writing to a String does not fail");
    }
    match items.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Each item with a sign before it, such as `+10.1.0.1:8080/TCP`.
pub fn signed<T: Display>(sign: char, items: &[T]) -> impl Iterator<Item = String> {
    items.iter().map(move |item| format!("{sign}{item}"))
}

/// A number with its noun: `1 service`, `2 services`.
pub fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
#[path = "tests/text.rs"]
mod tests;
