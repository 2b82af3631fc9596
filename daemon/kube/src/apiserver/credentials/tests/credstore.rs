use super::*;

fn own() -> Place {
    Place::Own("/run/credentials/other.service".into())
}

#[test]
fn names_are_distinguished_from_paths() {
    let name = |text: &str| name_of(Path::new(text)).map(|name| name.map(ToOwned::to_owned));
    for path in ["", "/etc/nodelb/kubeconfig", "credential", "/credential:x"] {
        assert_eq!(name(path), Ok(None), "{path}");
    }
    assert_eq!(name("credential:nodelb.kubeconfig"), Ok(Some("nodelb.kubeconfig".into())));
    for none in ["", ".", "..", "a/b", "../shadow", "a:b", "a b", "\u{e9}"] {
        assert!(name(&format!("credential:{none}")).unwrap_err().contains("names no credential"), "{none}");
    }
    assert!(name(&format!("credential:{}", "x".repeat(256))).is_err());
}

#[test]
fn a_name_is_a_file_where_systemd_says() {
    let located = |place: Place, path: &str| place.locate(path.into());
    assert_eq!(located(own(), "credential:a.b"), Path::new("/run/credentials/other.service/a.b"));
    assert_eq!(located(Place::Elsewhere, "credential:a.b"), Path::new("/run/credentials/nodelb.service/a.b"));
    assert_eq!(located(own(), "/etc/nodelb/kubeconfig"), Path::new("/etc/nodelb/kubeconfig"));
    assert_eq!(located(own(), "credential:../a"), Path::new("credential:../a"), "refused before");
}

#[test]
fn what_is_missing_has_a_remedy() {
    let missing = io::Error::from(io::ErrorKind::NotFound);
    let given = own().remedy(Path::new("/run/credentials/other.service/a"), &missing).unwrap();
    assert!(given.contains("/etc/credstore/a") && given.contains("LoadCredential=a:/PATH"), "{given}");
    let elsewhere = Path::new("/run/credentials/nodelb.service/a");
    let by_hand = Place::Elsewhere.remedy(elsewhere, &missing).unwrap();
    assert!(by_hand.contains("start nodelb.service"), "{by_hand}");
    let denied = io::Error::from(io::ErrorKind::PermissionDenied);
    assert!(Place::Elsewhere.remedy(elsewhere, &denied).is_some(), "not root");
    assert_eq!(own().remedy(Path::new("/etc/nodelb/kubeconfig"), &missing), None);
    assert_eq!(own().remedy(Path::new("/run/credentials/other.service/a"), &denied), None, "it is there");
}
