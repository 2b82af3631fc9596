use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

pub(in crate::apiserver) fn load(directory: &Path) -> io::Result<Option<EndpointsState>> {
    read(&directory.join(NAME))
}

pub(in crate::apiserver) fn save(directory: &Path, state: EndpointsState) -> io::Result<()> {
    write(&directory.join(NAME), state)
}

fn state() -> EndpointsState {
    let remembered = |address: &str, name: Option<&str>, worked| {
        let server = Server { address: address.parse().unwrap(), tls_server_name: name.map(Into::into) };
        RememberedServer { server, worked }
    };
    EndpointsState {
        authorities: vec!["ab".into(), "cd".into(), "abcd".into()],
        cluster: Some("u-1".into()),
        apiservers: vec![
            remembered("192.0.2.1:6443", Some("kubernetes"), 1_700_000_000),
            remembered("[2001:db8::1]:6443", None, 1_700_000_001),
        ],
    }
}

#[test]
fn what_is_saved_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(load(directory.path()).unwrap(), None);
    save(directory.path(), EndpointsState { authorities: vec![String::new()], ..EndpointsState::default() }).unwrap();
    save(directory.path(), state()).unwrap();
    assert_eq!(load(directory.path()).unwrap(), Some(state()));
    let mode = fs::metadata(directory.path().join(NAME)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_file_of_an_earlier_version_is_of_a_bundle_that_has_gained_a_certificate_authority() {
    let directory = tempfile::tempdir().unwrap();
    let (old, both) = (Authorities::for_test(&["a"]), Authorities::for_test(&["a", "b"]));
    let file = format!(r#"{{"version":1,"authority":"{}","cluster":"u-1","apiservers":[]}}"#, old.bundle());
    fs::write(directory.path().join(NAME), file).unwrap();
    let state = load(directory.path()).unwrap().unwrap();
    assert!(state.is_of(&both) && state.is_of(&old) && !state.is_of(&Authorities::for_test(&["b"])));
}

#[test]
fn a_file_of_no_use_is_put_aside() {
    let wrong = [
        "",
        "{",
        "[]",
        r#"{"version":2,"authority":"","cluster":null,"apiservers":[]}"#,
        r#"{"version":1,"authority":"","cluster":null,"apiservers":[{"address":"192.0.2.1","worked":1}]}"#,
        &" ".repeat(300 << 10),
    ];
    for content in wrong {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        fs::write(&path, content).unwrap();
        let reported = load(directory.path()).unwrap_err().to_string();
        assert!(reported.contains("; it has been renamed to "), "{reported}");
        assert!(!path.exists());
        assert_eq!(fs::read_to_string(state_file::corrupt_path(&path)).unwrap(), content);
        assert_eq!(load(directory.path()).unwrap(), None);
    }
}

#[test]
fn what_is_no_file_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join(NAME)).unwrap();
    assert!(load(directory.path()).unwrap_err().to_string().contains("it is not a file"));
    assert!(save(directory.path(), state()).is_err());

    let fifo = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(&fifo.path().join(NAME), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(load(fifo.path()).unwrap_err().to_string().contains("it is not a file"));
    assert!(save(&fifo.path().join(NAME), state()).is_err(), "no directory");
    save(&fifo.path().join("missing"), state()).unwrap();
    assert!(load(&fifo.path().join("missing")).unwrap().is_some(), "in a new directory");
}

#[test]
fn a_link_left_in_the_way_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, directory.path().join(format!("{NAME}.new"))).unwrap();
    save(directory.path(), state()).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}
