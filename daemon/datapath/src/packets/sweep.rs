//! Deletes connections that have ended, with `bpf/sweep.bpf.c`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapHandle, OpenObject};
pub use nodelb_core::packets::sweep::{SweepReason, SweepTimeouts};

use crate::error::{OpenError, failed, into_io};
use crate::flows::{link, read_records};
pub use crate::layout::Swept;
use crate::layout::{self, SWEEP_RECORD_SIZE};
use crate::load::{listening, refusal};
use crate::packets::handles::PacketMaps;
use crate::skeleton::sweep::SweepSkelBuilder;
use crate::sys;

const OBJECT: &str = "sweep.bpf.o";

/// The maps that only these programs have.
const OWN: [&str; 2] = ["sweep_timeouts", "sweep_scratch"];

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
        let mut skeleton =
            SweepSkelBuilder::default().open(&mut object).map_err(failed("opening", Path::new(OBJECT)))?;
        let prepared = maps.give_to(skeleton.open_object_mut(), &OWN);
        prepared.map_err(failed("preparing the maps of", Path::new(OBJECT)))?;
        let (skeleton, log) = listening(|| skeleton.load());
        let mut skeleton = skeleton.map_err(|error| refusal(error, &log))?;
        let attaching = || failed("attaching", Path::new(OBJECT));
        let connections = maps.find("connections").map_err(attaching())?;
        let half_open = maps.find("half_open").map_err(attaching())?;
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
        sys::update(&self.timeouts, &[0; 4], &layout::sweep_timeouts(timeouts))?;
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
