//! What the kernel keeps about the owner of a `services` entry, so that the next start knows it again: its source, and its
//! name as two short hashes. Owns the hashes; they lie in pinned maps, so they never change.

use crate::model::addr::Family;
use crate::model::service::{PortKey, Source};
use std::sync::Arc;

/// The owner of a `services` entry, as the kernel keeps it over a restart. A hash may be equal for two names: a tag alone
/// never gives a service an entry that none of its addresses points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerTag {
    /// The source that describes the service.
    pub source: Source,
    /// Hash of the service's namespace and name.
    pub service: u32,
    /// Hash of the port's name, protocol and family.
    pub port: u32,
}

/// Whose a service id is.
#[derive(Clone, Debug)]
pub(crate) struct IdOwner {
    pub(crate) key: Arc<PortKey>,
    pub(crate) source: Source,
}

impl OwnerTag {
    /// The tag of a service port that this source describes.
    pub fn new(key: &PortKey, source: Source) -> Self {
        let family = match key.family {
            Family::Ipv4 => 4,
            Family::Ipv6 => 6,
        };
        let port = hash(&[key.port.as_bytes(), &[key.protocol.number(), family]]);
        Self { source, service: hash(&[key.service.namespace.as_bytes(), key.service.name.as_bytes()]), port }
    }

    /// Whether both are of ports of one service, as one source describes it.
    pub fn is_of_service(self, other: Self) -> bool {
        (self.source, self.service) == (other.source, other.service)
    }

    /// Whether it is of this port, whatever source describes it.
    pub fn is_of_port(self, other: Self) -> bool {
        (self.service, self.port) == (other.service, other.port)
    }
}

/// FNV-1a of the words, each ended by a byte that no name has; folded to 32 bits.
fn hash(words: &[&[u8]]) -> u32 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = words.iter().flat_map(|word| word.iter().copied().chain([0]));
    let sum = bytes.fold(OFFSET, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME));
    let [a, b, c, d, ..] = (sum ^ (sum >> 32)).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::addr::Protocol;

    fn key(service: &str, port: &str) -> PortKey {
        let service = service.parse().expect("valid in a test");
        PortKey { service, port: port.into(), protocol: Protocol::Tcp, family: Family::Ipv4 }
    }

    /// The hashes lie in maps of nodes that run: another function would not know their owners again.
    #[test]
    fn tags_are_what_they_always_were() {
        let tag = OwnerTag::new(&key("shop/web", "http"), Source::Files);
        assert_eq!((tag.service, tag.port), (0x3cea_1ef6, 0xf99b_4aba));
    }

    #[test]
    fn names_that_are_alike_have_other_tags() {
        let tag = |service, port| OwnerTag::new(&key(service, port), Source::Files);
        let tags = [tag("a/b-c", ""), tag("a-b/c", ""), tag("a/b", "-c"), tag("a/b-c", "http")];
        for (index, one) in tags.iter().enumerate() {
            assert!(tags[index + 1..].iter().all(|other| !one.is_of_port(*other)), "{one:?}");
        }
        assert!(tags[0].is_of_port(OwnerTag { source: Source::Kubernetes, ..tags[0] }));
    }
}
