//! Devices without a link-layer header: `bare_bits` in `bpf/packet.h`, and the map `bare_devices`.

use std::io;
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore, MapHandle};

use crate::skeleton::packet::types;
use crate::sys::{self, SharedWords};

const _: () = assert!(size_of::<types::bss>() == size_of::<u64>(), "the only variable is the word with the bits");

/// What a device puts in front of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    Ethernet,
    /// Nothing, as on tunnels.
    None,
}

/// Which devices have no link-layer header. Works without capabilities.
#[derive(Debug)]
pub(crate) struct BareDevices {
    bits: SharedWords,
    devices: MapHandle,
}

impl BareDevices {
    /// Maps the memory of the programs' variables. `devices` is the map `bare_devices`.
    pub(crate) fn new(variables: &MapHandle, devices: MapHandle) -> io::Result<Self> {
        Ok(Self { bits: SharedWords::map(variables)?, devices })
    }

    /// Makes the programs read packets of the device in this way, from the next one on.
    pub(crate) fn set(&self, ifindex: u32, link_layer: LinkLayer) -> io::Result<()> {
        let (word, bit) = (&self.bits.at(0, 1)[0], 1 << (ifindex % u64::BITS));
        match link_layer {
            LinkLayer::None => {
                let added = sys::update(&self.devices, &ifindex.to_ne_bytes(), &[0; 4]);
                added.map_err(|error| match error.raw_os_error() {
                    Some(libc::E2BIG) => io::Error::other(format!(
                        "there are already {} devices without a link-layer header, which is the maximum",
                        self.devices.max_entries()
                    )),
                    _ => error,
                })?;
                // The entry is seen with the bit.
                word.fetch_or(bit, Ordering::Release);
                Ok(())
            }
            LinkLayer::Ethernet if word.load(Ordering::Relaxed) & bit == 0 => Ok(()),
            LinkLayer::Ethernet => sys::delete(&self.devices, &ifindex.to_ne_bytes()),
        }
    }
}
