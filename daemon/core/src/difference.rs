//! Where two of the source, nodelb's memory and the kernel disagree. The sources and the reports find it.

use crate::model::service::ServiceName;

/// The two sides that disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::VariantNames)]
pub enum Between {
    /// The report of a source, and nodelb's state in memory.
    #[strum(serialize = "source/memory")]
    SourceMemory,
    /// The desired state, and the content of the maps.
    #[strum(serialize = "memory/kernel")]
    MemoryKernel,
    /// The content of the maps, and the result of a connection.
    #[strum(serialize = "kernel/connect")]
    KernelConnect,
}

/// A row of `/diff`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub between: Between,
    /// The subject: an address, a service port or a hook.
    pub what: String,
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
