//! Which programs of other software run at the hooks of connect and sendmsg, and whether before nodelb's, as
//! `bpf/order.bpf.c` reports it. The first program that translates an address decides: the next one sees a backend.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use libbpf_rs::OpenObject;
use libbpf_rs::skel::SkelBuilder;

use crate::attach::Links;
use crate::chain::parse_program;
use crate::flows::read_records;
use crate::kept::{self, KeptPrograms, Source};
use crate::load::explained;
use crate::skeleton::order::{DATA, OrderSkelBuilder};
use crate::sys::program;

const SOURCE: Source = Source { name: "order", bytes: &DATA, lasting: &[] };

/// Length of a record.
const RECORD: usize = 324;

/// A program of other software at a hook of nodelb.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketProgram {
    /// Whether it runs before nodelb's program.
    pub is_first: bool,
    pub hook: &'static str,
    /// Id of the program, as `bpftool prog` shows it.
    pub id: u32,
    /// Name of the program, at most 15 bytes; empty if it has none.
    pub name: String,
    /// The pin directory of the other nodelb that has attached it.
    pub of_nodelb: Option<PathBuf>,
}

impl fmt::Display for SocketProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hook, id, name, of_nodelb, .. } = self;
        match name.as_str() {
            "" => write!(f, "program {id} at {hook}"),
            _ => write!(f, "{name} ({id}) at {hook}"),
        }?;
        of_nodelb.as_ref().map_or(Ok(()), |pinned| write!(f, " of the nodelb in {}", pinned.display()))
    }
}

/// Lists the programs of other software. Cheap to clone; works from any thread and without capabilities.
#[derive(Clone, Debug)]
pub struct ProgramOrder {
    iterator: Arc<OwnedFd>,
    links: Links,
}

impl ProgramOrder {
    /// Loads the iterator. Takes CAP_BPF and CAP_PERFMON, and a kernel with BTF of its own.
    pub(crate) fn load(links: Links, kept: &KeptPrograms) -> io::Result<Self> {
        let mut object = MaybeUninit::<OpenObject>::uninit();
        let loaded = explained(|| {
            let opened = OrderSkelBuilder::default().open(&mut object)?;
            kept::load(Some(kept), &SOURCE, |_| None, opened)
        })?;
        let iterator = program::iterate(loaded.program("ordered_programs")?.as_fd(), None)?;
        Ok(Self { iterator: Arc::new(iterator), links })
    }

    /// The programs of other software at the hooks that translate destinations: those of nodelb's cgroup and of the
    /// cgroups above, in the order of hooks and of their execution.
    pub fn others(&self) -> io::Result<Vec<SocketProgram>> {
        let own = self.links.translating();
        let mut found = Vec::new();
        read_records::<RECORD>(&self.iterator, &mut |record| {
            let (link, programs) = parse(record);
            if let Some((_, hook, program)) = own.iter().find(|(id, ..)| *id == link) {
                found.extend(others(hook, *program, programs));
            }
        })?;
        found.sort_by_key(|program: &SocketProgram| program.hook);
        if found.iter().any(|program| program.name == program.hook) {
            found = with_pin_directories(found, &self.links.foreign_programs());
        }
        Ok(found)
    }
}

/// The self-test reports the programs of another nodelb that run first, with the command that removes them.
fn with_pin_directories(found: Vec<SocketProgram>, foreign: &BTreeMap<u32, PathBuf>) -> Vec<SocketProgram> {
    let known = found.into_iter().map(|it| SocketProgram { of_nodelb: foreign.get(&it.id).cloned(), ..it });
    known.filter(|it| !it.is_first || it.of_nodelb.is_none()).collect()
}

/// The programs of a hook in the order of their execution, without that of nodelb, which has this id.
fn others(hook: &'static str, own: u32, programs: Vec<(u32, String)>) -> Vec<SocketProgram> {
    let position = programs.iter().position(|(id, _)| *id == own).unwrap_or(programs.len());
    let numbered = programs.into_iter().enumerate().filter(|(_, (id, _))| *id != own);
    numbered
        .map(|(at, (id, name))| SocketProgram { is_first: at < position, hook, id, name, of_nodelb: None })
        .collect()
}

/// The id of the link, and the ids and names of the programs of its hook.
fn parse(record: &[u8; RECORD]) -> (u32, Vec<(u32, String)>) {
    let (link, programs) = record.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let programs = programs.as_chunks().0.iter().map(parse_program);
    (u32::from_ne_bytes(*link), programs.filter(|(id, _)| *id != 0).collect())
}

#[cfg(test)]
#[path = "tests/order.rs"]
mod tests;
