//! Drops the privileges that only the start needs. Loading takes capabilities; afterwards map writes, link updates and
//! new links work through open descriptors. This module proves that before it drops anything permanently.

use std::fs;
use std::io;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

use crate::KernelDatapath;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemainingPrivileges {
    /// Capabilities that this kernel requires for operations on maps and links; empty if it requires none.
    pub capabilities: Vec<String>,
    /// Whether the bounding set could not be emptied because CAP_SETPCAP is missing. Harmless: no_new_privs is set, so
    /// no executed program can gain capabilities from it.
    pub bounding_set: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Capabilities belong to threads: a thread that exists already would keep them.
    #[error("capabilities must be dropped before threads start, and {0} threads are running")]
    Threads(usize),
    #[error("dropping capabilities: {0}")]
    Capabilities(#[from] CapsError),
    /// no_new_privs could not be set, or `/proc` could not be read.
    #[error("dropping privileges: {0}")]
    System(#[from] io::Error),
    /// The maps cannot be written any more, even with CAP_BPF.
    #[error("nodelb cannot work without its other capabilities, not even with CAP_BPF: {0}")]
    NoUse(io::Error),
}

/// Drops all capabilities from all sets and sets no_new_privs, after proving that the datapath works without them.
/// Keeps CAP_BPF if the datapath works only with it.
pub fn drop_privileges(datapath: &KernelDatapath) -> Result<RemainingPrivileges, PrivilegeError> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(PrivilegeError::Threads(threads));
    }
    drop_thread_privileges(datapath)
}

/// [`drop_privileges`] for the calling thread and the threads that it starts. Other threads may exist.
pub fn drop_thread_privileges(datapath: &KernelDatapath) -> Result<RemainingPrivileges, PrivilegeError> {
    let bounding_set = !empty_bounding_set()?;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    nix::sys::prctl::set_no_new_privs().map_err(io::Error::from)?;
    // The permitted set stays until the effective set is proved to be sufficient.
    let wanted = [CapsHashSet::new(), CapsHashSet::from([Capability::CAP_BPF])];
    let mut refusal = io::Error::from(io::ErrorKind::PermissionDenied);
    for keep in wanted {
        caps::set(None, CapSet::Effective, &keep)?;
        match datapath.try_everything() {
            Ok(()) => {
                caps::set(None, CapSet::Permitted, &keep)?;
                let capabilities = keep.iter().map(ToString::to_string).collect();
                return Ok(RemainingPrivileges { capabilities, bounding_set });
            }
            Err(error) => refusal = error,
        }
    }
    Err(PrivilegeError::NoUse(refusal))
}

/// Empties the bounding set; returns whether it is empty.
fn empty_bounding_set() -> Result<bool, CapsError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        return Ok(caps::read(None, CapSet::Bounding)?.is_empty());
    }
    for capability in caps::read(None, CapSet::Bounding)? {
        caps::drop(None, CapSet::Bounding, capability)?;
    }
    Ok(true)
}
