//! Makes external text safe for a terminal and for the journal: escapes control characters and limits the length. Pure.

use std::borrow::Cow;

/// The maximum length of a name in Kubernetes. Field manager names have at most 128 characters.
const MAX_NAME: usize = 253;

/// The maximum length of an explanation.
const MAX_SENTENCE: usize = 600;

/// A name without control characters, shortened if it is too long.
pub fn name(text: &str) -> Cow<'_, str> {
    shortened(text, MAX_NAME)
}

/// An explanation that quotes external text, without control characters, shortened if it is too long.
pub fn sentence(text: &str) -> Cow<'_, str> {
    shortened(text, MAX_SENTENCE)
}

fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    let is_harmless = text.len() <= most && !text.chars().any(is_control);
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

/// Line ends, escape characters, and characters that change the writing direction.
pub fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
#[path = "tests/printable.rs"]
mod tests;
