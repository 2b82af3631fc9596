//! Identifies a cluster by the certificate authorities of its servers, with one digest per certificate in the bundle.
//! Two bundles that share a certificate authority belong to the same cluster, because a rotation adds the next
//! certificate authority before it removes the previous one. Pure.

use std::collections::BTreeMap;

use ring::digest;
use rustls::pki_types::CertificateDer;

/// An earlier version identified a bundle by a single digest of all its certificates. To recognize such a digest, all
/// subsets of at most this many certificates are tried.
const MOST_TRIED: usize = 10;

type Digest = [u8; 32];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorities {
    /// The digest of each certificate, by the name in state files.
    each: BTreeMap<String, Digest>,
}

impl Authorities {
    pub(super) fn new(certificates: &[CertificateDer<'_>]) -> Self {
        let one = |der: &CertificateDer<'_>| {
            let mut digest = Digest::default();
            digest.copy_from_slice(digest::digest(&digest::SHA256, der).as_ref());
            (name([digest]), digest)
        };
        Self { each: certificates.iter().map(one).collect() }
    }

    /// The names for state files: one for each certificate authority, and one for the whole bundle, as an earlier
    /// version writes it.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.each.keys().cloned().collect();
        let all = self.bundle();
        if !names.contains(&all) {
            names.push(all);
        }
        names
    }

    /// The name of the whole bundle in state files of an earlier version.
    pub fn bundle(&self) -> String {
        let mut digests: Vec<Digest> = self.each.values().copied().collect();
        digests.sort_unstable();
        name(digests)
    }

    /// Whether a name from a state file identifies one of these certificate authorities, or a set of them.
    pub fn include(&self, known: &str) -> bool {
        if self.each.contains_key(known) || self.bundle() == known {
            return true;
        }
        let mut digests: Vec<Digest> = self.each.values().copied().collect();
        digests.sort_unstable();
        digests.truncate(MOST_TRIED);
        let some = |subset: u32| {
            let chosen = digests.iter().enumerate().filter(move |(at, _)| subset & (1 << at) != 0);
            name(chosen.map(|(_, digest)| *digest))
        };
        (1..1u32 << digests.len()).any(|subset| some(subset) == known)
    }

    #[cfg(test)]
    pub(crate) fn for_test(certificates: &[&str]) -> Self {
        let der: Vec<_> = certificates.iter().map(|text| CertificateDer::from(text.as_bytes())).collect();
        Self::new(&der)
    }
}

/// The SHA-256 digest of the digests, in hexadecimal.
fn name(digests: impl IntoIterator<Item = Digest>) -> String {
    let mut all = digest::Context::new(&digest::SHA256);
    digests.into_iter().for_each(|one| all.update(&one));
    all.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "tests/authorities.rs"]
mod tests;
