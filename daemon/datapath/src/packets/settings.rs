//! The settings of the packet programs that change while they run: `struct packet_settings`, in shared memory.

use std::io;
use std::sync::atomic::Ordering;

use crate::packets::handles::PacketMaps;
use crate::skeleton::packet::types;
use crate::sys::SharedWords;

/// What is done with TCP packets of connections that no map contains: `enum unknown_packets`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownPackets {
    #[default]
    Pass,
    Reset,
    /// Those of another proxy are passed on; others continue or are reset.
    Auto,
    /// As `Auto`, and another proxy is on this node.
    AutoWithProxy,
}

/// The services to which no new connection is translated; existing ones are: `enum draining`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draining {
    #[default]
    None,
    All,
    /// Those of Kubernetes, and not those of files.
    Kubernetes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketSettings {
    pub draining: Draining,
    pub unknown: UnknownPackets,
    /// Whether packets that cannot be served are answered with RST or ICMP.
    pub answers: bool,
    /// Whether backends on this node see an address of the node.
    pub always_masquerades: bool,
    /// Whether no other proxy serves anything at the addresses of services.
    pub owns_addresses: bool,
}

impl PacketSettings {
    /// What the daemon writes of the structure, as words: each has two numbers in memory order.
    fn words(self) -> [u64; 3] {
        let unknown = match self.unknown {
            UnknownPackets::Pass => types::unknown_packets::UNKNOWN_PASS,
            UnknownPackets::Reset => types::unknown_packets::UNKNOWN_RESET,
            UnknownPackets::Auto => types::unknown_packets::UNKNOWN_AUTO,
            UnknownPackets::AutoWithProxy => types::unknown_packets::UNKNOWN_AUTO_WITH_PROXY,
        };
        let draining = match self.draining {
            Draining::None => types::draining::DRAINING_NONE,
            Draining::All => types::draining::DRAINING_ALL,
            Draining::Kubernetes => types::draining::DRAINING_KUBERNETES,
        };
        [
            word(draining.0, unknown.0),
            word(self.answers.into(), self.always_masquerades.into()),
            word(self.owns_addresses.into(), 0),
        ]
    }
}

/// Two numbers in memory order.
pub(super) fn word(first: u32, second: u32) -> u64 {
    let numbers = [first.to_ne_bytes(), second.to_ne_bytes()];
    u64::from_ne_bytes(std::array::from_fn(|i| numbers[i / 4][i % 4]))
}

/// Writes the settings. Works without capabilities.
#[derive(Debug)]
pub struct SettingsWriter {
    words: SharedWords,
}

impl SettingsWriter {
    pub(crate) fn new(maps: &PacketMaps) -> io::Result<Self> {
        Ok(Self { words: SharedWords::map(maps.find("packet_settings")?)? })
    }

    /// Makes the programs use these settings from their next packet on.
    pub fn set(&self, settings: PacketSettings) {
        let words = settings.words();
        for (word, value) in self.words.at(0, words.len()).iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Makes the programs look for connections with direct return, which they also do when they have forwarded a packet.
    pub(crate) fn show_direct_return(&self) {
        self.words.at(3, 1)[0].store(word(1, 0), Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "tests/settings.rs"]
mod tests;
