//! How a backend stands, and what an answer changes about it: the rise and fall counts. Pure.

use std::sync::Arc;

/// What stands for the error of a backend that may not be used before its first answer.
const UNASKED: &str = "not checked yet";

/// How a backend stands.
///
/// The first answer decides alone, as with HAProxy and Envoy: nothing is known that it would have to outweigh. From then
/// on as many answers in a row as `rise` or `fall` say are needed to turn it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    is_healthy: bool,
    is_decided: bool,
    /// So many answers in a row have said the opposite.
    against: u8,
    /// The last bad answer; says something while unhealthy.
    error: Arc<str>,
}

/// How a backend stands, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The last answers were good.
    Healthy,
    /// The last answers were bad.
    Unhealthy,
    /// It has not answered yet, or not to what it is asked now.
    Unchecked,
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unchecked => "Unchecked",
        })
    }
}

impl Standing {
    /// Of a backend nothing is known of, unless `continues`: then it was healthy when nodelb was ended a moment ago, and it
    /// takes as many bad answers to turn it as if that had not happened.
    pub(super) fn new(starts_healthy: bool, continues: bool) -> Self {
        let is_healthy = starts_healthy || continues;
        Self { is_healthy, is_decided: continues, against: 0, error: UNASKED.into() }
    }

    /// Of a backend that was unhealthy when nodelb ended. It needs as many good answers as if that had not happened.
    pub(super) fn unhealthy(error: Arc<str>) -> Self {
        Self { is_healthy: false, is_decided: true, against: 0, error }
    }

    /// The question is another one: the state stays until the first answer to it, which decides.
    pub(super) fn asked_anew(mut self) -> Self {
        (self.is_decided, self.against) = (false, 0);
        self
    }

    /// Takes in an answer. Whether it turned the state.
    pub(super) fn hear(&mut self, answer: Result<(), Arc<str>>, rise: u8, fall: u8) -> bool {
        let is_good = answer.is_ok();
        if let Err(error) = answer {
            self.error = error;
        }
        let was_decided = std::mem::replace(&mut self.is_decided, true);
        if is_good == self.is_healthy {
            self.against = 0;
            return false;
        }
        self.against = self.against.saturating_add(1);
        let enough = if is_good { rise } else { fall };
        let turns = !was_decided || self.against >= enough;
        if turns {
            (self.is_healthy, self.against) = (is_good, 0);
        }
        turns
    }

    /// Why it is not to be used; `None` while it is healthy.
    pub(super) fn failure(&self) -> Option<&Arc<str>> {
        (!self.is_healthy).then_some(&self.error)
    }

    pub(super) fn condition(&self) -> Condition {
        match (self.is_decided, self.is_healthy) {
            (false, _) => Condition::Unchecked,
            (true, true) => Condition::Healthy,
            (true, false) => Condition::Unhealthy,
        }
    }
}

#[cfg(test)]
#[path = "tests/state.rs"]
mod tests;
