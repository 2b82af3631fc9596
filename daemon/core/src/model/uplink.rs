//! Uplinks: the devices that connect this node to other machines. The packet programs run on them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::addr::Addr;
use crate::model::service::Source;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    pub ifindex: u32,
    pub name: Arc<str>,
    #[serde(flatten)]
    pub entry: UplinkEntry,
}

/// The content of the maps for one uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkEntry {
    /// The node's IPv4 address on the device, for packets that leave by it; `None` without one.
    pub v4: Option<Addr>,
    /// The node's IPv6 address on the device; `None` without one.
    pub v6: Option<Addr>,
    /// The maximum size of a packet in bytes, from the IP header.
    pub mtu: u32,
    /// The length of the link-layer header in bytes: 14, or 0 without one.
    pub l2_length: u8,
    /// Whether packets to backends get `v4` as their source even if the route names another address, because that may
    /// be a service's.
    #[serde(default)]
    pub is_v4_source: bool,
    #[serde(default)]
    pub is_v6_source: bool,
    /// Whether IPv4 packets are accepted only by the device that leads back to their source: `rp_filter` is 1.
    #[serde(default)]
    pub is_strict: bool,
}

/// What nodelb does now with new connections from outside the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Translation {
    /// They are translated, as far as nothing else is known.
    #[default]
    On,
    /// Existing connections are translated, and new ones to services of files.
    Files,
    /// Only existing connections are translated.
    Draining,
    /// None is translated.
    Off,
}

impl Translation {
    /// What is done with new connections to services of this source.
    pub fn of(self, source: Option<Source>) -> Self {
        match (self, source) {
            (Self::Files, Some(Source::Files)) => Self::On,
            (Self::Files, _) => Self::Draining,
            (all, _) => all,
        }
    }
}
