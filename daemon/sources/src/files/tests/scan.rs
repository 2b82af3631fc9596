use nodelb_datapath::is_open_for_writing;

use super::super::system::System;
use super::*;

#[test]
fn names_that_may_be_slips_are_noticed() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["README", "web.conf", ".hidden", "a.toml~", "#a.toml#", "a.tmp", "a.toml.swp"] {
        std::fs::write(scratch.path().join(name), "").unwrap();
    }
    let listing = read(&System(is_open_for_writing), scratch.path(), &Seen::default(), &Hints::default()).unwrap();
    assert!(listing.ignored.iter().eq(["README", "web.conf"]), "{:?}", listing.ignored);
}

/// A release is exchanged atomically while it is read.
#[test]
fn names_are_looked_up_in_the_directory_that_was_opened() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("services.d");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("a.toml"), "# one\n").unwrap();
    let system = System(is_open_for_writing);
    let mut opened = system.open_directory(&directory).unwrap();
    std::fs::rename(&directory, scratch.path().join("aside")).unwrap();
    std::fs::create_dir(&directory).unwrap();
    let names: Vec<_> = std::iter::from_fn(|| system.next_name(&mut opened).unwrap()).collect();
    assert!(names.contains(&"a.toml".into()), "{names:?}");
    let file = system.open(&opened, "a.toml".as_ref()).unwrap();
    assert_eq!(system.read(&file, 100).unwrap(), b"# one\n");
}
