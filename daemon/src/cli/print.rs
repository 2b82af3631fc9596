//! Stdout: the one place that writes to it.

use std::io::{self, ErrorKind, Write};

use crate::exit::{Code, Failure};

/// Prints what a command has told, whether it succeeds or not.
pub(super) fn tell(command: impl FnOnce(&mut dyn Write) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut told = Vec::new();
    let done = command(&mut told);
    print(&told)?;
    done
}

/// Writes to stdout. A reader that is gone (`| head`) has seen what it wanted.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    print_on(bytes).map(|_is_read| ())
}

/// The same, and whether the reader is still there.
pub(super) fn print_on(bytes: &[u8]) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::message(Code::System, format!("the answer cannot be written to stdout: {error}"))),
        Ok(()) => Ok(true),
    }
}
