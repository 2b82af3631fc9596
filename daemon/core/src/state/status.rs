//! The status of frontends: the relation of the maps to what the sources ask for.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::model::names::NoSuchName;

/// The status of a frontend: the relation of the maps to what the sources ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Status {
    /// The maps do not contain it yet.
    Pending,
    /// The maps contain exactly what the sources ask for.
    Done,
    /// Kept in use although the source emptied it.
    Held,
    /// Refused, or not accepted by the maps. The row's error gives the reason.
    Error,
}

impl Status {
    /// Every status, in the order of [`Self::NAMES`].
    pub const ALL: [Self; 4] = [Self::Pending, Self::Done, Self::Held, Self::Error];
    /// The names in output.
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
        NoSuchName::parse(text, "status", Self::ALL, &Self::NAMES)
    }
}
