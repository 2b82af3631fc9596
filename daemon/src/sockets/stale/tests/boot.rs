use std::path::Path;

use super::*;

const ONE: &str = "11111111-89ab-cdef-0123-456789abcdef";
const TWO: &str = "22222222-89ab-cdef-0123-456789abcdef";

#[test]
fn a_first_start_a_restart_and_a_reboot_are_distinguished() {
    let scratch = tempfile::tempdir().unwrap();
    let is_another = |boot| remember(scratch.path(), boot).unwrap();
    assert!(!is_another(ONE), "a first start");
    assert!(!is_another(ONE), "a restart");
    assert!(is_another(TWO), "a reboot");
    assert!(!is_another(TWO), "a restart after it");
    assert!(is_another(ONE), "another reboot");
    assert!(!remember(&scratch.path().join("new"), ONE).unwrap(), "a first start without a state directory");
    assert!(remember(&scratch.path().join("new"), TWO).unwrap());
}

/// Such a file was never written again, so that no reboot was recognised any more.
#[test]
fn a_damaged_file_says_nothing_and_is_replaced() {
    let damages: [fn(&Path); 5] = [
        |path| fs::write(path, "").unwrap(),
        |path| fs::write(path, [0xff; 100]).unwrap(),
        |path| fs::write(path, &ONE[..20]).unwrap(),
        |path| fs::create_dir_all(path.join("directory")).unwrap(),
        |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let scratch = tempfile::tempdir().unwrap();
        damage(&scratch.path().join(FILE));
        assert!(!remember(scratch.path(), ONE).unwrap(), "{number}");
        assert!(!remember(scratch.path(), ONE).unwrap(), "{number}: a restart");
        assert!(remember(scratch.path(), TWO).unwrap(), "{number}: a reboot");
    }
}

#[tokio::test]
async fn this_boot_is_remembered() {
    let scratch = tempfile::tempdir().unwrap();
    assert!(!is_another(scratch.path().into()).await);
    assert!(!is_another(scratch.path().into()).await);
    let remembered = fs::read_to_string(scratch.path().join(FILE)).unwrap();
    assert_eq!(remembered, format!("{}\n", boot_id().unwrap()));
    fs::write(scratch.path().join(FILE), format!("{ONE}\n")).unwrap();
    assert!(is_another(scratch.path().into()).await);
    assert!(!is_another("/proc/nowhere".into()).await, "nothing can be remembered");
}
