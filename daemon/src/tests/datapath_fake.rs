//! A datapath with the content that a test sets.

use super::*;

type ReadContent = Box<dyn Fn() -> Result<Content, String> + Send + Sync>;

pub(crate) struct FakeDatapath {
    pub(crate) limits: Limits,
    pub(crate) content: ReadContent,
    pub(crate) link_faults: Vec<String>,
    pub(crate) socket_programs: Vec<SocketProgram>,
    pub(crate) clients: Option<usize>,
    pub(crate) connections: Option<Connections>,
}

impl Default for FakeDatapath {
    /// Maps that cannot be read.
    fn default() -> Self {
        Self {
            limits: Limits { frontends: 1, services: 1, slots: 1, affinity: 1, outside: 0, source_ranges: 0 },
            content: Box::new(|| Err("none".into())),
            link_faults: Vec::new(),
            socket_programs: Vec::new(),
            clients: None,
            connections: None,
        }
    }
}

impl DatapathReader for FakeDatapath {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn content(&self) -> Result<Content, String> {
        (self.content)()
    }

    fn link_faults(&self) -> Vec<String> {
        self.link_faults.clone()
    }

    fn socket_programs(&self) -> Vec<SocketProgram> {
        self.socket_programs.clone()
    }

    fn clients(&self) -> Option<usize> {
        self.clients
    }

    fn connections(&self) -> Option<&Connections> {
        self.connections.as_ref()
    }
}
