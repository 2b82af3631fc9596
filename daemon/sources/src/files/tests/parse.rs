use proptest::prelude::{ProptestConfig, any, prop, prop_assert, proptest};

use super::*;
use crate::files::tests::WEB;

#[test]
fn names_decide_the_form() {
    let form = |name: &str| Format::from_path(&Path::new("/etc/nodelb/services.d").join(name));
    assert_eq!(form("web.toml"), Some(Format::Entries));
    for name in ["web.yaml", "web.yml", "web.json", "a.b.json"] {
        assert_eq!(form(name), Some(Format::Manifests), "{name}");
    }
    for name in [
        ".web.toml",
        "..data",
        "web.toml~",
        "#web.toml#",
        ".#web.toml",
        ".web.toml.swp",
        "web.toml.swp",
        "web.toml.tmp",
        "web",
        "4913",
        "web.TOML",
        "toml",
        ".toml",
        "web.toml.dpkg-old",
        "README.md",
    ] {
        assert_eq!(form(name), None, "{name}");
    }
}

#[test]
fn bytes_that_are_no_text_are_reported_with_the_line() {
    let problems = parse(Path::new("a.toml"), b"# ok\n\n# \xff\n").unwrap_err();
    assert_eq!(problems, [Problem::at_line(3, "not UTF-8; save the file in that encoding")]);
    assert!(parse(Path::new("a.toml"), b"\xef\xbb\xbf# a byte order mark\n").is_ok());
    assert!(parse(Path::new("a.conf"), b"").is_err());
}

#[test]
fn an_object_twice_in_a_file_is_a_problem() {
    let problems = parse(Path::new("a.toml"), WEB.repeat(2).as_bytes()).unwrap_err();
    assert_eq!(problems[0].to_string(), "line 5: service shop/web is already defined on line 1; keep one of them");
    let service = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1}}\n---\n";
    let problems = parse(Path::new("a.yaml"), service.repeat(2).as_bytes()).unwrap_err();
    assert_eq!(problems[0].to_string(), "line 3: service default/a is already defined on line 1; keep one of them");
}

/// Fragments of the formats, so that random texts are not all rejected at the first byte.
fn pieces() -> impl proptest::strategy::Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "[[service]]\n",
        "[[service.port]]\n",
        "name = \"a/b\"\n",
        "frontends = [",
        "\"198.51.100.1:80\"",
        "backends = [",
        "{ ",
        " }",
        "]\n",
        ", ",
        "weight = 70000",
        "address = ",
        "session-affinity = ",
        "\"client-ip\"\n",
        "=",
        "\"",
        "\n",
        "  ",
        "- ",
        ": ",
        "apiVersion: v1\n",
        "kind: Service\n",
        "kind: List\n",
        "items:\n",
        "- apiVersion: discovery.k8s.io/v1\n",
        "  kind: EndpointSlice\n",
        "spec:\n",
        "ports:\n",
        "endpoints: ",
        "null\n",
        "&a ",
        "*a",
        "<<: *a\n",
        "---\n",
        "...\n",
        "|\n",
        "{}",
        "metadata: {name: a}\n",
        "clusterIP: 10.96.0.1\n",
        "\t",
        "é",
        "%YAML 1.2\n",
        "!!binary ",
        "? ",
        "# x\n",
        "'",
        "0x10",
        "\u{feff}",
    ]);
    proptest::strategy::Strategy::prop_map(prop::collection::vec(piece, 0..60), |pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for name in ["a.toml", "a.yaml"] {
            if let Err(problems) = parse(Path::new(name), &bytes) {
                prop_assert!(!problems.is_empty());
            }
        }
    }

    #[test]
    fn random_pieces_never_panic_and_what_is_accepted_is_sound(text in pieces()) {
        for name in ["a.toml", "a.yaml"] {
            match parse(Path::new(name), text.as_bytes()) {
                Err(problems) => prop_assert!(!problems.is_empty()),
                Ok(content) => {
                    for found in &content.services {
                        for frontend in found.value.ports.iter().flat_map(|port| &port.frontends) {
                            prop_assert!(frontend.port != 0 && !frontend.addr.is_multicast());
                        }
                    }
                    for backend in content.slices.iter().flat_map(|found| &found.value.ports).flat_map(|port| &port.backends) {
                        prop_assert!(backend.port != 0 && !backend.addr.is_unspecified());
                    }
                }
            }
        }
    }

    #[test]
    fn a_file_cut_anywhere_never_panics(cut in 0..WEB.len()) {
        let _either = parse(Path::new("a.toml"), &WEB.as_bytes()[..cut]);
        let _either = parse(Path::new("a.yaml"), &WEB.as_bytes()[..cut]);
    }
}
