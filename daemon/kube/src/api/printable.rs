//! Text from outside that will be shown, in a terminal or the journal: without what either would act upon, and no longer
//! than it has to be. Pure.

use std::borrow::Cow;

/// The longest name Kubernetes allows; those of writers have at most 128 characters.
const MAX_NAME: usize = 253;

/// The longest explanation shown.
const MAX_SENTENCE: usize = 600;

/// A name: as it is, but for control characters and what makes it too long.
pub fn name(text: &str) -> Cow<'_, str> {
    shortened(text, MAX_NAME)
}

/// An explanation that quotes what somebody else wrote.
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

/// Line ends, escapes, and what turns the direction of writing.
pub fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests;
