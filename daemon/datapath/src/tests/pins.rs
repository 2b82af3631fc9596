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

/// A purge of the Debian package left the pin of a new map behind, later the programs that starts keep, and later a mark.
#[test]
fn the_purge_of_the_package_removes_all_that_outlives_generations() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/deb/postrm");
    let script = fs::read_to_string(script).unwrap();
    let words: Vec<&str> = script.split(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).collect();
    let of_packets: Vec<String> = crate::packets::maps::pin_names().collect();
    let lasting = crate::load::PERSISTENT.into_iter().chain(of_packets.iter().map(String::as_str));
    for pin in lasting.chain([crate::kept::DIRECTORY]).chain(crate::device_hooks::MARKS) {
        let name = pin.strip_suffix(UNFINISHED).unwrap_or(pin);
        assert!(words.contains(&name), "{name}");
    }
}

/// Pins on an ordinary file system.
fn version(name: &str) -> Pins {
    let directory = std::env::temp_dir().join(format!("nodelb-pins-{}-{name}", std::process::id()));
    drop(fs::remove_dir_all(&directory));
    fs::create_dir(&directory).unwrap();
    let pins = Pins::new(&directory, 1, &CrashPoint::default());
    pins.make().unwrap();
    pins
}

fn fill(directory: &Path) {
    fs::create_dir(directory).unwrap();
    NAMES.iter().for_each(|name| fs::write(directory.join(name), "").unwrap());
}

#[test]
fn what_cannot_be_a_generation_is_none_and_is_removed() {
    let pins = version("strays");
    fill(&pins.generation(3));
    fs::create_dir_all(pins.generation(7)).unwrap();
    fs::write(pins.generation(9), "").unwrap();
    fs::create_dir_all(pins.generation(10).join("slots")).unwrap();
    fill(&pins.generation(12));
    fs::remove_file(pins.generation(12).join("slots")).unwrap();
    fs::create_dir_all(pins.unfinished(4).join("sub/sub")).unwrap();
    fs::create_dir_all(pins.generation(u32::MAX)).unwrap();
    assert_eq!(pins.current_generation().unwrap(), Some(3));
    assert_eq!(list(pins.root()).unwrap(), ["g3", "links"]);
    fs::remove_file(pins.generation(3).join("slots")).unwrap();
    assert_eq!(pins.current_generation().unwrap(), None, "a part of a generation is none");
    assert_eq!(list(pins.root()).unwrap(), ["links"]);
    fs::remove_dir_all(pins.root().parent().unwrap()).unwrap();
}

/// The number of the next one was 0, which no start took for a generation.
#[test]
fn the_generation_with_the_highest_number_is_renumbered() {
    let pins = version("highest");
    fill(&pins.generation(u32::MAX));
    fill(&pins.generation(1));
    assert_eq!(pins.current_generation().unwrap(), Some(1));
    assert_eq!(list(pins.root()).unwrap(), ["g1", "links"]);
    fs::remove_dir_all(pins.root().parent().unwrap()).unwrap();
}
