//! The sockets that are connected to a backend of a service, in every network namespace of this machine, as
//! `bpf/flows.bpf.c` reports them. Owns the loading of these programs and the reading of their records; callers decide
//! what to do with the result.

use std::io::{self, ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::skel::SkelBuilder;
use libbpf_rs::{MapHandle, OpenObject};
use nodelb_core::stale::Flow;

use crate::kept::{self, KeptPrograms, Source};
use crate::layout::{self, FLOW_RECORD_SIZE};
use crate::load::{PERSISTENT, explained};
use crate::skeleton::flows::{DATA, FlowsSkelBuilder};
use crate::sys::{self, Records, program};

const SOURCE: Source = Source { name: "flows", bytes: &DATA, lasting: &[] };

/// Bytes per read: the kernel uses a buffer of eight pages.
const CHUNK: usize = 32 * 1024;

/// Reads the connections. Cheap to clone; works from any thread and without capabilities.
#[derive(Clone, Debug)]
pub struct FlowReader {
    udp: Arc<Programs>,
    tcp: Arc<Programs>,
    tables: Arc<Mutex<Tables>>,
}

/// What reads the sockets of a protocol: the iterator over those with storage, and the program that visits the table.
#[derive(Debug)]
struct Programs {
    stored: OwnedFd,
    table: OwnedFd,
}

/// What the programs that visit tables share.
#[derive(Debug)]
struct Tables {
    run: MapHandle,
    records: Records<FLOW_RECORD_SIZE>,
}

impl FlowReader {
    /// Loads the programs for these maps. Needs CAP_BPF and CAP_PERFMON, and a kernel with BTF of its own.
    pub(crate) fn load(maps: &[MapHandle; PERSISTENT.len()], kept: &KeptPrograms) -> io::Result<Self> {
        // Each start tries the first ones, as the kernel may have refused them for a reason that passes.
        Self::load_with(maps, kept, true).or_else(|refused| {
            Self::load_with(maps, kept, false)
                .map_err(|error| io::Error::other(format!("{error}; with socket storage: {refused}")))
        })
    }

    /// `by_storage`: sockets with storage are found by that, and otherwise by the open files of all processes.
    fn load_with(maps: &[MapHandle; PERSISTENT.len()], kept: &KeptPrograms, by_storage: bool) -> io::Result<Self> {
        let [tcp_sockets, udp_sockets, tcp_table, udp_table, ..] = maps;
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let given = |name: &str| PERSISTENT.iter().zip(maps).find(|(known, _)| **known == name).map(|(_, map)| map);
        let loaded = explained(|| {
            let mut skeleton = FlowsSkelBuilder::default().open(&mut object)?;
            skeleton.maps.tcp_sockets.reuse_fd(tcp_sockets.as_fd())?;
            skeleton.maps.udp_sockets.reuse_fd(udp_sockets.as_fd())?;
            skeleton.maps.tcp_table.reuse_fd(tcp_table.as_fd())?;
            skeleton.maps.udp_table.reuse_fd(udp_table.as_fd())?;
            let programs = &mut skeleton.progs;
            for program in [&mut programs.udp_flows, &mut programs.tcp_flows] {
                program.set_autoload(by_storage);
            }
            for program in [&mut programs.udp_files, &mut programs.tcp_files] {
                program.set_autoload(!by_storage);
            }
            kept::load(Some(kept), &SOURCE, given, skeleton)
        })?;
        let link =
            |name: &str, map: Option<&MapHandle>| program::iterate(loaded.program(name)?.as_fd(), map.map(AsFd::as_fd));
        let (udp, tcp) = match by_storage {
            true => (link("udp_flows", Some(udp_sockets))?, link("tcp_flows", Some(tcp_sockets))?),
            false => (link("udp_files", None)?, link("tcp_files", None)?),
        };
        let (run, records) = (loaded.map("table_run")?, Records::map(&loaded.map("flow_records")?)?);
        Ok(Self {
            udp: Arc::new(Programs { stored: udp, table: loaded.program("udp_table_flows")? }),
            tcp: Arc::new(Programs { stored: tcp, table: loaded.program("tcp_table_flows")? }),
            tables: Arc::new(Mutex::new(Tables { run, records })),
        })
    }

    /// Passes each flow of the UDP sockets to `see`, all flows of one socket consecutively. A socket that reached its
    /// backend through several services has one flow for each. A flow may be wrong if the socket is being connected at
    /// the same time, but not in two reads. A socket may be missing if another one is closed at the same time, and may come
    /// twice if several processes have it.
    pub fn udp(&self, report: &mut dyn FnMut(Flow)) -> io::Result<()> {
        self.read(&self.udp, report)
    }

    /// Passes the TCP sockets that are connected or connecting to `see`.
    pub fn tcp(&self, report: &mut dyn FnMut(Flow)) -> io::Result<()> {
        self.read(&self.tcp, report)
    }

    fn read(&self, programs: &Programs, report: &mut dyn FnMut(Flow)) -> io::Result<()> {
        let mut parse = |record: &[u8; FLOW_RECORD_SIZE]| {
            if let Some(flow) = layout::parse_flow_record(record) {
                report(flow);
            }
        };
        read_records(&programs.stored, &mut parse)?;
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).read(&programs.table, &mut parse)
    }
}

impl Tables {
    /// Passes the records of a table to `report`.
    fn read(&mut self, program: &OwnedFd, report: &mut dyn FnMut(&[u8; FLOW_RECORD_SIZE])) -> io::Result<()> {
        sys::update(&self.run, &[0; 4], &[0; 8])?;
        while self.records.run(program.as_fd(), report)? > 0 {}
        Ok(())
    }
}

/// Reads all records of an iterator. The kernel returns only whole records, as many as fit.
pub(crate) fn read_records<const SIZE: usize>(link: &OwnedFd, report: &mut dyn FnMut(&[u8; SIZE])) -> io::Result<()> {
    let mut file = sys::iter_create(link.as_fd())?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = match file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => continue,
            Err(error) => return Err(error),
        };
        let (records, rest) = chunk[..length].as_chunks::<SIZE>();
        if !rest.is_empty() {
            return Err(io::Error::other(format!("{length} bytes of records of {SIZE} each")));
        }
        records.iter().for_each(&mut *report);
    }
}
