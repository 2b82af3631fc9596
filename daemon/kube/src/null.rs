//! `null` in what Kubernetes writes: the same as a missing field.

use serde::{Deserialize, Deserializer};

/// Decodes `null` as the default.
///
/// # Errors
/// Those of the value itself.
pub fn null_is_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
