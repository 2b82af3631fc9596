use super::*;

#[test]
fn only_whole_names_are_numbered() {
    assert_eq!(numbered("g7", "g"), Some(7));
    for name in ["g", "g07", "g+7", "g7-new", "G7", "7", "gg7", "g-1", "g99999999999"] {
        assert_eq!(numbered(name, "g"), None, "{name}");
    }
}

#[test]
fn an_absent_directory_is_empty() {
    assert_eq!(list(Path::new("/nonexistent/nodelb")).unwrap(), Vec::<String>::new());
}
