//! Words from a fixed set of values: parsing, and the error for an unknown word. Also the form of node names for
//! comparisons.

use strum::{IntoEnumIterator, VariantNames};

/// A node name in the form for comparison: without surrounding white space, in lower case. The kubelet registers its
/// Node in this form, and kube-proxy reads `--hostname-override` the same way.
#[must_use]
pub fn node_name(text: &str) -> String {
    text.trim().to_lowercase()
}

/// A text that is none of the permitted words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not a {what} (expected {})", expected.join(", "))]
pub struct NoSuchName {
    word: String,
    what: &'static str,
    expected: &'static [&'static str],
}

impl NoSuchName {
    /// The value with this name, ignoring case.
    ///
    /// # Errors
    /// If no value has this name.
    pub fn parse<T: IntoEnumIterator + VariantNames>(text: &str, what: &'static str) -> Result<T, Self> {
        let mut named = T::iter().zip(T::VARIANTS);
        let found = named.find(|(_, name)| name.eq_ignore_ascii_case(text));
        found.map(|(value, _)| value).ok_or_else(|| Self { word: text.into(), what, expected: T::VARIANTS })
    }
}
