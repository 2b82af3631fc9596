use std::os::unix::fs::{chown, symlink};

use proptest::prelude::*;

use super::super::*;

#[test]
fn the_owners_bits_count_for_the_owner_and_no_others() {
    let cases = [
        ((0, 0, 0o600), 0o4, true),
        ((0, 0, 0o044), 0o4, false),
        ((1000, 0, 0o640), 0o4, true),
        ((1000, 0, 0o604), 0o4, false),
        ((1000, 1000, 0o600), 0o4, false),
        ((1000, 1000, 0o604), 0o4, true),
        ((1000, 1000, 0o755), 0o5, true),
        ((1000, 1000, 0o744), 0o5, false),
        ((0, 0, 0o600), 0o1, false),
    ];
    for ((owner, group, mode), bits, granted) in cases {
        assert_eq!(grants(owner, group, mode, bits), granted, "{owner} {group} {mode:o} {bits:o}");
    }
}

fn set(path: &Path, owner: u32, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // Only root can change the owner of a file; for other users the owner of their files is not root anyway.
    if geteuid().is_root() {
        chown(path, Some(owner), Some(owner)).unwrap();
    }
}

/// Returns the lines about the contents of a directory that is open to all users.
fn lines_about(directory: &Path, path: &Path, wanted: Use) -> Vec<String> {
    let lines = closed(&[("it", path.into(), wanted)]);
    // The directory of the test is open to its user only, which is root where that matters.
    lines.into_iter().filter(|line| line.contains(directory.to_str().unwrap())).collect()
}

#[test]
fn what_is_closed_on_the_way_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    set(scratch.path(), 0, 0o755);
    let (below, file, link) = (scratch.path().join("d"), scratch.path().join("d/kubeconfig"), scratch.path().join("l"));
    fs::create_dir(&below).unwrap();
    fs::write(&file, "x").unwrap();
    symlink(&file, &link).unwrap();
    set(&below, 1000, 0o755);
    set(&file, 1000, 0o644);
    assert_eq!(lines_about(scratch.path(), &link, Use::Read), [""; 0]);
    assert_eq!(lines_about(scratch.path(), &scratch.path().join("missing"), Use::Read), [""; 0]);
    set(&file, 1000, 0o600);
    let lines = lines_about(scratch.path(), &link, Use::Read);
    assert!(
        lines.len() == 1 && lines[0].contains("may not read") && lines[0].contains("d/kubeconfig (owner"),
        "{lines:?}"
    );
    assert!(lines[0].contains("mode 0600"), "{lines:?}");
    if geteuid().is_root() {
        assert!(lines[0].contains("run `chown root ") && !lines[0].contains("&&"), "{lines:?}");
        set(&file, 1000, 0o000);
        let both = format!("run `chown root {0} && chmod u+r {0}` (or", fs::canonicalize(&file).unwrap().display());
        assert!(lines_about(scratch.path(), &link, Use::Read)[0].contains(&both), "{both}");
        set(&file, 0, 0o000);
        let lines = lines_about(scratch.path(), &link, Use::Read);
        assert!(lines[0].contains("run `chmod u+r ") && !lines[0].contains("chown"), "{lines:?}");
    }
    set(&file, 1000, 0o644);
    set(&below, 1000, 0o700);
    let lines = lines_about(scratch.path(), &link, Use::Read);
    assert!(lines.len() == 1 && lines[0].contains("may not search") && lines[0].contains("mode 0700"), "{lines:?}");
    let lines = lines_about(scratch.path(), &below, Use::List);
    assert!(lines.len() == 1 && lines[0].contains("may not list"), "{lines:?}");
    set(&below, 1000, 0o755);
    let lines = lines_about(scratch.path(), &file, Use::Run);
    assert!(lines.len() == 1 && lines[0].contains("may not run"), "{lines:?}");
}

proptest! {
    /// Compares with the kernel: a process of user 0 without capabilities can open exactly the granted files.
    #[test]
    fn the_kernel_agrees(owner in 0_u32..2, group in 0_u32..2, mode in 0_u32..0o1000) {
        // Without root no owner can be changed, and the class is always the owner's.
        if !geteuid().is_root() {
            return Ok(());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        chown(file.path(), Some(owner * 1000), Some(group * 1000)).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        let path = file.path().to_path_buf();
        let opened = std::thread::spawn(move || {
            // Applies to this thread only.
            caps::clear(None, caps::CapSet::Effective).unwrap();
            fs::File::open(path).is_ok()
        });
        prop_assert_eq!(opened.join().unwrap(), grants(owner * 1000, group * 1000, mode, 0o4));
    }
}
