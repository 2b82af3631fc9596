//! Where two of the source, nodelb's memory and the kernel disagree. The sources and the reports find it.

use std::fmt;

use crate::model::service::ServiceName;

/// The two sides that disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Between {
    /// The report of a source, and nodelb's state in memory.
    SourceMemory,
    /// The desired state, and the content of the maps.
    MemoryKernel,
    /// The content of the maps, and the result of a connection.
    KernelConnect,
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl Between {
    /// The names in output, in the order of the variants.
    pub const NAMES: [&'static str; 3] = ["source/memory", "memory/kernel", "kernel/connect"];
}

/// A row of `/diff`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The two sides that disagree.
    pub between: Between,
    /// The subject: an address, a service port or a hook.
    pub what: String,
    /// The service concerned, if any.
    pub service: Option<ServiceName>,
    /// The value according to the source, if it is one of the two sides.
    pub source: Option<String>,
    pub memory: Option<String>,
    /// The value in the maps, or the result of a connection.
    pub kernel: Option<String>,
    /// The most likely cause.
    pub cause: String,
    /// nodelb's action, or what the reader can do.
    pub action: String,
}
