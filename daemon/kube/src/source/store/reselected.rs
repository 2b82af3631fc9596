//! Another selection of services than that of the remembered objects. If it leaves out most of them, it is more likely a
//! mistake than a wish.

use std::sync::Arc;

use super::collection::is_mass;

#[derive(Debug)]
pub(in crate::source) struct Reselected {
    /// The keys that differ, with their values.
    keys: Arc<str>,
    /// The number of remembered services.
    known: usize,
    is_accepted: bool,
    /// Why it does not take effect, since everything was listed.
    held: Option<Arc<str>>,
}

impl Reselected {
    pub(in crate::source) fn new(keys: &str, known: usize) -> Self {
        Self { keys: keys.into(), known, is_accepted: false, held: None }
    }

    pub(super) fn held(&self) -> Option<&Arc<str>> {
        self.held.as_ref()
    }

    pub(super) fn accept(&mut self) {
        self.is_accepted = true;
    }

    /// The cause of what it removes.
    pub(super) fn why(&self) -> Arc<str> {
        format!("not selected by {}", self.keys).into()
    }

    /// Whether the selection takes effect, which leaves out so many of the remembered services.
    pub(super) fn decide(&mut self, left_out: usize) -> bool {
        self.held = self.problem(left_out).filter(|_| !self.is_accepted).map(Arc::from);
        self.held.is_none()
    }

    /// Why a selection that leaves out so many of the remembered services is held back, if it is.
    pub(in crate::source) fn problem(&self, left_out: usize) -> Option<String> {
        let selected = self.known.saturating_sub(left_out);
        let text = || format!("{} selects {selected} of {} known services", self.keys, self.known);
        is_mass(left_out, self.known).then(text)
    }
}
