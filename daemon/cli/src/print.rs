//! Stdout: no other module writes to it. This module also decides which bytes may reach a terminal, because any process
//! that listens at the daemon's address can answer with any text.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodelb_core::text;
use nodelb_report::output::table::COLOURS;
use nodelb_report::output::wrap::fitted;

use crate::exit::{Code, Failure};
use crate::terminal;

/// A filter that passes only what a terminal displays: text, line ends, tabs, and the colours of nodelb's own tables.
/// Anything else that a terminal would interpret becomes `\u{fffd}`. The text may come in pieces that are cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Sanitizer {
    /// The beginning of a character or of a colour that is not complete yet.
    kept: Vec<u8>,
}

impl Sanitizer {
    /// Takes the next piece, and returns the text that can be shown so far.
    pub(super) fn pass(&mut self, piece: &[u8]) -> String {
        self.kept.extend_from_slice(piece);
        let now: Vec<u8> = self.kept.drain(..judged(&self.kept)).collect();
        sanitize(&now)
    }
}

/// Returns what can be shown of a complete text.
pub(super) fn sanitize(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_harmful = |c: char| text::is_control(c) && !matches!(c, '\n' | '\t');
    let mut shown = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find(is_harmful) {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        if let Some(colour) = COLOURS.iter().find(|colour| from.starts_with(**colour)) {
            shown.push_str(colour);
            rest = &from[colour.len()..];
        } else {
            shown.push(char::REPLACEMENT_CHARACTER);
            let mut characters = from.chars();
            characters.next();
            rest = characters.as_str();
        }
    }
    shown + rest
}

/// Returns the length of the part that does not depend on the bytes that follow.
fn judged(bytes: &[u8]) -> usize {
    let is_begun = |tail: &[u8]| {
        let is_colour = COLOURS.iter().any(|colour| colour.len() > tail.len() && colour.as_bytes().starts_with(tail));
        is_colour
            || std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    let longest = COLOURS.iter().map(|colour| colour.len()).max().unwrap_or(0);
    let from = bytes.len().saturating_sub(longest);
    (from..bytes.len()).find(|at| is_begun(&bytes[*at..])).unwrap_or(bytes.len())
}

/// Prints the output of a command, whether or not the command succeeds.
pub(super) fn print_output(command: impl FnOnce(&mut dyn Write) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut out = Vec::new();
    let done = command(&mut out);
    print_lines(&String::from_utf8_lossy(&out), terminal::width(&io::stdout()))?;
    done
}

/// Writes sentences to stdout, in this width.
pub(super) fn print_lines(text: &str, width: Option<usize>) -> Result<(), Failure> {
    print(fitted(text, width).as_bytes())
}

/// Writes [sanitize] text to stdout. A reader that has closed its end (`| head`) has seen what it wanted.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    write(&sanitize(bytes)).map(|_is_read| ())
}

/// Writes one piece, and returns whether the reader is still there. An empty piece writes nothing and only checks that.
pub(super) fn print_on(text: &mut Sanitizer, piece: &[u8]) -> Result<bool, Failure> {
    Ok(write(&text.pass(piece))? && is_read().map_err(|error| unwritten(&error))?)
}

/// Writes text over what the terminal shows, and returns whether the reader is still there.
pub(super) fn redraw(text: &str) -> Result<bool, Failure> {
    Ok(write(&overwriting(text))? && is_read().map_err(|error| unwritten(&error))?)
}

/// [sanitize] text between the sequences that move to the first line and clear what the text does not cover.
fn overwriting(text: &str) -> String {
    const HOME: &str = "\u{1b}[H";
    const CLEAR_LINE: &str = "\u{1b}[K";
    const CLEAR_BELOW: &str = "\u{1b}[J";
    let lines = sanitize(text.as_bytes()).replace('\n', &format!("{CLEAR_LINE}\n"));
    format!("{HOME}{lines}{CLEAR_BELOW}")
}

/// Returns stdout for bytes that are no text, unless it is a terminal, which would interpret them.
pub(crate) fn stdout_for_bytes() -> Result<io::Stdout, Failure> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        return Err(Failure::message(Code::Usage, "stdout is a terminal: redirect it, or name a file"));
    }
    Ok(stdout)
}

/// Whether stdout still has a reader.
pub(super) fn is_read() -> io::Result<bool> {
    let stdout = io::stdout();
    let mut asked = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    poll(&mut asked, PollTimeout::ZERO)?;
    Ok(!asked[0].revents().is_some_and(|found| found.contains(PollFlags::POLLERR)))
}

pub(crate) fn unwritten(error: &io::Error) -> Failure {
    Failure::message(Code::System, format!("the answer cannot be written to stdout: {error}"))
}

fn write(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(unwritten(&error)),
        Ok(()) => Ok(true),
    }
}

#[cfg(test)]
#[path = "tests/print.rs"]
mod tests;
