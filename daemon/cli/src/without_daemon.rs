//! Commands that work without the daemon: they read what it has stored in the kernel and on disk. The binary provides
//! the reader ([`StoredState`]); this module decides when it is used, and reports that.

use std::cell::OnceCell;
use std::fmt;
use std::path::PathBuf;

pub use super::client::Pins;
use super::client::Unreachable;
use crate::exit::{self, Code, Failure};

/// Answers a request, such as `/frontends?output=json`, in JSON.
pub type Answer = dyn Fn(&str) -> Result<Vec<u8>, Failure>;

/// What the daemon has stored in the kernel and on disk, with answers to requests from it.
pub struct StoredState {
    /// Returns the body that the daemon would answer to a request, in JSON.
    pub answer: Box<Answer>,
    pub pins: PathBuf,
    pub find_pins: Box<dyn Fn() -> Pins>,
    /// The file with the recorded changes.
    pub history: PathBuf,
    /// A problem that makes the answers so far doubtful.
    pub notice: Box<dyn Fn() -> Option<String>>,
}

impl fmt::Debug for StoredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answer: _, find_pins: _, pins, history, notice: _ } = self;
        f.debug_struct("StoredState").field("pins", pins).field("history", history).finish_non_exhaustive()
    }
}

/// Returns what the daemon has stored, and reads nothing yet.
pub type OpenStoredState = fn() -> StoredState;

/// What a command shows without the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Kernel,
    History,
}

/// Adds to a failure of a daemon that does not answer what that means for connections.
pub(crate) fn explain(failure: &mut Failure, open: OpenStoredState) {
    if let Some(unreachable) = failure.error.downcast_mut::<Unreachable>() {
        unreachable.pins = Some((open().find_pins)());
    }
}

/// How a command gets answers without the daemon.
#[derive(Debug, Default)]
pub(crate) struct Fallback {
    open: Option<(OpenStoredState, Shown)>,
    /// Present since the daemon did not answer.
    stored_state: OnceCell<StoredState>,
}

impl Fallback {
    pub(crate) fn new(open: OpenStoredState, shown: Shown) -> Self {
        Self { open: Some((open, shown)), stored_state: OnceCell::new() }
    }

    /// Returns the answer to the request if the daemon has not answered an earlier one.
    pub(super) fn answer_again(&self, target: &str) -> Option<Result<Vec<u8>, Failure>> {
        self.stored_state.get().map(|stored_state| (stored_state.answer)(target))
    }

    /// Answers the request, which the daemon has not answered, and reports that on stderr.
    ///
    /// # Errors
    /// `failure` if the command needs the daemon, or if nothing can be read either.
    pub(super) fn answer(&self, target: &str, mut failure: Failure) -> Result<Vec<u8>, Failure> {
        let Some((open, shown)) = self.open else { return Err(failure) };
        let Some(unreachable) = failure.error.downcast_mut::<Unreachable>() else { return Err(failure) };
        let stored_state = open();
        let answer = (stored_state.answer)(target);
        if let Err(error) = &answer
            && error.code == Code::Unavailable
        {
            let pins = (stored_state.find_pins)();
            let is_said = shown == Shown::Kernel && matches!(pins, Pins::Absent(_));
            unreachable.pins = Some(pins);
            let why = if is_said { String::new() } else { format!("\nWithout the daemon: {error}") };
            return Err(Failure::message(Code::Unavailable, format!("{failure}{why}")));
        }
        let source = match shown {
            Shown::Kernel => format!("this is what the kernel has, read from {}", stored_state.pins.display()),
            Shown::History => format!("these are the changes that it has stored in {}", stored_state.history.display()),
        };
        let notice = (stored_state.notice)().map(|notice| format!("; {notice}")).unwrap_or_default();
        exit::eprint(&format!("The nodelb daemon does not answer at {}; {source}{notice}", unreachable.first()));
        let _ = self.stored_state.set(stored_state);
        answer
    }
}

#[cfg(test)]
#[path = "tests/without_daemon.rs"]
mod tests;
