use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::symlink;

use nodelb_datapath::is_open_for_writing;

use super::super::parse::Format;
use super::super::scan::{Hints, read};
use super::super::system::System;
use super::*;

fn service(name: &str) -> String {
    format!("[[service]]\nname = \"a/{name}\"\nfrontends = [\"198.51.100.1:80\"]\n")
}

struct Scratch {
    directory: tempfile::TempDir,
    files: Files,
    /// How long the test has waited, as the listings say.
    waited: Duration,
}

impl Scratch {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), files: Files::default(), waited: Duration::ZERO }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    fn listing(&mut self, hints: &Hints) -> Listing {
        let mut listing = read(&System(is_open_for_writing), self.directory.path(), &self.files.seen(), hints).unwrap();
        self.waited += Duration::from_millis(1);
        (listing.begun, listing.ended) = (listing.begun + self.waited, listing.ended + self.waited);
        listing
    }

    fn accept(&mut self, listing: Listing) -> Vec<String> {
        let accepted = self.files.accept(listing, false, SystemTime::UNIX_EPOCH).unwrap();
        accepted.altered.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    /// Scans once; returns the names of the files with changed problems.
    fn look(&mut self, hints: &Hints) -> Vec<String> {
        let listing = self.listing(hints);
        self.accept(listing)
    }

    /// Scans until it is known which files are gone.
    fn settle(&mut self) {
        self.look(&Hints::default());
        self.wait(CONFIRM);
        self.look(&Hints::default());
    }

    fn wait(&mut self, time: Duration) {
        self.waited += time;
    }

    /// The state and first problem of a file.
    fn state(&self, name: &str) -> (SourceState, String) {
        let file = self.files.get(&self.path(name)).unwrap();
        (file.state(), file.problems.first().map_or(String::new(), ToString::to_string))
    }

    fn services(&self) -> Vec<String> {
        let contents = self.files.contents();
        contents.values().flat_map(|content| &content.services).map(|found| found.value.name.to_string()).collect()
    }
}

#[test]
fn what_is_no_readable_file_is_a_problem_of_its_own() {
    let mut scratch = Scratch::new();
    scratch.write("good.toml", &service("good"));
    scratch.write("bad.toml", "x");
    scratch.write("utf.yaml", "a");
    std::fs::write(scratch.path("utf.yaml"), b"\xff").unwrap();
    std::fs::create_dir(scratch.path("dir.yaml")).unwrap();
    nix::unistd::mkfifo(&scratch.path("fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("/nowhere/at/all", scratch.path("dangling.yml")).unwrap();
    symlink("loop.toml", scratch.path("loop.toml")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("socket.toml")).unwrap();
    for (name, format) in [("huge.toml", Format::Entries), ("huge.yaml", Format::Manifests)] {
        File::create(scratch.path(name)).unwrap().set_len(format.max_bytes() + 1).unwrap();
    }

    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/good"]);
    assert_eq!(scratch.state("good.toml"), (SourceState::Ok, String::new()));
    for (name, problem) in [
        ("bad.toml", "line 1: not valid TOML"),
        ("utf.yaml", "line 1: not UTF-8"),
        ("dir.yaml", "a directory, not a file"),
        ("fifo.json", "a FIFO, not a file"),
        ("dangling.yml", "a symbolic link to nothing"),
        ("loop.toml", "cannot be read: "),
        ("socket.toml", "not a regular file"),
        ("huge.toml", "8388609 bytes, which is more than the 8388608 that are read of such a file; split it"),
        ("huge.yaml", "67108865 bytes, which is more than the 67108864 that are read of such a file; split it"),
    ] {
        let (state, found) = scratch.state(name);
        assert_eq!(state, SourceState::Error, "{name}");
        assert!(found.starts_with(problem), "{name}: {found}");
    }
    assert!(scratch.files.incomplete().unwrap().starts_with("9 files cannot be used, among them "));
    assert_eq!(scratch.look(&Hints::default()), [""; 0]);
}

#[test]
fn a_bad_file_keeps_its_last_good_content_until_it_is_gone() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("one"));
    assert_eq!(scratch.look(&Hints::default()), [""; 0]);
    scratch.write("a.toml", "broken = ");
    assert_eq!(scratch.look(&Hints::default()), ["a.toml"]);
    assert_eq!(scratch.state("a.toml").0, SourceState::LastGood);
    assert_eq!(scratch.services(), ["a/one"]);
    assert_eq!(scratch.files.incomplete(), None);
    assert_eq!(scratch.look(&Hints::default()), [""; 0], "reported once");
    scratch.write("a.toml", &service("two"));
    assert_eq!(scratch.look(&Hints::default()), ["a.toml"]);
    assert_eq!(scratch.services(), ["a/two"]);
    scratch.remove("a.toml");
    scratch.settle();
    assert_eq!(scratch.services(), [""; 0]);
}

