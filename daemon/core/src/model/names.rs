//! Words that stand for one of a few values: how such a word is read, and what is said about one that is none. The form in
//! which names of nodes are compared.

/// A node's name as it is compared: without the white space around it, in lower case. So the kubelet registers its Node,
/// and so kube-proxy reads `--hostname-override`.
#[must_use]
pub fn node_name(text: &str) -> String {
    text.trim().to_lowercase()
}

/// A word that is none of the few that are meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not a {what} (expected {})", expected.join(", "))]
pub struct NoSuchName {
    word: String,
    what: &'static str,
    expected: &'static [&'static str],
}

impl NoSuchName {
    /// The value whose name the text is. Case does not matter.
    /// # Errors
    /// When it is the name of none.
    pub fn or<T, const N: usize>(
        text: &str,
        what: &'static str,
        all: [T; N],
        names: &'static [&'static str; N],
    ) -> Result<T, Self> {
        let mut named = all.into_iter().zip(names);
        let found = named.find(|(_, name)| name.eq_ignore_ascii_case(text));
        found.map(|(value, _)| value).ok_or_else(|| Self { word: text.into(), what, expected: names })
    }
}
