//! The map `ipsec_policies`: the policies of IPsec that the programs follow.

use std::io;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use nodelb_core::model::ipsec::Policies;

use crate::layout::policy;
use crate::packets::handles::PacketMaps;
use crate::packets::settings;
use crate::skeleton::packet::types;
use crate::sys::{self, SharedWords};

/// How many rules the programs follow: half of the map has them.
pub const MOST_POLICIES: usize = 1024;

/// The word of `struct packet_settings` that says which entries apply.
const WORD: usize = std::mem::offset_of!(types::packet_settings, policies) / size_of::<u64>();

/// Tells the programs which packets IPsec protects. Works without capabilities.
#[derive(Debug)]
pub struct PolicyWriter {
    map: MapHandle,
    words: SharedWords,
}

impl PolicyWriter {
    pub fn new(maps: &PacketMaps) -> io::Result<Self> {
        Ok(Self { map: maps.handle("ipsec_policies")?, words: SharedWords::map(maps.find("packet_settings")?)? })
    }

    /// Makes the programs follow these rules, of which [`MOST_POLICIES`] fit, from their next connection on.
    pub fn set(&self, policies: &Policies) -> io::Result<()> {
        let word = &self.words.at(WORD, 1)[0];
        let [a, b, c, d, ..] = word.load(Ordering::Relaxed).to_ne_bytes();
        let half = if u32::from_ne_bytes([a, b, c, d]) >> 16 == 0 { MOST_POLICIES } else { 0 };
        if !policies.rules.is_empty() {
            // Programs may still read what applied before the last change.
            sys::membarrier_global().or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL | libc::ENOSYS) => Ok(()),
                _ => Err(error),
            })?;
        }
        let mut count = 0;
        for (at, rule) in policies.rules.iter().take(MOST_POLICIES).enumerate() {
            let index = u32::try_from(half + at).unwrap_or(u32::MAX);
            sys::update(&self.map, &index.to_ne_bytes(), &policy(rule))?;
            count += 1;
        }
        let first = u32::try_from(half).unwrap_or_default();
        let applied = if count == 0 { 0 } else { first << 16 | count };
        word.store(settings::word(applied, 0), Ordering::Release);
        Ok(())
    }
}
