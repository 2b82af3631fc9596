//! The packet path's part of a start: loads the programs with the maps of the generation, and makes the devices that had
//! programs run the new ones, before the generation becomes current.

use std::path::Path;
use std::sync::Arc;

use libbpf_rs::MapHandle;

use super::connections::ConnectionReader;
use super::counts::PacketCounter;
use super::events::PacketEvents;
use super::load::{PacketMaps, PacketOptions, PacketPrograms};
use super::maps::{self, ConnectionMaps, PERSISTENT};
use super::settings::{PacketSettings, SettingsWriter};
use super::sweep::Sweep;
use crate::device_hooks::{self, DeviceHooks, HookMethod};
use crate::error::{OpenError, failed};
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
    /// Deletes connections that have ended; otherwise the reason why the kernel cannot.
    pub sweep: Result<Sweep, String>,
    /// Reads what the programs count.
    pub counter: Arc<PacketCounter>,
    /// Reads events about packets.
    pub events: PacketEvents,
    /// Reads the connections.
    pub connections: ConnectionReader,
    /// The maps by their names.
    pub maps: PacketMaps,
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
    let readable = || failed("preparing to read the maps of", pins.root());
    let settings = SettingsWriter::new(map(&programs, "packet_settings")?).map_err(readable())?;
    settings.set(config.settings);
    let counted = if config.options.count_connections { config.options.services.services } else { 0 };
    let counter = Arc::new(PacketCounter::new(programs.maps(), counted).map_err(readable())?);
    let events = PacketEvents::new(programs.maps()).map_err(readable())?;
    let connection_reader = ConnectionReader::new(programs.maps()).map_err(readable())?;
    let sweep = Sweep::load(programs.maps()).map_err(|error| error.to_string());
    let maps = programs.maps().duplicate().map_err(readable())?;
    let method = config.hook_method.unwrap_or_else(HookMethod::find);
    let mut hooks = DeviceHooks::new(programs, method, pins.duplicate());
    hooks.take_over().map_err(failed("changing programs pinned in", &pins.links()))?;
    connections.commit(pins)?;
    Ok(OpenedPackets { hooks, settings, sweep, counter, events, connections: connection_reader, maps })
}

/// A map that the object has created.
fn map<'p>(programs: &'p PacketPrograms, name: &'static str) -> Result<&'p MapHandle, OpenError> {
    programs.maps().get(name).ok_or_else(|| failed("finding the map", Path::new(name))("the object does not have it"))
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
