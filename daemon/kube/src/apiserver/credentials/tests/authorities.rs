use super::*;

#[test]
fn bundles_that_share_a_certificate_authority_are_of_the_same_cluster() {
    let (old, both) = (Authorities::for_test(&["a"]), Authorities::for_test(&["b", "a"]));
    let (new, other) = (Authorities::for_test(&["b"]), Authorities::for_test(&["c"]));
    let share = |of: &Authorities, remembered: &Authorities| remembered.names().iter().any(|name| of.include(name));
    for (one, another, expected) in
        [(&old, &both, true), (&both, &new, true), (&old, &new, false), (&both, &other, false), (&both, &both, true)]
    {
        assert_eq!(share(one, another), expected, "{one:?} {another:?}");
        assert_eq!(share(another, one), expected, "{another:?} {one:?}");
    }
    assert_eq!(Authorities::for_test(&["b", "a", "a"]), Authorities::for_test(&["a", "b"]));
    assert!(!Authorities::default().include("") && !old.include(""));
}

#[test]
fn the_names_that_an_earlier_version_remembers_are_understood() {
    // The name as the earlier version computes it: a digest of the bundle's sorted digests.
    let earlier = |certificates: &[&str]| {
        let mut each: Vec<_> = certificates.iter().map(|der| digest::digest(&digest::SHA256, der.as_bytes())).collect();
        each.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
        let mut all = digest::Context::new(&digest::SHA256);
        each.iter().for_each(|one| all.update(one.as_ref()));
        all.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let three = Authorities::for_test(&["a", "b", "c"]);
    for known in [&["a"][..], &["c", "a"], &["a", "b", "c"]] {
        assert!(three.include(&earlier(known)), "{known:?}");
    }
    assert!(!three.include(&earlier(&["a", "d"])));
    assert_eq!(three.bundle(), earlier(&["c", "b", "a"]), "an earlier version understands it too");
}
