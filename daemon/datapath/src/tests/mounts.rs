use super::*;

#[test]
fn mounts_are_filtered_by_type() {
    let mounts = "22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
402 27 0:4 net:[4026532281] /run/netns/a\\040b rw shared:225 - nsfs nsfs rw
403 27 0:4 net:[4026532282] /run/netns/c rw - nsfsish nsfs rw
cut short";
    let found: Vec<_> = by_type(mounts, "nsfs").map(|mount| (mount.root, mount.point())).collect();
    assert_eq!(found, [("net:[4026532281]", PathBuf::from("/run/netns/a b"))]);
}

#[test]
fn names_are_unescaped() {
    for (text, expected) in [("/a\\134b", "/a\\b"), ("/a\\", "/a\\"), ("/a\\9", "/a\\9"), ("/tab\\011", "/tab\t")] {
        assert_eq!(unescape(text), PathBuf::from(expected));
    }
}
