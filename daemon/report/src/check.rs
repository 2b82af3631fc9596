//! One condition of readiness. The daemon makes the checks; [`crate::problems`] decides on readiness.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One condition of readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Name of the check: `loop`, `reconcile`, `canary`, `links`, `devices`.
    #[serde(rename = "check")]
    pub name: String,
    /// Whether the condition holds.
    pub passed: bool,
    /// The details; for a failed check, the reason and what to do.
    pub detail: String,
}

impl Check {
    pub fn passed(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.into(), passed: true, detail: detail.into() }
    }

    /// A check that has failed or has no result yet.
    pub fn failed(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.into(), passed: false, detail: detail.into() }
    }
}
