//! The owner of a `services` entry as stored in the maps, so that it is recognised after a restart: its source, and its
//! name as two short hashes, which never change, because they are in pinned maps.

use std::sync::Arc;

use crate::hash::hash;
use crate::model::addr::Family;
use crate::model::service::{PortKey, ServiceName, Source};

/// The owner of a `services` entry as stored in the maps over a restart. Two names may have equal hashes, so a tag
/// alone never gives a service an entry that none of its addresses points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerTag {
    pub source: Source,
    /// The hash of the service's namespace and name.
    pub service: u32,
    /// The hash of the port's name, protocol and family.
    pub port: u32,
}

/// The service port that owns a service id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdOwner {
    pub key: Arc<PortKey>,
    pub source: Source,
}

impl OwnerTag {
    /// The tag of a service port that this source describes.
    pub fn new(key: &PortKey, source: Source) -> Self {
        let (service, port) = Self::hashes_of(key);
        Self { source, service, port }
    }

    /// The hashes in the tag of a service port, whichever source describes it.
    pub fn hashes_of(key: &PortKey) -> (u32, u32) {
        let family = match key.family {
            Family::Ipv4 => 4,
            Family::Ipv6 => 6,
        };
        (hash_of(&key.service), folded(&[key.port.as_bytes(), &[key.protocol.number(), family]]))
    }

    /// Whether both tags are of ports of the same service and the same source.
    pub fn is_same_service(self, other: Self) -> bool {
        (self.source, self.service) == (other.source, other.service)
    }

    /// Whether both tags are of the same port, regardless of the source.
    pub fn is_of_port(self, other: Self) -> bool {
        (self.service, self.port) == (other.service, other.port)
    }
}

/// The hash of a service in its tags.
pub fn hash_of(service: &ServiceName) -> u32 {
    folded(&[service.namespace.as_bytes(), service.name.as_bytes()])
}

/// The hash of the words, which do not contain 0, folded to 32 bits.
fn folded(words: &[&[u8]]) -> u32 {
    let sum = hash(words.iter().copied());
    let [a, b, c, d, ..] = (sum ^ (sum >> 32)).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
#[path = "tests/owner.rs"]
mod tests;