#[test]
fn only_files_that_differ_are_read_again() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("a"));
    scratch.look(&Hints::default());
    let first = Arc::as_ptr(scratch.files.get(&scratch.path("a.toml")).unwrap().content().unwrap());
    let content =
        |scratch: &Scratch| Arc::as_ptr(scratch.files.get(&scratch.path("a.toml")).unwrap().content().unwrap());
    scratch.look(&Hints::default());
    assert_eq!(content(&scratch), first);
    scratch.look(&Hints { touched: BTreeSet::from(["a.toml".into()]), ..Hints::default() });
    let second = content(&scratch);
    assert_ne!(second, first);
    scratch.look(&Hints { everything: true, ..Hints::default() });
    assert_ne!(content(&scratch), second);
}

#[test]
fn a_file_being_written_to_is_left_alone() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("one"));
    scratch.look(&Hints::default());
    let writer = File::create(scratch.path("a.toml")).unwrap();
    let new = File::create(scratch.path("b.toml")).unwrap();
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/one"]);
    assert_eq!(
        scratch.files.incomplete().unwrap(),
        format!("{} may be being written to", scratch.path("b.toml").display()).into()
    );
    assert!(scratch.files.must_list(), "the directory has just changed");
    scratch.wait(CONFIRM);
    scratch.look(&Hints::default());
    assert!(!scratch.files.must_list());
    assert_eq!(scratch.files.unsettled().collect::<Vec<_>>(), ["a.toml", "b.toml"]);
    drop((writer, new));
    scratch.write("a.toml", &service("two"));
    scratch.remove("b.toml");
    scratch.settle();
    assert_eq!(scratch.services(), ["a/two"]);
    assert!(!scratch.files.must_list());
    assert_eq!(scratch.files.unsettled().next(), None);
}

/// Where the kernel does not tell who writes, half a file looks like a whole one.
#[test]
fn where_writers_are_unknown_a_version_counts_when_it_is_found_twice() {
    let mut scratch = Scratch::new();
    let look = |scratch: &mut Scratch| {
        let mut listing = scratch.listing(&Hints::default());
        for finding in listing.files.values_mut() {
            if let Finding::Read { is_final, .. } = finding {
                *is_final = false;
            }
        }
        scratch.accept(listing);
        scratch.services().join(" ")
    };
    scratch.write("a.toml", &service("one"));
    assert_eq!(look(&mut scratch), "");
    assert_eq!(look(&mut scratch), "", "too soon");
    scratch.wait(POLL);
    assert_eq!(look(&mut scratch), "a/one");
    assert_eq!(look(&mut scratch), "a/one");
    scratch.write("a.toml", &service("two"));
    assert_eq!(look(&mut scratch), "a/one");
    scratch.write("a.toml", &service("three"));
    scratch.wait(POLL);
    assert_eq!(look(&mut scratch), "a/one", "it has changed in between");
    scratch.wait(POLL);
    assert_eq!(look(&mut scratch), "a/three");
}

#[test]
fn an_empty_directory_in_the_place_of_another_is_not_believed() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("a"));
    scratch.look(&Hints::default());
    let aside = scratch.directory.path().with_extension("aside");
    std::fs::rename(scratch.directory.path(), &aside).unwrap();
    std::fs::create_dir(scratch.directory.path()).unwrap();
    let listing = scratch.listing(&Hints::default());
    let error = scratch.files.accept(listing, false, SystemTime::UNIX_EPOCH).unwrap_err().to_string();
    assert!(error.starts_with("another, empty directory is in its place; mount the right one"), "{error}");
    // Who puts a file into it means it.
    scratch.write("b.toml", "# nothing\n");
    scratch.settle();
    assert_eq!(scratch.services(), [""; 0]);
    std::fs::remove_dir_all(aside).unwrap();
}

#[test]
fn a_directory_that_the_operator_has_chosen_may_be_empty() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("a"));
    scratch.look(&Hints::default());
    scratch.directory = tempfile::tempdir().unwrap();
    let listing = scratch.listing(&Hints::default());
    scratch.files.accept(listing, true, SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(scratch.services(), ["a/a"]);
    scratch.wait(CONFIRM);
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), [""; 0]);
}

