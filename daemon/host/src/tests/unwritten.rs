use super::*;

#[test]
fn a_file_is_listed_from_its_first_failure_until_it_is_written() {
    let (directory, error) = (Path::new("/nodelb-test-unwritten"), io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
    let path = directory.join("history");
    assert_eq!(below(directory), []);
    failed(&path, &error, "it is lost");
    let first = below(directory);
    failed(&path, &error, "it is lost");
    assert_eq!(below(directory), first, "since the first failure");
    assert_eq!(
        first[0].text,
        "/nodelb-test-unwritten/history cannot be written: read-only filesystem or storage medium; it is lost"
    );
    assert_eq!(below(Path::new("/nodelb-test")), [], "another directory");
    note(&path, &Ok(()), "it is lost", &mut true);
    assert_eq!(below(directory), []);
}
