use std::fs;

use nodelb_datapath::is_open_for_writing;

use super::super::scan::{Hints, read};
use super::super::system::System;
use super::*;

/// What a host has read of its directory.
struct Host {
    directory: tempfile::TempDir,
    files: Files,
}

impl Host {
    fn new(files: &[(&str, &str)]) -> Self {
        let mut host = Self { directory: tempfile::tempdir().unwrap(), files: Files::default() };
        host.write(files);
        host
    }

    fn write(&mut self, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::write(self.directory.path().join(name), text).unwrap();
        }
        let hints = Hints::default();
        let listing = read(&System(is_open_for_writing), self.directory.path(), &self.files.seen(), &hints).unwrap();
        self.files.accept(listing, false, SystemTime::UNIX_EPOCH).unwrap();
    }

    /// The hashes in the rows of the directory and of each file.
    fn contents(&self) -> Vec<Option<u64>> {
        let mut reports = FileReports::default();
        let directory = DirectoryState {
            path: self.directory.path(),
            trouble: None,
            was_read: true,
            since: SystemTime::UNIX_EPOCH,
            looked: Moment(0),
        };
        let touched = self.files.iter().map(|(path, _)| path.to_path_buf()).collect();
        reports.update(&directory, (&self.files, &touched), &Merged::default());
        let first = reports.rows().map(|row| row.content).collect();
        reports.update(&directory, (&self.files, &BTreeSet::new()), &Merged::default());
        assert_eq!(reports.rows().map(|row| row.content).collect::<Vec<_>>(), first, "nothing was touched");
        first
    }
}

const A: &str = "[[service]]\nname = \"a/a\"\nfrontends = [\"198.51.100.1:80\"]\n";
const B: &str = "[[service]]\nname = \"a/b\"\nfrontends = [\"198.51.100.2:80\"]\n";

/// Nothing showed whether 40 hosts had the same files.
#[test]
fn the_same_files_have_the_same_hash_in_another_directory() {
    let one = Host::new(&[("a.toml", A), ("b.toml", B)]);
    assert_eq!(one.contents(), Host::new(&[("b.toml", B), ("a.toml", A)]).contents());
    let [directory, a, b] = one.contents()[..] else { panic!("{:?}", one.contents()) };
    assert!(a.is_some() && b.is_some() && a != b && directory != a, "{:?}", one.contents());
    let others: [&[(&str, &str)]; 5] = [
        &[],
        &[("a.toml", A)],
        &[("a.toml", A), ("c.toml", B)],
        &[("a.toml", B), ("b.toml", A)],
        &[("a.toml", A), ("b.toml", &B.replace(".2:80", ".3:80"))],
    ];
    let all: BTreeSet<_> = others.iter().map(|files| Host::new(files).contents()[0]).chain([directory]).collect();
    assert_eq!(all.len(), 6, "{all:?}");
    // Hosts may have different versions of nodelb.
    assert_eq!(directory, Some(14_031_973_525_993_613_588));
}

#[test]
fn a_file_that_is_not_served_counts_by_its_last_valid_version() {
    let mut host = Host::new(&[("a.toml", A)]);
    let before = host.contents();
    host.write(&[("a.toml", "[[service]\n"), ("never.toml", "[[service]\n")]);
    assert_eq!(host.contents(), [before[0], before[1], None]);
    host.write(&[("a.toml", B)]);
    assert_eq!(host.contents(), [Host::new(&[("a.toml", B)]).contents(), vec![None]].concat());
}
