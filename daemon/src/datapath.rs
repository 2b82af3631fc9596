//! The datapath for the tasks that only read it: the kernel's maps and programs ([`crate::run`] opens them), or maps in
//! memory. The owner task alone writes; a reader never delays it.

use std::sync::Arc;

use nodelb_core::datapath::Limits;
use nodelb_core::model::moment::Moment;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::kernel_check::Content;
use nodelb_datapath::SocketProgram;
use nodelb_report::status_report::Kernel;
use tokio::sync::watch;

use crate::connections::Connections;

/// Reads the datapath, at any time and from any thread. What a datapath does not have is absent by default.
pub trait DatapathReader: Send + Sync {
    fn limits(&self) -> Limits;

    /// The present content of the maps. May block.
    ///
    /// # Errors
    /// The map that cannot be read, and the reason.
    fn content(&self) -> Result<Content, String>;

    /// The problem of each hook's link, usually none. May block.
    fn link_faults(&self) -> Vec<String> {
        Vec::new()
    }

    /// The programs of other software at the hooks that translate destinations. May block.
    fn socket_programs(&self) -> Vec<SocketProgram> {
        Vec::new()
    }

    /// Who else can change the pin directory, with the remedy, if others can. May block.
    fn foreign_pins(&self) -> Option<String> {
        None
    }

    /// The number of clients in the map `affinity`; `None` if the map cannot be read or does not exist. May block.
    fn clients(&self) -> Option<usize> {
        None
    }

    /// The number of slots that are in use or at rest; `None` if it is not known.
    fn slots_taken(&self, _now: Moment) -> Option<usize> {
        None
    }

    /// The number of connections per service; `None` if they are not counted.
    fn connections(&self) -> Option<&Connections> {
        None
    }

    /// The kernel; `None` with maps in memory.
    fn kernel(&self) -> Option<&Kernel> {
        None
    }
}

/// Reads maps in memory: their content is what the engine has written.
pub struct MemoryReader {
    pub limits: Limits,
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
}

impl DatapathReader for MemoryReader {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn content(&self) -> Result<Content, String> {
        Ok(Content { state: self.snapshot.borrow().realised.clone(), ..Content::default() })
    }
}

#[cfg(test)]
#[path = "tests/datapath_fake.rs"]
pub(crate) mod fake;
