//! Deletes connections that have ended, and counts the outcomes of those that have begun, with `bpf/sweep.bpf.c`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, OpenObject};
use nodelb_core::packets::outcomes::Outcome;
pub use nodelb_core::packets::sweep::{Interval, SweepReason, SweepTimeouts};

use crate::error::{OpenError, failed};
use crate::kept::{self, KeptPrograms, Source};
pub use crate::layout::Swept;
use crate::layout::{self, SWEEP_RECORD_SIZE};
use crate::load::{listening, refusal};
use crate::packets::handles::PacketMaps;
use crate::skeleton::sweep::{DATA, SweepSkelBuilder};
use crate::sys::{self, Records};

const SOURCE: Source = Source { name: "sweep", bytes: &DATA, lasting: &[] };

const OBJECT: &str = "sweep.bpf.o";

/// One run deletes at most a part of the connections: with the default sizes, their records fit into 256 KiB.
const ENTRIES_PER_RECORD: u32 = 32;

/// The least number of records.
const LEAST_RECORDS: u32 = 64;

/// The maps that only these programs have.
const OWN: [&str; 4] = ["sweep_timeouts", "sweep_scratch", "sweep_records", "sweep_outcomes"];

/// The programs that visit the maps of connections. They work without capabilities.
#[derive(Debug)]
pub struct Sweep {
    programs: [OwnedFd; 2],
    timeouts: MapHandle,
    outcomes: MapHandle,
    records: Records<SWEEP_RECORD_SIZE>,
}

impl Sweep {
    /// Loads the programs for these maps. Needs CAP_BPF and CAP_PERFMON.
    pub fn load(maps: &PacketMaps) -> Result<Self, OpenError> {
        Self::load_or_keep(maps, None)
    }

    /// As [`Self::load`], or takes over the programs of an earlier start.
    pub(crate) fn load_or_keep(maps: &PacketMaps, kept: Option<&KeptPrograms>) -> Result<Self, OpenError> {
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let mut skeleton =
            SweepSkelBuilder::default().open(&mut object).map_err(failed("opening", Path::new(OBJECT)))?;
        let prepared = maps.give_to(skeleton.open_object_mut(), &OWN);
        let prepared = prepared.and_then(|()| {
            let entries = |name| maps.get(name).map_or(0, MapCore::max_entries);
            let most = entries("connections").max(entries("half_open"));
            skeleton.maps.sweep_records.set_max_entries((most / ENTRIES_PER_RECORD).max(LEAST_RECORDS))
        });
        prepared.map_err(failed("preparing the maps of", Path::new(OBJECT)))?;
        let given = |name: &str| maps.get(name);
        let (loaded, log) = listening(|| kept::load(kept, &SOURCE, given, skeleton));
        let loaded = loaded.map_err(|error| refusal(error, &log))?;
        let opening = || failed("opening", Path::new(OBJECT));
        Ok(Self {
            programs: [
                loaded.program("sweep_connections").map_err(opening())?,
                loaded.program("sweep_half_open").map_err(opening())?,
            ],
            timeouts: loaded.map("sweep_timeouts").map_err(opening())?,
            outcomes: loaded.map("sweep_outcomes").map_err(opening())?,
            records: loaded.map("sweep_records").and_then(|map| Records::map(&map)).map_err(opening())?,
        })
    }

    /// Deletes what is due, and passes each deleted connection to `report`. Returns the outcomes of the connections that
    /// began in the interval. The caller has the only reference, because both programs share memory.
    ///
    /// # Errors
    /// If the kernel refuses the request. Connections that are due are then deleted at the next run.
    pub fn run(
        &mut self,
        timeouts: &SweepTimeouts,
        counted: Interval,
        report: &mut dyn FnMut(Swept),
    ) -> io::Result<Vec<Outcome>> {
        // What a run has left that failed, or of which the daemon was killed, is counted again.
        self.take_outcomes()?;
        let set = |counted| sys::update(&self.timeouts, &[0; 4], &layout::sweep_timeouts(timeouts, counted));
        let mut parse = |record: &[u8; SWEEP_RECORD_SIZE]| {
            if let Some(swept) = layout::parse_sweep_record(record) {
                report(swept);
            }
        };
        for program in &self.programs {
            // The first run visits all entries. One that has filled the records has not deleted all that are due. What becomes
            // due meanwhile has time.
            for run in 0..=ENTRIES_PER_RECORD {
                set(if run == 0 { counted } else { Interval::default() })?;
                if self.records.run(program.as_fd(), &mut parse)? < self.records.most() {
                    break;
                }
            }
        }
        self.take_outcomes()
    }

    /// Returns the outcomes of the handshakes that began in the interval, and deletes nothing. The next [`Self::run`] counts
    /// them, too.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn look(&mut self, counted: Interval) -> io::Result<Vec<Outcome>> {
        let [_, handshakes] = &self.programs;
        sys::update(&self.timeouts, &[0; 4], &layout::sweep_look(counted))?;
        self.records.run(handshakes.as_fd(), &mut |_| {})?;
        self.take_outcomes()
    }

    fn take_outcomes(&self) -> io::Result<Vec<Outcome>> {
        let entries = sys::entries(&self.outcomes)?;
        for (key, _) in &entries {
            sys::delete(&self.outcomes, key)?;
        }
        Ok(entries.iter().map(layout::parse_outcome).collect())
    }
}
