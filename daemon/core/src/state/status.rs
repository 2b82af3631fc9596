//! How what the kernel has stands to what the sources ask for.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::model::names::NoSuchName;

/// Where a frontend stands between what the sources ask for and what the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Status {
    /// Not yet in the kernel.
    Pending,
    /// The kernel has exactly what the sources ask for.
    Done,
    /// Kept although the source emptied it.
    Held,
    /// Refused, or the kernel would not take it; the row's error says why.
    Error,
}

impl Status {
    /// All of them, in the order of [`Self::NAMES`].
    pub const ALL: [Self; 4] = [Self::Pending, Self::Done, Self::Held, Self::Error];
    /// How they print.
    pub const NAMES: [&'static str; 4] = ["Pending", "Done", "Held", "Error"];
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl FromStr for Status {
    type Err = NoSuchName;

    fn from_str(text: &str) -> Result<Self, NoSuchName> {
        NoSuchName::or(text, "status", Self::ALL, &Self::NAMES)
    }
}
