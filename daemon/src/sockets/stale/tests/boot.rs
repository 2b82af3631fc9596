use super::*;

#[test]
fn a_first_start_a_restart_and_a_reboot_are_distinguished() {
    let scratch = tempfile::tempdir().unwrap();
    let is_another = |boot| remember(scratch.path(), boot).unwrap();
    assert!(!is_another("one"), "a first start");
    assert!(!is_another("one"), "a restart");
    assert!(is_another("two"), "a reboot");
    assert!(!is_another("two"), "a restart after it");
    assert!(is_another("one"), "another reboot");
    assert!(remember(&scratch.path().join("gone"), "one").is_err());
}

#[tokio::test]
async fn this_boot_is_remembered() {
    let scratch = tempfile::tempdir().unwrap();
    assert!(!is_another(scratch.path().into()).await);
    assert!(!is_another(scratch.path().into()).await);
    let remembered = fs::read_to_string(scratch.path().join(FILE)).unwrap();
    assert_eq!(remembered, fs::read_to_string(BOOT).unwrap());
    fs::write(scratch.path().join(FILE), "another\n").unwrap();
    assert!(is_another(scratch.path().into()).await);
    assert!(!is_another("/proc/nowhere".into()).await, "nothing can be remembered");
}
