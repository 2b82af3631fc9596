//! The packet path's part of a start: loads the programs with the maps of the generation, and makes the devices that had
//! programs run the new ones, before the generation becomes current.

use std::sync::Arc;

use libbpf_rs::MapHandle;

use super::load::{PacketMaps, PacketOptions, PacketPrograms};
use super::maps::{self, ConnectionMaps, PERSISTENT};
use super::settings::{PacketSettings, SettingsWriter};
use crate::device_hooks::{self, DeviceHooks, HookMethod};
use crate::error::{OpenError, failed};
use crate::maps::into_io;
use crate::pins::Pins;

/// The configuration of the packet path.
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The settings that the programs are loaded with.
    pub options: PacketOptions,
    /// The settings until others are written.
    pub settings: PacketSettings,
    /// How programs are attached to devices; `None` for the best way that the kernel supports.
    pub hook_method: Option<HookMethod>,
}

/// The packet path in the kernel.
#[derive(Debug)]
pub struct OpenedPackets {
    /// The programs at devices.
    pub hooks: DeviceHooks,
    /// Writes the settings of the programs.
    pub settings: SettingsWriter,
    /// The maps, for readers.
    pub maps: Arc<PacketMaps>,
}

/// Loads the programs with these maps of the generation, and makes every device that has programs of an earlier process
/// run the new ones.
pub(crate) fn start(
    config: &PacketConfig,
    pins: &Pins,
    generation: impl IntoIterator<Item = (&'static str, MapHandle)>,
) -> Result<OpenedPackets, OpenError> {
    let mut connections = ConnectionMaps::open(pins, config.options.limits)?;
    let clone = |(name, map): (&'static str, &MapHandle)| {
        let map = MapHandle::try_from(map).map_err(failed("duplicating", &pins.persistent(name)))?;
        Ok((name.to_owned(), map))
    };
    let persistent = PERSISTENT.into_iter().zip(connections.handles()).map(clone);
    let given = generation.into_iter().map(|(name, map)| Ok((name.to_owned(), map)));
    let given: Vec<(String, MapHandle)> = given.chain(persistent).collect::<Result<_, OpenError>>()?;
    let programs = PacketPrograms::load(&config.options, PacketMaps::new(given))?;
    let settings = settings(&programs).map_err(failed("mapping the settings of", pins.root()))?;
    settings.set(config.settings);
    let maps = programs.maps().duplicate().map_err(failed("duplicating the maps of", pins.root()))?;
    let method = config.hook_method.unwrap_or_else(HookMethod::find);
    let mut hooks = DeviceHooks::new(programs, method, pins.duplicate());
    hooks.take_over().map_err(failed("changing programs pinned in", &pins.links()))?;
    connections.commit(pins)?;
    Ok(OpenedPackets { hooks, settings, maps: Arc::new(maps) })
}

fn settings(programs: &PacketPrograms) -> std::io::Result<SettingsWriter> {
    let map = programs.maps().get("packet_settings").ok_or(std::io::ErrorKind::NotFound)?;
    SettingsWriter::new(&MapHandle::try_from(map).map_err(into_io)?)
}

/// Removes everything that an earlier process with packets has left: its programs, and all connections.
pub(crate) fn remove(pins: &Pins) -> Result<(), OpenError> {
    if maps::is_any_pinned(pins) {
        device_hooks::remove_all(pins)
            .map_err(failed("detaching the programs of devices, pinned in", &pins.links()))?;
        maps::remove(pins)?;
    }
    Ok(())
}
