//! The BPF links that the kernel has.

use std::path::Path;

use libbpf_rs::Link;
use libbpf_rs::query::LinkInfo;

/// A pinned link and the program that it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) hook: String,
    /// The link id. A link that was detached and attached again has a new one.
    pub(crate) link: u32,
    /// The program id.
    pub(crate) program: u32,
}

/// The links pinned in a directory.
pub(crate) fn attached(directory: &Path) -> Vec<Attached> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    // A directory is a mark.
    let links = entries.map(|entry| entry.unwrap()).filter(|entry| !entry.file_type().unwrap().is_dir());
    let mut names: Vec<_> = links.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    let info = |name: &String| {
        let link = Link::open(directory.join(name)).unwrap();
        LinkInfo::from_fd(std::os::fd::AsFd::as_fd(&link)).unwrap()
    };
    names
        .iter()
        .map(|hook| (hook, info(hook)))
        .map(|(hook, info)| Attached { hook: hook.clone(), link: info.id, program: info.prog_id })
        .collect()
}

/// Panics unless every link is unchanged and runs another program.
pub(crate) fn assert_replaced_in_place(before: &[Attached], after: &[Attached]) {
    let links = |all: &[Attached]| all.iter().map(|each| (each.hook.clone(), each.link)).collect::<Vec<_>>();
    assert_eq!(links(before), links(after), "the links have not changed");
    for (before, after) in before.iter().zip(after) {
        assert_ne!(before.program, after.program, "{} still runs the old program", before.hook);
    }
}
