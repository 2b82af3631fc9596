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

/// A purge of the Debian package left the pin of a new map behind.
#[test]
fn the_purge_of_the_package_removes_every_map_that_outlives_generations() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/deb/postrm");
    let script = fs::read_to_string(script).unwrap();
    let words: Vec<&str> = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let of_packets: Vec<String> = crate::packets::maps::pin_names().collect();
    for pin in crate::load::PERSISTENT.into_iter().chain(of_packets.iter().map(String::as_str)) {
        let name = pin.strip_suffix(UNFINISHED).unwrap_or(pin);
        assert!(words.contains(&name), "{name}");
    }
}
