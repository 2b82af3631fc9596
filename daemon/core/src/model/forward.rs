//! How packets of clients outside the node reach backends on other machines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the packet path reaches a backend on another machine. A backend on this node gets the packets with the client's
/// address in any case.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::Display, strum::EnumString,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Forward {
    /// Both addresses are translated, and answers come back through this node.
    #[default]
    Translate,
    /// Packets stay as they are and go to the backend's link-layer address. The backend has the service's address, and
    /// answers the client itself.
    Direct,
    /// As `Direct`, in a tunnel to the backend's address: IP in IP (RFC 2003, RFC 2473).
    Tunnel,
}
