//! The version of the workspace, where it is written once more.

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_first_heading_of_the_changelog_has_the_version() {
    let changelog = crate::read("CHANGELOG.md");
    let heading = changelog.lines().find_map(|line| line.strip_prefix("## [")).expect("a heading");
    assert_eq!(heading.split(']').next(), Some(VERSION), "and docs/development/releasing.md says what else to change");
}

/// The names of packages in commands that users copy.
#[test]
fn documents_name_packages_of_this_version() {
    let mut named = 0;
    for page in crate::pages::all().into_iter().chain(["packaging/README.md".to_owned()]) {
        let text = crate::read(&page);
        for rest in text.split("nodelb_").chain(text.split("nodelb-")).skip(1) {
            let version = rest.split('-').next().unwrap_or_default();
            if version.starts_with(|c: char| c.is_ascii_digit()) {
                assert_eq!(version, VERSION, "{page}: nodelb_{}", rest.lines().next().unwrap_or_default());
                named += 1;
            }
        }
    }
    assert!(named >= 6, "{named}");
}
