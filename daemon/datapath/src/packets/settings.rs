//! The settings of the packet programs that change while they run: `struct packet_settings`, in shared memory.

use std::io;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;

use crate::sys::SharedWords;

/// The settings of the packet programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketSettings {
    /// Whether only existing connections are translated.
    pub is_draining: bool,
    /// Whether TCP packets of unknown connections are answered with RST.
    pub resets_unknown: bool,
    /// Whether packets that cannot be served are answered with RST or ICMP.
    pub answers: bool,
    /// Whether backends on this node see an address of the node.
    pub always_masquerades: bool,
}

impl PacketSettings {
    /// The structure as two words: each has two numbers in memory order.
    fn words(self) -> [u64; 2] {
        let word = |first: bool, second: bool| {
            let numbers = [u32::from(first).to_ne_bytes(), u32::from(second).to_ne_bytes()];
            u64::from_ne_bytes(std::array::from_fn(|i| numbers[i / 4][i % 4]))
        };
        [word(self.is_draining, self.resets_unknown), word(self.answers, self.always_masquerades)]
    }
}

/// Writes the settings. Works without capabilities.
#[derive(Debug)]
pub struct SettingsWriter {
    words: SharedWords,
}

impl SettingsWriter {
    /// Maps the memory of the map `packet_settings`.
    pub(crate) fn new(map: &MapHandle) -> io::Result<Self> {
        Ok(Self { words: SharedWords::map(map)? })
    }

    /// Makes the programs use these settings from their next packet on.
    pub fn set(&self, settings: PacketSettings) {
        let words = settings.words();
        for (word, value) in self.words.at(0, words.len()).iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "tests/settings.rs"]
mod tests;
