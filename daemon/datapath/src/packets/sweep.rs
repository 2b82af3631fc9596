//! Deletes connections that have ended, with `bpf/sweep.bpf.c`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject};
pub use nodelb_core::packets::sweep::{SweepReason, SweepTimeouts};

use crate::error::into_io;
use crate::error::{OpenError, failed};
use crate::flows::{link, read_records};
pub use crate::layout::Swept;
use crate::layout::{self, SWEEP_RECORD_SIZE};
use crate::load::{listening, refusal};
use crate::packets::handles::PacketMaps;
use crate::skeleton::sweep::SweepSkelBuilder;

const OBJECT: &str = "sweep.bpf.o";

/// The maps that the programs use; the first three are those of the packet path.
const MAPS: [&str; 5] = ["connections", "half_open", "udp_entries", "sweep_timeouts", "sweep_scratch"];

/// The iterators over the maps of connections. They work without capabilities.
#[derive(Debug)]
pub struct Sweep {
    connections: OwnedFd,
    half_open: OwnedFd,
    timeouts: MapHandle,
}

impl Sweep {
    /// Loads the iterators over these maps. Needs CAP_BPF and CAP_PERFMON.
    pub fn load(maps: &PacketMaps) -> Result<Self, OpenError> {
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let preparing = || failed("preparing the maps of", Path::new(OBJECT));
        let mut skeleton =
            SweepSkelBuilder::default().open(&mut object).map_err(failed("opening", Path::new(OBJECT)))?;
        for mut map in skeleton.open_object_mut().maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some(handle) = maps.get(&name).filter(|_| MAPS.contains(&name.as_str())) {
                map.reuse_fd(handle.as_fd()).map_err(preparing())?;
            } else if !MAPS.contains(&name.as_str()) && !name.contains('.') {
                map.set_autocreate(false).map_err(preparing())?;
            }
        }
        let (skeleton, log) = listening(|| skeleton.load());
        let mut skeleton = skeleton.map_err(|error| refusal(error, &log))?;
        let attaching = || failed("attaching", Path::new(OBJECT));
        let map = |name| maps.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let connections = map("connections").map_err(attaching())?;
        let half_open = map("half_open").map_err(attaching())?;
        Ok(Self {
            connections: link(&mut skeleton.progs.sweep_connections, connections).map_err(attaching())?,
            half_open: link(&mut skeleton.progs.sweep_half_open, half_open).map_err(attaching())?,
            timeouts: MapHandle::try_from(&skeleton.maps.sweep_timeouts).map_err(into_io).map_err(attaching())?,
        })
    }

    /// Deletes what is due, and passes each deleted connection to `report`. The caller has the only reference, because
    /// both iterators share memory.
    ///
    /// # Errors
    /// If the kernel refuses the request. Connections that are due are then deleted at the next run.
    pub fn run(&mut self, timeouts: &SweepTimeouts, report: &mut dyn FnMut(Swept)) -> io::Result<()> {
        self.timeouts.update(&[0; 4], &layout::sweep_timeouts(timeouts), MapFlags::ANY).map_err(into_io)?;
        for iterator in [&self.connections, &self.half_open] {
            read_records::<SWEEP_RECORD_SIZE>(iterator, &mut |record| {
                if let Some(swept) = layout::parse_sweep_record(record) {
                    report(swept);
                }
            })?;
        }
        Ok(())
    }
}
