//! What happens when nodelb starts with another selection of Kubernetes services than before: what the store decides about it
//! is logged, shown and stored, and the operator may accept it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_host::messages;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{info, warn};

use super::state_file::Saver;
use super::store::Store;
use crate::api::scope::Selection;

/// How old the problem is when a reload accepts what another selection leaves out.
const RELOAD_ACCEPTS_AFTER: Duration = Duration::from_secs(300);

/// That the operator accepts what another selection leaves out.
#[derive(Debug)]
pub struct Accept {
    pub by: By,
    /// Gets the problem that this ends, if there is one.
    pub reply: oneshot::Sender<Option<Arc<str>>>,
}

/// Who waits for the answer, and the answer.
pub(super) type Answer = (oneshot::Sender<Option<Arc<str>>>, Option<Arc<str>>);

/// What an operator accepts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Command,
    /// Only a while after the problem began: a reload may be about something else.
    Reload,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Command => "nodelb accept",
            Self::Reload => "a reload",
        })
    }
}

pub(super) struct Selecting {
    selection: Selection,
    /// Why it has not taken effect, and since when.
    held: Option<(Arc<str>, Instant)>,
}

impl Selecting {
    pub(super) fn new(selection: Selection) -> Self {
        Self { selection, held: None }
    }

    /// Compares the selection with that of the remembered objects, which the store knows; `None` if an earlier version has
    /// stored them.
    pub(super) fn recall(&self, before: Option<Selection>, store: &mut Store, saver: &mut Saver) {
        let unselected = store.unselected();
        let before = match before {
            Some(before) => before,
            None if unselected > 0 => Selection::default(),
            None => return,
        };
        let Some(keys) = self.selection.narrowed_from(&before) else { return };
        info!(
            message_id = %messages::STATE_LOADED,
            "the selection has changed: {keys}; not selected by namespace or name: {unselected} of these objects"
        );
        store.reselect(&keys);
        saver.select(before);
    }

    /// Stores the selection if it has taken effect. Returns whether the problem has begun, changed or ended.
    pub(super) fn note(&mut self, store: &Store, saver: &mut Saver) -> bool {
        if !store.is_reselected() {
            saver.select(self.selection.clone());
        }
        let before = std::mem::take(&mut self.held);
        let since = before.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        self.held = store.held().map(|held| (Arc::clone(held), since));
        if before == self.held {
            return false;
        }
        if let Some(problem) = self.problem() {
            warn!(message_id = %messages::SELECTION_HELD, "{problem}");
        } else {
            info!(message_id = %messages::SELECTION_APPLIED, "the selection of Kubernetes services is in effect");
        }
        true
    }

    /// Lets the selection take effect. Returns the answer, which is due when readers can see the effect.
    pub(super) fn accept(&self, Accept { by, reply }: Accept, store: &mut Store, changes: &mut Vec<Change>) -> Answer {
        let is_early = self.held.as_ref().is_some_and(|(_, since)| since.elapsed() < RELOAD_ACCEPTS_AFTER);
        let ended = if by == By::Reload && is_early { None } else { store.accept(changes) };
        if let Some(ended) = &ended {
            info!(message_id = %messages::SELECTION_APPLIED, "accepted by {by}: {ended}");
        }
        (reply, ended)
    }

    /// The problem, with what to do.
    pub(super) fn problem(&self) -> Option<String> {
        let (held, _) = self.held.as_ref()?;
        let minutes = RELOAD_ACCEPTS_AFTER.as_secs() / 60;
        Some(format!(
            "{held}; the others stay in use as last known: correct it and restart nodelb, or run `nodelb accept` (a reload \
             {minutes} minutes after this began accepts it, too)"
        ))
    }
}

#[cfg(test)]
#[path = "tests/selecting.rs"]
mod tests;
