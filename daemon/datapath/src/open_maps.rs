//! Keeps the pinned maps open, so that pins which disappear while the daemon runs are restored without any loss. Pins
//! disappear when another program removes them or mounts another bpffs over them. [`crate::attach`] does the same for
//! links.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::error::{OpenError, failed};
use crate::load::PERSISTENT;
use crate::maps::NAMES;
use crate::pins::Pins;
use crate::sys;

/// The open maps; see the module.
#[derive(Debug)]
pub(crate) struct OpenMaps {
    generation: u32,
    persistent: Vec<(&'static str, OwnedFd)>,
    /// The maps of the generation.
    maps: Vec<(&'static str, OwnedFd)>,
}

impl OpenMaps {
    /// Opens all pinned maps.
    pub(crate) fn open(pins: &Pins, generation: u32) -> Result<Self, OpenError> {
        let directory = pins.generation(generation);
        let persistent = PERSISTENT.iter().map(|&name| open(name, &pins.persistent(name))).collect::<Result<_, _>>()?;
        let maps = NAMES.iter().map(|&name| open(name, &directory.join(name))).collect::<Result<_, _>>()?;
        Ok(Self { generation, persistent, maps })
    }

    /// The maps without a pin.
    pub(crate) fn missing(&self, pins: &Pins) -> Vec<&'static str> {
        let directory = pins.generation(self.generation);
        let persistent = self.persistent.iter().map(|(name, _)| (*name, pins.persistent(name)));
        let maps = self.maps.iter().map(|(name, _)| (*name, directory.join(name)));
        persistent.chain(maps).filter(|(_, path)| !path.exists()).map(|(name, _)| name).collect()
    }

    /// Restores missing pins and their directories. The generation appears in one step, as at a start.
    pub(crate) fn restore(&self, pins: &Pins) -> Result<(), OpenError> {
        pins.make()?;
        for (name, map) in &self.persistent {
            pin(map, &pins.persistent(name), pins)?;
        }
        let directory = pins.generation(self.generation);
        if directory.exists() {
            return self.pin_maps(&directory, pins);
        }
        let directory = pins.begin(self.generation)?;
        self.pin_maps(&directory, pins)?;
        pins.commit(self.generation)
    }

    fn pin_maps(&self, directory: &Path, pins: &Pins) -> Result<(), OpenError> {
        self.maps.iter().try_for_each(|(name, map)| pin(map, &directory.join(name), pins))
    }
}

fn open(name: &'static str, path: &Path) -> Result<(&'static str, OwnedFd), OpenError> {
    Ok((name, sys::open_pinned(path).map_err(failed("opening", path))?))
}

/// Pins the map unless a pin exists there.
fn pin(map: &OwnedFd, path: &Path, pins: &Pins) -> Result<(), OpenError> {
    if !path.exists() {
        sys::pin(map.as_fd(), path).map_err(failed("pinning", path))?;
        pins.crash().pass();
    }
    Ok(())
}
