//! The packet path's part of a start: loads the programs with the maps of the generation, and makes the devices that had
//! programs run the new ones, before the generation becomes current.

use std::io;
use std::path::Path;
use std::sync::Arc;

use libbpf_rs::MapHandle;
use nodelb_core::model::ipsec::Policies;

use crate::device_hooks::{self, DeviceHooks, HookError, HookMethod, OUTDATED};
use crate::error::{OpenError, failed};
use crate::kept::KeptPrograms;
use crate::outside::OutsideMaps;
use crate::packets::maps::{self, ConnectionMaps, PERSISTENT};
use crate::packets::outside_addrs::OutsideAddrs;
use crate::packets::{
    CheckWays, ConnectionReader, ForeignPorts, PacketBloom, PacketCounter, PacketEvents, PacketMaps, PacketOptions,
    PacketPrograms, PolicyWriter, SettingsWriter, Sweep, XdpProgram, bloom,
};
use crate::pins::{Pins, WITHOUT_DIRECT_RETURN};
use crate::sys;
use crate::xdp::XdpHooks;

/// The reason why a start has not loaded the programs of the packet path. Connections of sockets are translated all the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketFailure {
    pub reason: String,
    /// Whether programs of an earlier start are attached and use the maps of this one.
    pub is_earlier_active: bool,
}

#[derive(Debug)]
pub struct OpenedPackets {
    pub hooks: DeviceHooks,
    pub settings: SettingsWriter,
    pub policies: PolicyWriter,
    /// The rules that the programs follow since this start; `None` if they could not be read, and they follow none.
    pub followed: Option<Policies>,
    pub check_ways: CheckWays,
    /// Deletes connections that have ended; otherwise the reason why the kernel cannot.
    pub sweep: Result<Sweep, String>,
    pub counter: Arc<PacketCounter>,
    pub bloom: Arc<PacketBloom>,
    pub(crate) outside_addrs: Arc<OutsideAddrs>,
    /// The ports that connections of others use, if the programs cannot query connection tracking.
    pub foreign_ports: Option<ForeignPorts>,
    pub events: PacketEvents,
    pub connections: ConnectionReader,
    pub maps: PacketMaps,
    /// Whether the programs have direct return: as the options say, or as an earlier start in this boot.
    pub direct_return: bool,
    /// Maximum number of connections, which is above the configured one if more connections existed at the start.
    pub max_connections: u32,
    /// What the start could not do, with the error.
    pub faults: Vec<String>,
}

