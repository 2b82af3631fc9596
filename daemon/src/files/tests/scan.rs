use std::os::unix::fs::symlink;

use super::*;

fn service(name: &str) -> String {
    format!("[[service]]\nname = \"a/{name}\"\nfrontends = [\"198.51.100.1:80\"]\n")
}

struct Scratch {
    directory: tempfile::TempDir,
    files: Files,
}

impl Scratch {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), files: Files::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Scans once; returns the names of the files with changed problems.
    fn look(&mut self, hints: &Hints) -> Vec<String> {
        let listing = read(self.directory.path(), &self.files.seen(), hints).unwrap();
        let accepted = self.files.accept(listing, &BTreeSet::new(), SystemTime::UNIX_EPOCH);
        accepted.altered.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
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
    std::fs::remove_file(scratch.path("a.toml")).unwrap();
    scratch.look(&Hints::default());
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
    let writing = Hints { writing: BTreeSet::from(["a.toml".into()]), ..Hints::default() };
    scratch.write("a.toml", &service("one"));
    scratch.look(&writing);
    assert_eq!(scratch.services(), [""; 0]);
    assert!(scratch.files.incomplete().is_some());
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/one"]);

    // The write begins after the scan: the content is ignored, and read again later even if the file looks unchanged.
    scratch.write("a.toml", "");
    let listing = read(scratch.directory.path(), &scratch.files.seen(), &Hints::default()).unwrap();
    scratch.files.accept(listing, &writing.writing, SystemTime::UNIX_EPOCH);
    assert_eq!(scratch.services(), ["a/one"]);
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), [""; 0]);
}

#[test]
fn an_empty_directory_in_the_place_of_another_is_not_believed() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("a"));
    scratch.look(&Hints::default());
    let aside = scratch.directory.path().with_extension("aside");
    std::fs::rename(scratch.directory.path(), &aside).unwrap();
    let missing = read(scratch.directory.path(), &scratch.files.seen(), &Hints::default()).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    std::fs::create_dir(scratch.directory.path()).unwrap();
    let error = read(scratch.directory.path(), &scratch.files.seen(), &Hints::default()).unwrap_err();
    assert!(error.to_string().contains("another, empty directory is in its place"), "{error}");
    scratch.write("b.toml", &service("b"));
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), ["a/b"]);
    std::fs::remove_dir_all(scratch.directory.path()).unwrap();
    std::fs::create_dir(scratch.directory.path()).unwrap();
    scratch.look(&Hints { believe_empty: true, ..Hints::default() });
    assert_eq!(scratch.services(), [""; 0]);
    std::fs::remove_dir_all(aside).unwrap();
}

#[test]
fn a_directory_that_is_emptied_is_believed() {
    let mut scratch = Scratch::new();
    scratch.write("a.toml", &service("a"));
    scratch.look(&Hints::default());
    std::fs::remove_file(scratch.path("a.toml")).unwrap();
    scratch.look(&Hints::default());
    assert_eq!(scratch.services(), [""; 0]);
}

#[test]
fn names_that_may_be_slips_are_noticed() {
    let mut scratch = Scratch::new();
    for name in ["README", "web.conf", ".hidden", "a.toml~", "#a.toml#", "a.tmp", "a.toml.swp"] {
        scratch.write(name, "");
    }
    scratch.look(&Hints::default());
    assert_eq!(scratch.files.ignored, ["README", "web.conf"]);
}
