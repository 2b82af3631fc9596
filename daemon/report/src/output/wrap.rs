//! Text in lines of limited width, and text from sources made safe for a terminal.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use nodelb_core::text::is_control;

/// Appends words, and continues on a new line with this indentation if they do not fit. `(taken, room)` describes the
/// first line: the characters that are in use, and their maximum number. Returns the number in use in the last line.
pub(crate) fn push_words(out: &mut String, text: &str, (mut taken, room): (usize, usize), indent: usize) -> usize {
    for word in text.split(' ') {
        let more = word.chars().count();
        if taken > 0 && taken + 1 + more > room {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            push_spaces(out, indent);
            taken = 0;
        } else if taken > 0 {
            out.push(' ');
            taken += 1;
        }
        out.push_str(word);
        taken += more;
    }
    taken
}

/// The number of spaces before a line that continues another one.
const CONTINUED: usize = 4;

/// The text with its lines in this width; unchanged without one.
pub fn fitted(text: &str, width: Option<usize>) -> Cow<'_, str> {
    let Some(width) = width else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len());
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        push_line(&mut out, line, width);
    }
    Cow::Owned(out)
}

/// Appends a line, which continues on further ones if it is wider.
pub(crate) fn push_line(out: &mut String, line: &str, width: usize) {
    let words = line.trim_start_matches(' ');
    let start = line.len() - words.len();
    let (first, rest) = split_words(words, width.saturating_sub(start));
    push_spaces(out, start);
    out.push_str(first);
    if !rest.is_empty() {
        let indent = start + CONTINUED;
        out.push('\n');
        push_spaces(out, indent);
        push_words(out, rest, (0, width.saturating_sub(indent)), indent);
    }
}

/// The words that fit into so many characters, at least one, and the others.
fn split_words(text: &str, room: usize) -> (&str, &str) {
    let Some((end, next)) = text.char_indices().nth(room) else { return (text, "") };
    match text[..end + next.len_utf8()].rfind(' ').or_else(|| text.find(' ')) {
        Some(at) => (text[..at].trim_end_matches(' '), text[at..].trim_matches(' ')),
        None => (text, ""),
    }
}

pub(crate) fn push_display(out: &mut String, value: impl Display) {
    write!(out, "{value}").expect("invariant: writing to a String does not fail");
}

pub(crate) fn push_spaces(out: &mut String, mut number: usize) {
    const SPACES: &str = "                                                                ";
    while number > 0 {
        let part = number.min(SPACES.len());
        out.push_str(&SPACES[..part]);
        number -= part;
    }
}

/// The text with control characters escaped, so that names and paths from a source cannot break the output or send
/// commands to the operator's terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    push_printable(&mut shown, text);
    Cow::Owned(shown)
}

/// Appends the text as [`printable`] returns it.
pub fn push_printable(out: &mut String, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        out.push_str(text);
        return;
    }
    for character in text.chars() {
        if is_control(character) {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
}

#[cfg(test)]
#[path = "tests/wrap.rs"]
mod tests;
