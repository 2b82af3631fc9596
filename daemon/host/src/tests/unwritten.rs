use super::*;

#[test]
fn a_file_is_listed_from_its_first_failure_until_it_is_written() {
    let (directory, error) = (Path::new("/nodelb-test-unwritten"), io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
    let path = directory.join("history");
    assert_eq!(UNWRITTEN.below(directory), []);
    warn(&path, &error, "it is lost");
    let first = UNWRITTEN.below(directory);
    warn(&path, &error, "it is lost");
    assert_eq!(UNWRITTEN.below(directory), first, "since the first failure");
    assert_eq!(
        first[0].text,
        "/nodelb-test-unwritten/history cannot be written: read-only filesystem or storage medium; it is lost"
    );
    assert_eq!(UNWRITTEN.below(Path::new("/nodelb-test")), [], "another directory");
    note(&path, &Ok(()), "it is lost", &mut true);
    assert_eq!(UNWRITTEN.below(directory), []);
}

#[test]
fn a_file_is_unread_until_it_has_been_read() {
    let (directory, error) = (Path::new("/nodelb-test-unread"), io::Error::from(io::ErrorKind::TimedOut));
    let path = directory.join("drains.json");
    unread(&path, &error, "no drain is known");
    unread(&path, &error, "no drain is known");
    let text = "/nodelb-test-unread/drains.json cannot be read: timed out; no drain is known";
    assert_eq!(UNREAD.below(directory).iter().map(|it| &*it.text).collect::<Vec<_>>(), [text]);
    assert_eq!(UNWRITTEN.below(directory), []);
    read(&path);
    assert_eq!(UNREAD.below(directory), []);
}
