//! How the program ends: the exit codes of sysexits.h, and a failure that knows its own. Scripts and service units
//! branch on these numbers, so each has one meaning, listed in nodelb(8).

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// An exit code. The numbers are those of sysexits.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// What was compared differs. Not of sysexits.h: as diff(1) has it.
    Differences = 1,
    /// Wrong command line.
    Usage = 64,
    /// A service file, or an answer, has a problem.
    Data = 65,
    /// The daemon, or something it needs, does not answer.
    Unavailable = 69,
    /// A bug of nodelb, or something that should not happen.
    Internal = 70,
    /// The operating system refuses something that is not a matter of permission.
    System = 71,
    /// Permission or a capability is missing, or BPF may not be loaded here.
    Permission = 77,
    /// The configuration has a problem, or what is in the kernel is another version's: trying again changes neither.
    Config = 78,
}

/// Why a command failed, and the code to end with. Prints as the whole chain of causes on one line.
#[derive(Debug)]
pub struct Failure {
    /// What the process ends with.
    pub code: Code,
    /// What is wrong and what to do.
    pub error: anyhow::Error,
}

impl Failure {
    /// The failure of this kind for this reason.
    pub fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }

    /// The failure of this kind, described in words.
    pub fn message(code: Code, message: impl Into<String>) -> Self {
        Self { code, error: anyhow::Error::msg(message.into()) }
    }
}

/// Anything not given a kind is unexpected.
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

/// How long a process that ends waits for its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Writes to stderr why the program ends, after the lines that are on their way. The one place that does. A reader that does
/// not read keeps the process from ending for a moment only.
pub fn last_words(message: &str) {
    let message = format!("nodelb: {message}\n");
    let (done, is_done) = mpsc::channel();
    let write = move || {
        // A closed stderr leaves no other place for it.
        let _ = io::stderr().lock().write_all(message.as_bytes());
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(write).is_ok() {
        // An error is the end of the patience.
        let _ = is_done.recv_timeout(LAST_WORDS);
    }
}
