//! Decodes `null` like a missing field, as Kubernetes does.

use serde::{Deserialize, Deserializer};

/// Decodes `null` as the default value of the type.
///
/// # Errors
/// The value cannot be decoded.
pub fn null_is_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
