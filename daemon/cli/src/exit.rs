//! How the program ends: the exit codes of sysexits.h, and a failure with its exit code. Scripts and service units
//! depend on these numbers, so each has one meaning, which nodelb(8) lists.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nodelb_report::output::wrap::fitted;

use crate::terminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// A comparison found differences. This code is not from sysexits.h but from diff(1).
    Differences = 1,
    /// There is no such service or address. This code is not from sysexits.h.
    NotFound = 4,
    Usage = 64,
    /// A service file, or an answer, has a problem.
    Data = 65,
    /// The daemon, or something it needs, does not answer.
    Unavailable = 69,
    /// A bug in nodelb, or an unexpected error.
    Internal = 70,
    /// The operating system refuses an operation for a reason other than permissions.
    System = 71,
    /// The daemon refuses a request in the present state, such as a drain of the last backend, or a comparison with an
    /// API server too soon after another one. The same command may succeed later.
    Refused = 75,
    /// A permission or a capability is missing, or BPF may not be loaded here.
    Permission = 77,
    /// The configuration has a problem, or the maps in the kernel belong to another version. A retry changes neither.
    Config = 78,
}

/// The reason why a command failed, and the exit code. It is displayed as the whole chain of causes on one line.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    /// The problem and its remedy.
    pub error: anyhow::Error,
}

impl Failure {
    pub fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }

    pub fn message(code: Code, message: impl Into<String>) -> Self {
        Self { code, error: anyhow::Error::msg(message.into()) }
    }
}

/// An error without a code is unexpected.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { code: Code::Internal, error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Maximum time that a process waits for its last message before it ends.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes the reason for the end of the program to stderr, after the log lines that are waiting. No other code does
/// this. A reader that does not read delays the end of the process only briefly.
pub fn eprint_fatal(message: &str) {
    eprint(&format!("nodelb: {message}"));
}

/// Writes a message about the answer of a command to stderr, in the width of a terminal. A reader that does not read
/// delays the command only briefly.
pub(crate) fn eprint(line: &str) {
    let message = format!("{}\n", fitted(line, terminal::width(&io::stderr())));
    let (done, is_done) = mpsc::channel();
    let write = move || {
        // If stderr is closed, the message cannot be written anywhere else.
        let _ = io::stderr().lock().write_all(message.as_bytes());
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(write).is_ok() {
        // An error: the time limit has passed.
        let _ = is_done.recv_timeout(STDERR_TIMEOUT);
    }
}