/// Loads the programs with these maps of the generation, and makes every device that has programs of an earlier process
/// run the new ones.
///
/// Programs that have had direct return have it until the maps of connections go, whatever the options say.
pub(crate) fn start(
    (options, hook_method): (&PacketOptions, Option<HookMethod>),
    (pins, kept): (&Pins, &KeptPrograms),
    generation: impl IntoIterator<Item = (&'static str, MapHandle)>,
) -> Result<OpenedPackets, OpenError> {
    if !maps::is_any_pinned(pins) {
        pins.mark(WITHOUT_DIRECT_RETURN, !options.direct_return).map_err(failed("marking", pins.root()))?;
    }
    let bloom = bloom::open(pins, options.limits.outside)?;
    let mut connections = ConnectionMaps::open(pins, options)?;
    let given = given(generation.into_iter().chain([(bloom::NAME, bloom)]), &connections, pins)?;
    let readable = || failed("preparing to read the maps of", pins.root());
    let connection_reader = ConnectionReader::new(&given).map_err(readable())?;
    let has_forwarded = connections.has_forwarded().map_err(readable())?;
    let direct_return = options.direct_return || has_forwarded || !pins.is_marked(WITHOUT_DIRECT_RETURN);
    let options = &PacketOptions { direct_return, ..options.clone() };
    let programs = PacketPrograms::load_or_keep(options, given, Some(kept))?;
    let settings = SettingsWriter::new(programs.maps()).map_err(readable())?;
    settings.set(options.settings);
    let policies = follow(options.policies.as_ref(), programs.maps()).map_err(readable())?;
    let check_ways = CheckWays::new(programs.maps()).map_err(readable())?;
    let counted = if options.count_connections { options.limits.services } else { 0 };
    let counter = Arc::new(PacketCounter::new(programs.maps(), counted).map_err(readable())?);
    let events = PacketEvents::new(programs.maps()).map_err(readable())?;
    if programs.are_taken_over {
        counter.clear(programs.maps()).and_then(|()| events.clear()).map_err(readable())?;
    }
    let bloom = Arc::new(
        PacketBloom::new(programs.maps(), options.nodeport_range.clone(), options.source_ports.clone())
            .map_err(readable())?,
    );
    let outside_addrs = Arc::new(OutsideAddrs::new(programs.maps()).map_err(readable())?);
    let sweep = Sweep::load_or_keep(programs.maps(), Some(kept)).map_err(|error| error.to_string());
    let maps = programs.maps().duplicate().map_err(readable())?;
    let (foreign_ports, not_listed) = foreign_ports(options, &maps).map_err(readable())?;
    let method = hook_method.unwrap_or_else(HookMethod::find);
    let (xdp, not_loaded) = load_xdp(options, &maps, kept);
    let mut hooks = DeviceHooks::new(programs, method, (pins.clone(), kept), xdp);
    connections.show_former(&maps)?;
    if has_forwarded {
        settings.show_direct_return();
    }
    if direct_return {
        pins.mark(WITHOUT_DIRECT_RETURN, false).map_err(failed("unmarking", pins.root()))?;
    }
    // From here on, devices run the new programs: no error undoes that.
    let mut faults: Vec<String> = hooks.take_over().iter().map(HookError::to_string).collect();
    let are_replaced = faults.is_empty() && sys::membarrier_global().is_ok();
    let committed = connections.commit(pins).and_then(|()| ConnectionMaps::hide_former(&maps));
    let committed = committed.and_then(|()| bloom::commit(pins));
    if are_replaced && committed.is_ok() {
        faults.extend(bloom.fill(&maps).err().map(|error| error.to_string()));
    }
    faults.extend(not_listed.into_iter().chain(not_loaded));
    faults.extend(committed.err().map(|error| error.to_string()));
    faults.extend(pins.mark(OUTDATED, false).err().map(|error| error.to_string()));
    let max_connections = connections.max_connections();
    Ok(OpenedPackets {
        hooks,
        settings,
        policies,
        followed: options.policies.clone(),
        check_ways,
        sweep,
        counter,
        bloom,
        outside_addrs,
        foreign_ports,
        events,
        connections: connection_reader,
        maps,
        direct_return,
        max_connections,
        faults,
    })
}

/// Makes the programs follow these policies of IPsec.
fn follow(policies: Option<&Policies>, maps: &PacketMaps) -> io::Result<PolicyWriter> {
    let writer = PolicyWriter::new(maps)?;
    writer.set(policies.unwrap_or(&Policies::default()))?;
    Ok(writer)
}

/// The maps that the programs get: these, and those of connections.
fn given(
    others: impl Iterator<Item = (&'static str, MapHandle)>,
    connections: &ConnectionMaps,
    pins: &Pins,
) -> Result<PacketMaps, OpenError> {
    let clone = |(name, map): (&'static str, &MapHandle)| {
        let map = MapHandle::try_from(map).map_err(failed("duplicating", &pins.persistent(name)))?;
        Ok((name.to_owned(), map))
    };
    let persistent = PERSISTENT.into_iter().zip(connections.handles()).map(clone);
    let others = others.map(|(name, map)| Ok((name.to_owned(), map)));
    Ok(PacketMaps::new(others.chain(persistent).collect::<Result<Vec<_>, OpenError>>()?))
}

/// The XDP program, unless it is off, and why it could not be loaded.
fn load_xdp(options: &PacketOptions, maps: &PacketMaps, kept: &KeptPrograms) -> (Option<XdpHooks>, Option<String>) {
    let Some(mode) = options.xdp else { return (None, None) };
    match XdpProgram::load_or_keep(options, maps, Some(kept)) {
        Ok(program) => (Some(XdpHooks::new(program, mode)), None),
        Err(error) => (None, Some(format!("packets.xdp: {error}"))),
    }
}

/// The ports of foreign connections, which the programs know before their first packet, and why not all are known.
fn foreign_ports(options: &PacketOptions, maps: &PacketMaps) -> io::Result<(Option<ForeignPorts>, Option<String>)> {
    let Some(connections) = &options.foreign_connections else { return Ok((None, None)) };
    let ports = ForeignPorts::new(maps, options.source_ports.clone())?;
    let not_all = ports.set(connections).err().map(|error| format!("ports of other proxies: {error}"));
    Ok((Some(ports), not_all))
}

/// The failure of a start that has reused the maps of the generation, which programs of an earlier start use too.
pub(crate) fn keep_earlier(pins: &Pins, error: &OpenError) -> PacketFailure {
    PacketFailure { reason: error.to_string(), is_earlier_active: device_hooks::is_any_current(pins) }
}

/// The failure of a start with new maps, which programs of an earlier start do not use. They get no more updates, so
/// they translate no new connection from now on. `previous` is the directory of the generation that they use.
pub(crate) fn end_earlier(pins: &Pins, previous: Option<&Path>, error: &OpenError) -> PacketFailure {
    let mut reason = error.to_string();
    if let Some(previous) = previous {
        let opened = OutsideMaps::open(previous).map_err(|(_, error)| error);
        let ended = opened.and_then(|maps| maps.serve_none()).and_then(|()| pins.mark(OUTDATED, true));
        if let Err(error) = ended {
            reason.push_str(&format!("; programs of an earlier start still select old backends ({error})"));
        }
    }
    PacketFailure { reason, is_earlier_active: false }
}

/// Removes everything that an earlier process with packets has left: its programs, and all connections. Filters may be
/// there without any pin, because a BPF file system is memory.
pub(crate) fn remove(pins: &Pins) -> Result<(), OpenError> {
    if maps::is_any_pinned(pins) || device_hooks::is_any_attached(pins) {
        device_hooks::remove_all(pins)
            .map_err(failed("detaching the programs of devices, pinned in", &pins.links()))?;
        maps::remove(pins)?;
    }
    Ok(())
}
