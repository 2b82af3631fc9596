use super::*;

#[test]
fn namespaces_are_found_among_the_mounts() {
    let mounts = "\
22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
402 27 0:4 net:[4026532281] /run/netns/blue rw shared:225 - nsfs nsfs rw
403 27 0:4 net:[4026532400] /run/netns/a\\040b rw - nsfs nsfs rw
404 27 0:4 mnt:[4026532500] /run/snapd/ns/x.mnt rw - nsfs nsfs rw
405 27 0:4 net:[junk] /run/netns/odd rw - nsfs nsfs rw
cut short";
    let found = parse_mounts(mounts);
    assert_eq!(
        found,
        [(4_026_532_281, PathBuf::from("/run/netns/blue")), (4_026_532_400, PathBuf::from("/run/netns/a b"))]
    );
}

#[test]
fn this_process_is_found() {
    let home = Home::here().unwrap();
    home.check().unwrap();
    assert!(all(&home).unwrap().contains_key(&home.inode));
    let excluded = BTreeSet::from([1, home.inode]);
    let found = find(&home, &excluded).unwrap();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [home.inode]);
    let own = home.visit(home.inode, &found[&home.inode], || 7).unwrap();
    assert_eq!(own, 7);
}
