use super::*;

/// A full disk leaves a file of 0 bytes, and the removal of a package may remove the file.
#[test]
fn a_reload_without_a_configuration_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("nodelb.toml");
    let active = Config::parse("[files]\ndirectory = \"/root/lb\"").unwrap();
    for text in ["", " \n"] {
        std::fs::write(&path, text).unwrap();
        let refused = load(Some(&path), &active).unwrap_err();
        assert!(refused.starts_with(&format!("{} is empty, which would reset", path.display())), "{refused}");
        assert_eq!(load(Some(&path), &Config::default()), Ok(Config::default()), "nothing changes");
    }
    std::fs::write(&path, "# the defaults\n").unwrap();
    assert_eq!(load(Some(&path), &active), Ok(Config::default()));
}
