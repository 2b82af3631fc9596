//! The sockets that are connected to a backend of a service, in every network namespace of this machine, as
//! `bpf/flows.bpf.c` reports them. Owns the loading of these programs and the reading of their records; callers decide
//! what to do with the result.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapHandle, OpenObject, ProgramMut};
use nodelb_core::stale::Flow;

use crate::error::into_io;
use crate::layout::{self, FLOW_RECORD_SIZE};
use crate::load::{PERSISTENT, explained};
use crate::skeleton::flows::FlowsSkelBuilder;
use crate::sys;

/// Bytes per read: the kernel uses a buffer of eight pages.
const CHUNK: usize = 32 * 1024;

/// Reads the connections. Cheap to clone; works from any thread and without capabilities. Nothing is pinned.
#[derive(Clone, Debug)]
pub struct FlowReader {
    /// The iterators over `udp_sockets` and `udp_table`.
    udp: Arc<[OwnedFd; 2]>,
    tcp: Arc<[OwnedFd; 2]>,
}

impl FlowReader {
    /// Loads the iterators over these maps. Needs CAP_BPF and CAP_PERFMON, a kernel with BTF of its own, and Linux
    /// 5.12.
    pub(crate) fn load(maps: &[MapHandle; PERSISTENT.len()]) -> io::Result<Self> {
        let [tcp_sockets, udp_sockets, tcp_table, udp_table, ..] = maps;
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let mut loaded = explained(|| {
            let mut skeleton = FlowsSkelBuilder::default().open(&mut object)?;
            skeleton.maps.tcp_table.reuse_fd(tcp_table.as_fd())?;
            skeleton.maps.udp_table.reuse_fd(udp_table.as_fd())?;
            skeleton.load()
        })?;
        let programs = &mut loaded.progs;
        Ok(Self {
            udp: Arc::new([
                link(&mut programs.udp_flows, udp_sockets)?,
                link(&mut programs.udp_table_flows, udp_table)?,
            ]),
            tcp: Arc::new([
                link(&mut programs.tcp_flows, tcp_sockets)?,
                link(&mut programs.tcp_table_flows, tcp_table)?,
            ]),
        })
    }

    /// Passes each flow of the UDP sockets to `see`, all flows of one socket consecutively. A socket that reached its
    /// backend through several services has one flow for each. A flow may be wrong if the socket is being connected at
    /// the same time, but not in two reads. A socket may be missing if another one is closed at the same time.
    pub fn udp(&self, report: &mut dyn FnMut(Flow)) -> io::Result<()> {
        read_flows(self.udp.as_slice(), report)
    }

    /// Passes the TCP sockets that are connected or connecting to `see`.
    pub fn tcp(&self, report: &mut dyn FnMut(Flow)) -> io::Result<()> {
        read_flows(self.tcp.as_slice(), report)
    }
}

/// Attaches an iterator to a map.
pub(crate) fn link(program: &mut ProgramMut<'_>, map: &MapHandle) -> io::Result<OwnedFd> {
    let link = program.attach_iter(map.as_fd()).map_err(into_io)?;
    link.as_fd().try_clone_to_owned()
}

fn read_flows(links: &[OwnedFd], report: &mut dyn FnMut(Flow)) -> io::Result<()> {
    let mut parse = |record: &[u8; FLOW_RECORD_SIZE]| {
        if let Some(flow) = layout::parse_flow_record(record) {
            report(flow);
        }
    };
    links.iter().try_for_each(|link| read_records(link, &mut parse))
}

/// Reads all records of an iterator. The kernel returns only whole records, as many as fit.
pub(crate) fn read_records<const SIZE: usize>(link: &OwnedFd, report: &mut dyn FnMut(&[u8; SIZE])) -> io::Result<()> {
    let mut file = sys::iter_create(link.as_fd())?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = match file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => continue,
            Err(error) => return Err(error),
        };
        let (records, rest) = chunk[..length].as_chunks::<SIZE>();
        if !rest.is_empty() {
            return Err(io::Error::other(format!("{length} bytes of records of {SIZE} each")));
        }
        records.iter().for_each(&mut *report);
    }
}
