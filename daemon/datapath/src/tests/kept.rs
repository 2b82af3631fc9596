use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::{hash, is_private, without_dots};

#[test]
fn a_directory_is_private_if_only_its_owner_can_change_it() {
    let directory = std::env::temp_dir().join(format!("nodelb-kept-{}", std::process::id()));
    let link = directory.with_extension("link");
    fs::create_dir(&directory).unwrap();
    symlink(&directory, &link).unwrap();
    for (mode, private) in [(0o700, true), (0o755, true), (0o770, false), (0o702, false), (0o1777, false)] {
        fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        assert_eq!(is_private(&directory).unwrap(), private, "{mode:o}");
    }
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
    assert!(!is_private(&link).unwrap(), "the owner of the link can change it");
    fs::remove_file(&link).unwrap();
    fs::remove_dir(&directory).unwrap();
    assert!(is_private(&directory).is_err());
}

#[test]
fn the_maps_of_libbpf_have_names_for_pins() {
    assert_eq!(without_dots("packet_b.rodata"), "packet_b_rodata");
}

#[test]
fn a_hash_is_the_same_in_every_process() {
    assert_eq!(hash(&("packet", 7_u32)), hash(&("packet", 7_u32)));
    assert_ne!(hash(&("packet", 7_u32)), hash(&("packet", 8_u32)));
}
