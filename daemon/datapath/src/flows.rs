//! Which sockets are connected to a backend of a service, in every network namespace of this machine: what
//! `bpf/flows.bpf.c` tells. Owns its loading and the reading of its records; what follows from them is others' business.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapHandle, OpenObject, ProgramMut};
use nodelb_core::stale::Flow;

use crate::layout::{self, FLOW_RECORD_SIZE};
use crate::load::listening;
use crate::maps::into_io;
use crate::own::OwnSockets;
use crate::skeleton::flows::FlowsSkelBuilder;
use crate::sys;

/// How much is read at a time: the kernel has a buffer of eight pages for it.
const CHUNK: usize = 32 * 1024;

/// Reads the connections. Cheap to clone; works from any thread and without capabilities. Nothing of it is pinned.
#[derive(Clone, Debug)]
pub struct FlowReader {
    udp: Arc<OwnedFd>,
    tcp: Arc<OwnedFd>,
}

impl FlowReader {
    /// Loads the iterators over these maps. Takes CAP_BPF and CAP_PERFMON, a kernel with its own BTF, and Linux 5.12.
    pub(crate) fn load(sockets: &OwnSockets) -> io::Result<Self> {
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let (loaded, log) = listening(|| FlowsSkelBuilder::default().open(&mut object).and_then(OpenSkel::load));
        let mut loaded = loaded.map_err(|error| {
            let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            io::Error::other(format!("{error}: {}", last.trim()))
        })?;
        Ok(Self {
            udp: link(&mut loaded.progs.udp_flows, &sockets.udp)?.into(),
            tcp: link(&mut loaded.progs.tcp_flows, &sockets.tcp)?.into(),
        })
    }

    /// Tells of the UDP sockets, all of one socket after the other. One that has come to its backend by several services is told once for each. A socket that is
    /// being connected meanwhile may be told wrongly, but not twice; one may be missed when another is closed meanwhile.
    ///
    /// # Errors
    /// When the kernel does not let itself be asked.
    pub fn udp(&self, see: &mut dyn FnMut(Flow)) -> io::Result<()> {
        read(&self.udp, see)
    }

    /// Tells of the TCP sockets that are connected, or wait to be.
    ///
    /// # Errors
    /// As [`Self::udp`].
    pub fn tcp(&self, see: &mut dyn FnMut(Flow)) -> io::Result<()> {
        read(&self.tcp, see)
    }
}

fn link(program: &mut ProgramMut<'_>, map: &MapHandle) -> io::Result<OwnedFd> {
    let link = program.attach_iter(map.as_fd()).map_err(into_io)?;
    link.as_fd().try_clone_to_owned()
}

/// The kernel returns whole records only, as many as fit.
fn read(link: &OwnedFd, see: &mut dyn FnMut(Flow)) -> io::Result<()> {
    let mut file = sys::iter_create(link.as_fd())?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = match file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => continue,
            Err(error) => return Err(error),
        };
        let (records, rest) = chunk[..length].as_chunks::<FLOW_RECORD_SIZE>();
        if !rest.is_empty() {
            return Err(io::Error::other(format!("{length} bytes of records of {FLOW_RECORD_SIZE} each")));
        }
        records.iter().filter_map(layout::parse_flow_record).for_each(&mut *see);
    }
}
