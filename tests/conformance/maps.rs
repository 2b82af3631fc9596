//! Maps in the kernel, for the scenarios.

use std::path::Path;

use nodelb_core::compile::guard::Guard;
use nodelb_core::datapath::{Datapath, Limits, MapError};
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{MapOp, Realised};
use nodelb_datapath::{CrashPoint, KernelDatapath, LAYOUT, Options, cleanup};

use crate::model::Maps;

/// Maps pinned in one directory, with programs in one cgroup and none at devices.
pub(crate) fn options((pins, cgroup): (&Path, &Path), limits: Limits, guard: &Guard) -> Options {
    Options {
        pin_directory: pins.to_owned(),
        cgroup: Some(cgroup.to_owned()),
        limits,
        nodeport_range: guard.nodeport_range.clone(),
        protect_nodeports: true,
        count_connections: true,
        packets: None,
        hook_method: None,
        layout: LAYOUT,
        crash_after: None,
    }
}

/// Replaces the maps, if any, by new ones.
fn open(options: &Options) -> Result<KernelDatapath, String> {
    cleanup(&options.pin_directory, &|| (), &CrashPoint::new(None)).map_err(|error| error.to_string())?;
    KernelDatapath::open(options).map(|(datapath, _)| datapath).map_err(|error| error.to_string())
}

/// See the module.
pub(crate) struct KernelMaps {
    options: Options,
    /// `None` only while the maps are replaced.
    pub(crate) datapath: Option<KernelDatapath>,
}

impl KernelMaps {
    /// New maps.
    pub(crate) fn open(options: Options) -> Result<Self, String> {
        let datapath = open(&options)?;
        Ok(Self { options, datapath: Some(datapath) })
    }

    fn datapath(&self) -> &KernelDatapath {
        self.datapath.as_ref().unwrap_or_else(|| panic!("the maps could not be replaced"))
    }
}

impl Maps for KernelMaps {
    fn wipe(&mut self) {
        self.datapath = None;
        self.datapath = Some(open(&self.options).unwrap_or_else(|error| panic!("{error}")));
    }

    fn slots_used(&self) -> usize {
        let held = self.datapath().dump().unwrap_or_else(|error| panic!("{error}"));
        held.slot_count()
    }
}

impl Datapath for KernelMaps {
    fn limits(&self) -> Limits {
        self.options.limits
    }

    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        match &mut self.datapath {
            Some(datapath) => datapath.apply(ops, now),
            None => panic!("the maps could not be replaced"),
        }
    }

    fn end_round(&mut self, ended: Moment) {
        if let Some(datapath) = &mut self.datapath {
            datapath.end_round(ended);
        }
    }

    fn dump(&self) -> Result<Realised, MapError> {
        self.datapath().dump()
    }
}
