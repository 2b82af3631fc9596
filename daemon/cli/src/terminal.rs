//! The width of the terminal that a command writes to.

use std::io::IsTerminal;

/// The minimum width of text, however narrow the terminal is.
const MIN_WIDTH: usize = 40;
/// The width of text on a terminal that does not know its size, such as a serial console.
const UNKNOWN_WIDTH: usize = 80;

/// Returns the maximum width of lines on this stream; `None` if it is no terminal.
pub(super) fn width(stream: &impl IsTerminal) -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = || columns.or_else(|| Some(usize::from(terminal_size::terminal_size()?.0.0))).unwrap_or(UNKNOWN_WIDTH);
    stream.is_terminal().then(width).map(|width| width.max(MIN_WIDTH))
}
