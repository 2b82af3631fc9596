use super::*;

#[test]
fn version_0_is_no_position() {
    let (unknown, known) = (Version::default(), Version(7));
    for event in [ListWatchEvent::Bookmark, ListWatchEvent::ListDone] {
        assert_eq!((newest(&[event(known)]), has_unknown_version(&[event(known)])), (Some(known), false));
        assert_eq!((newest(&[event(unknown)]), has_unknown_version(&[event(unknown)])), (None, true));
    }
    assert_eq!(newest(&[ListWatchEvent::Bookmark(known), ListWatchEvent::Bookmark(unknown)]), Some(known));
}
