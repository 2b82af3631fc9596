//! Words from a fixed set of values.

use strum::{IntoEnumIterator, VariantNames};

/// The value with this name, ignoring case. The error lists the names.
pub fn named<T: IntoEnumIterator + VariantNames>(text: &str, what: &str) -> Result<T, String> {
    let mut named = T::iter().zip(T::VARIANTS);
    let found = named.find(|(_, name)| name.eq_ignore_ascii_case(text));
    let refused = || format!("`{text}` is not a {what} (expected {})", T::VARIANTS.join(", "));
    found.map(|(value, _)| value).ok_or_else(refused)
}
