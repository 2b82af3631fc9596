//! What a start has loaded: the programs that this process holds, and the constants that they were loaded with.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{DataSec, Var};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

/// The section of an object with its constants.
pub(super) const CONSTANTS: &str = ".rodata";

#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Their names, which the kernel cuts after 15 bytes.
    pub(super) programs: BTreeSet<String>,
    /// Their values by the name of the object's section and their own.
    pub(super) constants: BTreeMap<(String, String), Vec<u8>>,
}

impl Loaded {
    /// What the open descriptors of this process refer to.
    pub(super) fn by_this_process() -> Self {
        let mut loaded = Self::default();
        let held = held();
        let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
        for program in ProgInfoIter::with_query_opts(with_maps).filter(|info| held.contains(&info.id)) {
            loaded.programs.insert(program.name.to_string_lossy().into_owned());
            let maps = program.map_ids.iter().map(|id| MapHandle::from_map_id(*id).unwrap());
            for map in maps.filter(|map| map.name().to_string_lossy().ends_with(CONSTANTS)) {
                let section = map.name().to_string_lossy().into_owned();
                let bytes = map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
                let named = constants(program.id, &bytes);
                loaded.constants.extend(named.map(|(name, value)| ((section.clone(), name), value)));
            }
        }
        loaded
    }
}

/// The ids of the programs behind descriptors of this process, also through links.
fn held() -> BTreeSet<u32> {
    let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap();
    // The descriptor of this directory is there, too, and gone when it is read.
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
    let id = |text: String| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
    texts.filter_map(id).collect()
}

/// The constants of a program's object by name, in the section's bytes.
fn constants(program: u32, bytes: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> {
    let types = Btf::from_prog_id(program).unwrap();
    let section: DataSec<'_> = types.type_by_name(CONSTANTS).unwrap();
    let named = section.iter().map(|at| {
        let variable: Var<'_> = types.type_by_id(at.ty).unwrap();
        let offset = usize::try_from(at.offset).unwrap();
        (variable.name().unwrap().to_string_lossy().into_owned(), bytes[offset..][..at.size].to_vec())
    });
    named.collect::<Vec<_>>().into_iter()
}
