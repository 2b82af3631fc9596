//! Which program runs first at a tcx hook, as `bpf/chain.bpf.c` reports it: another one in front of nodelb's decides which
//! packets nodelb sees.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::OpenObject;
use libbpf_rs::skel::SkelBuilder;

use crate::flows::read_records;
use crate::hook_point::Direction;
use crate::kept::{self, KeptPrograms, Source};
use crate::load::explained;
use crate::skeleton::chain::{ChainSkelBuilder, DATA};
use crate::sys::program;

const SOURCE: Source = Source { name: "chain", bytes: &DATA, lasting: &[] };

/// Lengths of a record, and of a program in it: its id and its name.
const RECORD: usize = 48;
const PROGRAM: usize = 20;

/// The first programs at the device of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirstPrograms {
    pub(crate) link: u32,
    pub(crate) ifindex: u32,
    first: [(u32, String); 2],
}

impl FirstPrograms {
    /// The id and the name of the first program in this direction.
    pub(crate) fn first(&self, direction: Direction) -> &(u32, String) {
        let [arriving, leaving] = &self.first;
        match direction {
            Direction::In => arriving,
            Direction::Out => leaving,
        }
    }
}

/// Reads the first programs. Works without capabilities.
#[derive(Debug)]
pub(crate) struct ChainReader(OwnedFd);

impl ChainReader {
    /// Loads the iterator. Takes CAP_BPF and CAP_PERFMON, and a kernel with BTF of its own and tcx.
    pub(crate) fn load(kept: &KeptPrograms) -> io::Result<Self> {
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let loaded = explained(|| {
            let opened = ChainSkelBuilder::default().open(&mut object)?;
            kept::load(Some(kept), &SOURCE, |_| None, opened)
        })?;
        program::iterate(loaded.program("first_programs")?.as_fd(), None).map(Self)
    }

    /// The first programs at the devices with tcx links, once for each link.
    pub(crate) fn read(&self) -> io::Result<Vec<FirstPrograms>> {
        let mut found = Vec::new();
        read_records::<RECORD>(&self.0, &mut |record| found.extend(parse(record)))?;
        Ok(found)
    }
}

fn parse(record: &[u8; RECORD]) -> Option<FirstPrograms> {
    let number = |at: usize| Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?));
    let program = |at: usize| Some(parse_program(record.get(at..)?.first_chunk()?));
    Some(FirstPrograms { link: number(0)?, ifindex: number(4)?, first: [program(8)?, program(8 + PROGRAM)?] })
}

/// The id and the name of a program in a record.
pub(crate) fn parse_program(bytes: &[u8; PROGRAM]) -> (u32, String) {
    let [a, b, c, d, name @ ..] = bytes;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    (u32::from_ne_bytes([*a, *b, *c, *d]), String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
#[path = "tests/chain.rs"]
mod tests;
