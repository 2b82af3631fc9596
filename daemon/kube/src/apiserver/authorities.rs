//! Which cluster it is, by who signs its certificates: a set of digests, one for each certificate authority of the
//! bundle. Two bundles that share one are the same cluster's, for a certificate authority is rotated by adding the next
//! one first. Pure.

use std::collections::BTreeMap;

use ring::digest;
use rustls::pki_types::CertificateDer;

/// An earlier version knew a bundle by one digest of all of it. So many certificates are looked at to find out whether
/// such a digest is of some of them: their subsets are tried.
const MOST_TRIED: usize = 10;

type Digest = [u8; 32];

/// The certificate authorities of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorities {
    /// The digest of each certificate, by the name under which it is remembered.
    each: BTreeMap<String, Digest>,
}

impl Authorities {
    pub(super) fn of(certificates: &[CertificateDer<'_>]) -> Self {
        let one = |der: &CertificateDer<'_>| {
            let mut digest = Digest::default();
            digest.copy_from_slice(digest::digest(&digest::SHA256, der).as_ref());
            (name([digest]), digest)
        };
        Self { each: certificates.iter().map(one).collect() }
    }

    /// What state files remember: one name for each certificate authority, and the name that an earlier version gives
    /// to all of them together.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.each.keys().cloned().collect();
        let all = self.bundle();
        if !names.contains(&all) {
            names.push(all);
        }
        names
    }

    /// The name that an earlier version gives to the bundle.
    pub fn bundle(&self) -> String {
        let mut digests: Vec<Digest> = self.each.values().copied().collect();
        digests.sort_unstable();
        name(digests)
    }

    /// Whether a remembered name is that of one of these certificate authorities, or of several of them.
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
        Self::of(&der)
    }
}

/// A digest of digests, in hexadecimal.
fn name(digests: impl IntoIterator<Item = Digest>) -> String {
    let mut all = digest::Context::new(&digest::SHA256);
    digests.into_iter().for_each(|one| all.update(&one));
    all.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