/// An empty configuration file resets `files.directory`.
#[test]
fn an_empty_directory_does_not_replace_the_one_of_the_previous_run() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("a"));
    scratch.look(&Hints::default());
    let (last, before) = (scratch.files.last_valid(scratch.directory.path()), scratch.directory.path().to_path_buf());
    scratch.directory = tempfile::tempdir().unwrap();
    scratch.files = Files::recalled(&last, SystemTime::UNIX_EPOCH);
    let listing = scratch.listing(&Hints::default());
    let error = scratch.files.accept(listing, false, SystemTime::UNIX_EPOCH).unwrap_err().to_string();
    let expected = format!("it is empty, and the services were in {}; correct files.directory", before.display());
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(scratch.services(), ["a/a"]);
}

#[test]
fn a_directory_that_is_emptied_is_believed() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("a"));
    scratch.look(&Hints::default());
    scratch.remove("a.toml");
    scratch.settle();
    assert_eq!(scratch.services(), [""; 0]);
}

/// `git checkout` removes a file and creates it again; a rename may hide a file from a scan.
#[test]
fn a_file_that_a_scan_does_not_find_is_not_gone() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("one"));
    scratch.write("b.toml", &service("two"));
    scratch.look(&Hints::default());
    scratch.remove("a.toml");
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/one", "a/two"]);
    assert!(scratch.files.must_list());
    // It was there in between.
    scratch.wait(CONFIRM);
    scratch.write("a.toml", &service("one"));
    std::thread::sleep(Duration::from_millis(20));
    scratch.remove("a.toml");
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/one", "a/two"]);
    scratch.wait(CONFIRM);
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/two"]);
    assert!(!scratch.files.must_list());
}

#[test]
fn in_a_directory_that_never_rests_a_file_is_gone_after_a_while() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("one"));
    scratch.look(&Hints::default());
    scratch.remove("a.toml");
    let mut seconds = 0;
    while scratch.services() == ["a/one"] {
        scratch.write(&format!("other{seconds}"), "");
        scratch.look(&Hints::default());
        scratch.wait(Duration::from_secs(1));
        seconds += 1;
    }
    assert_eq!(seconds, 11);
}

#[test]
fn a_renamed_file_has_its_services_once_and_its_new_version() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("one"));
    scratch.look(&Hints::default());
    scratch.remove("a.toml");
    scratch.write("b.toml", &(service("one") + &service("two")));
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/one", "a/two"]);
}

/// A reviewer renamed a file that had just become invalid: its services were removed, although a restart keeps them.
#[test]
fn the_services_of_a_file_that_is_gone_stay_while_another_file_has_never_been_valid() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("one"));
    scratch.write("b.toml", &service("two"));
    scratch.look(&Hints::default());
    scratch.write("b.toml", "bad");
    scratch.look(&Hints::default());
    std::fs::rename(scratch.path("b.toml"), scratch.path("20-b.toml")).unwrap();
    std::fs::rename(scratch.path("a.toml"), scratch.path("10-a.toml")).unwrap();
    scratch.settle();
    assert_eq!(scratch.services(), ["a/one", "a/two"]);
    let (state, problem) = scratch.state("b.toml");
    assert_eq!(state, SourceState::LastGood);
    assert!(problem.starts_with("gone; its services stay, because they may be in "), "{problem}");
    assert!(scratch.files.get(&scratch.path("a.toml")).is_none(), "another file has all of it");
    // Until some file says otherwise.
    scratch.write("20-b.toml", &service("three"));
    scratch.settle();
    assert_eq!(scratch.services(), ["a/one", "a/three"]);
    assert!(scratch.files.get(&scratch.path("b.toml")).is_none());
}

/// A full disk and a writer that was killed leave 0 bytes, or the beginning.
#[test]
fn what_an_unfinished_write_leaves_is_not_served() {
    let mut scratch = Scratch::new();
    let [one, two] = ["one", "two"].map(service);
    let whole = one.clone() + &two;
    let mut expect = |text: &str, services: &[&str], problem: &str| {
        scratch.write("a.toml", text);
        scratch.look(&Hints { touched: [OsStr::new("a.toml").into()].into(), ..Hints::default() });
        assert_eq!(scratch.services(), services, "{text:?}");
        let found = scratch.state("a.toml").1;
        assert!(found.starts_with(problem) && found.is_empty() == problem.is_empty(), "{text:?}: {found}");
    };
    expect(&whole, &["a/one", "a/two"], "");
    expect("", &["a/one", "a/two"], "0 bytes; delete the file to remove its services");
    expect(" \n\n", &["a/one", "a/two"], "only white space; delete the file");
    expect(&one, &["a/one", "a/two"], "is only the beginning of the version before");
    expect(&(one.clone() + "# x"), &["a/one", "a/two"], "ends in the middle of a line and takes something away");
    // An editor that saves twice means it.
    expect(&one, &["a/one", "a/two"], "is only the beginning");
    expect(&one, &["a/one"], "");
    expect(&(one.clone() + "# x\n"), &["a/one"], "");
    expect("# x\n", &[], "");
}
