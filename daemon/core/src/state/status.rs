//! The status of frontends and services: whether connections reach a backend, and if not, why.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a frontend or a service: whether connections reach a backend, and if not, why.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::EnumIter,
    strum::VariantNames,
)]
pub enum Status {
    /// Connections reach a backend.
    #[serde(rename = "OK")]
    #[strum(serialize = "OK")]
    Ok,
    /// No backend is usable, so connections are refused.
    NoBackends,
    /// Every backend failed its health checks; all of them are used because there are no others.
    LastResort,
    /// Kept in use although the source emptied it.
    Held,
    /// The maps contain it from before the start, and its source has not reported everything since.
    Kept,
    /// Another service owns the address.
    Conflict,
    /// nodelb refuses to serve the address, or the maps did not accept it. The row's error gives the reason.
    Refused,
    /// The maps do not contain it yet.
    Pending,
}

impl Status {
    /// How bad the status is: 0 for OK, and more for a worse one. A service has the worst status of its frontends.
    pub fn badness(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Pending => 1,
            Self::Kept => 2,
            Self::Held => 3,
            Self::LastResort => 4,
            Self::Conflict => 5,
            Self::Refused => 6,
            Self::NoBackends => 7,
        }
    }

    /// Whether the maps contain the address for this service. Then a connection is translated or refused by nodelb.
    pub fn is_in_maps(self) -> bool {
        match self {
            Self::Ok | Self::NoBackends | Self::LastResort | Self::Held | Self::Kept => true,
            Self::Conflict | Self::Refused | Self::Pending => false,
        }
    }

    /// Whether new connections to the address reach a backend that is not known to fail.
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Ok | Self::Held | Self::Kept)
    }

    /// Whether the service does not have the address: another one owns it, or it is refused.
    pub fn is_denied(self) -> bool {
        matches!(self, Self::Conflict | Self::Refused)
    }
}
