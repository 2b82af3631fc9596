//! Giving up what start needed and running does not. Loading takes capabilities; afterwards map writes, link updates and
//! new links work through the descriptors that are held. That is proved here before anything is gone for good.

use std::fs;
use std::io;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

use crate::KernelDatapath;

/// What the process still has after [`drop_privileges`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Capabilities this kernel wants for work on maps and links; empty on kernels that want none.
    pub capabilities: Vec<String>,
    /// Whether the bounding set could not be emptied for lack of CAP_SETPCAP. Harmless: no_new_privs is set, so no
    /// executed program can gain from it.
    pub bounding_set: bool,
}

/// Why privileges could not be dropped.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Capabilities belong to threads: one that exists already would keep them.
    #[error("capabilities must be dropped before there are threads, and there are {0}")]
    Threads(usize),
    /// The kernel refused to take them.
    #[error("dropping capabilities: {0}")]
    Capabilities(#[from] CapsError),
    /// no_new_privs could not be set, or `/proc` could not be read.
    #[error("dropping privileges: {0}")]
    System(#[from] io::Error),
    /// Even with CAP_BPF the maps cannot be written any more.
    #[error("without its other capabilities nodelb cannot work, not even with CAP_BPF: {0}")]
    NoUse(io::Error),
}

/// Drops every capability from every set and sets no_new_privs, having proved that the datapath works without; keeps
/// CAP_BPF if only that proves to be enough.
///
/// # Errors
/// If there is more than one thread, or the kernel refuses.
pub fn drop_privileges(datapath: &KernelDatapath) -> Result<Kept, PrivilegeError> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(PrivilegeError::Threads(threads));
    }
    drop_thread_privileges(datapath)
}

/// As [`drop_privileges`], for the calling thread and the threads it will start, whatever other threads there are.
///
/// # Errors
/// If the kernel refuses.
pub fn drop_thread_privileges(datapath: &KernelDatapath) -> Result<Kept, PrivilegeError> {
    let bounding_set = !empty_bounding_set()?;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    nix::sys::prctl::set_no_new_privs().map_err(io::Error::from)?;
    // The permitted set stays until it is proved that what is effective is enough.
    let wanted = [CapsHashSet::new(), CapsHashSet::from([Capability::CAP_BPF])];
    let mut refusal = io::Error::from(io::ErrorKind::PermissionDenied);
    for keep in wanted {
        caps::set(None, CapSet::Effective, &keep)?;
        match datapath.try_everything() {
            Ok(()) => {
                caps::set(None, CapSet::Permitted, &keep)?;
                let capabilities = keep.iter().map(ToString::to_string).collect();
                return Ok(Kept { capabilities, bounding_set });
            }
            Err(error) => refusal = error,
        }
    }
    Err(PrivilegeError::NoUse(refusal))
}

/// Whether nothing is left in it.
fn empty_bounding_set() -> Result<bool, CapsError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        return Ok(caps::read(None, CapSet::Bounding)?.is_empty());
    }
    for capability in caps::read(None, CapSet::Bounding)? {
        caps::drop(None, CapSet::Bounding, capability)?;
    }
    Ok(true)
}
