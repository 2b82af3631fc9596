use nodelb_core::model::service::Service;
use proptest::prelude::*;

use super::*;

fn content(path: &str, text: &str) -> (PathBuf, FileContent) {
    let path = PathBuf::from(path);
    let content = crate::files::parse(&path, text.as_bytes()).unwrap();
    (path, content)
}

fn merged(files: &[(PathBuf, FileContent)]) -> Merged {
    merge(&files.iter().map(|(path, content)| (path.clone(), Arc::new(content.clone()))).collect())
}

fn entry(name: &str, frontend: &str, backend: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nfrontends = [\"{frontend}\"]\nbackends = [\"{backend}\"]\n")
}

fn slice_yaml(name: &str, service: &str, address: &str) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
          metadata: {{name: {name}, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}},
          endpoints: [{{addresses: [{address}]}}], ports: [{{name: '', port: 80}}]}}\n"
    )
}

/// The changes as text, such as `+slice shop/file:web`.
fn shown(changes: &[Change]) -> Vec<String> {
    let show = |change: &Change| match change {
        Change::UpsertService(Service { name, .. }) => format!("+service {name}"),
        Change::UpsertSlice(Slice { name, .. }) => format!("+slice {name}"),
        Change::RemoveService(name, Source::Files) => format!("-service {name}"),
        Change::RemoveSlice(name, Source::Files) => format!("-slice {name}"),
        other => panic!("{other:?}"),
    };
    changes.iter().map(show).collect()
}

#[test]
fn slices_come_before_services_and_go_after_them() {
    let empty = Merged::default();
    let web = merged(&[content("a.toml", &entry("shop/web", "198.51.100.1:80", "192.0.2.1:80"))]);
    assert_eq!(shown(&empty.changes_to(&web)), ["+slice shop/file:web", "+service shop/web"]);
    assert_eq!(shown(&web.changes_to(&empty)), ["-service shop/web", "-slice shop/file:web"]);
    assert_eq!(shown(&web.changes_to(&web)), [""; 0]);
}

#[test]
fn only_differences_are_reported() {
    let service =
        |backend| entry("shop/web", "198.51.100.1:80", backend) + &entry("shop/api", "198.51.100.2:80", "192.0.2.9:80");
    let before = merged(&[content("a.toml", &service("192.0.2.1:80"))]);
    let after = merged(&[content("a.toml", &service("192.0.2.2:80"))]);
    assert_eq!(shown(&before.changes_to(&after)), ["+slice shop/file:web"]);
    let reformatted = merged(&[content("a.toml", &("# comment\n\n".to_owned() + &service("192.0.2.1:80")))]);
    assert_eq!(shown(&before.changes_to(&reformatted)), [""; 0]);
}

#[test]
fn the_first_file_by_path_has_a_service_and_the_other_is_reported() {
    let first = content("/d/a.toml", &entry("shop/web", "198.51.100.1:80", "192.0.2.1:80"));
    let second = content(
        "/d/b.toml",
        &(entry("shop/api", "198.51.100.2:80", "192.0.2.9:80") + &entry("shop/web", "198.51.100.3:80", "192.0.2.2:80")),
    );
    let both = merged(&[second.clone(), first.clone()]);
    assert_eq!(both.services[&ServiceName::new("shop", "web")], first.1.services[0].value);
    assert_eq!(both.slices[&SliceName::new("shop", "file:web")], first.1.slices[0].value);
    assert_eq!(both.services.len(), 2);
    assert_eq!(both.problems.keys().collect::<Vec<_>>(), [Path::new("/d/b.toml")]);
    let problems = &both.problems[Path::new("/d/b.toml")];
    assert_eq!(
        problems[0].to_string(),
        "line 5: service shop/web is already defined by /d/a.toml, which is served; keep one of them"
    );
    assert_eq!(problems.len(), 1);

    let without_first = merged(&[second]);
    assert_eq!(shown(&both.changes_to(&without_first)), ["+slice shop/file:web", "+service shop/web"]);
}

#[test]
fn slices_of_other_files_join_and_equal_names_do_not() {
    let web = content("a.toml", &entry("shop/web", "198.51.100.1:80", "192.0.2.1:80"));
    let more = content("b.yaml", &slice_yaml("web-1", "web", "192.0.2.2"));
    let again = content("c.yaml", &slice_yaml("web-1", "web", "192.0.2.3"));
    let all = merged(&[web, more.clone(), again]);
    assert_eq!(all.slices.len(), 2);
    assert_eq!(all.slices[&SliceName::new("shop", "web-1")], more.1.slices[0].value);
    assert!(all.problems[Path::new("c.yaml")][0].message.starts_with("slice shop/web-1 is already defined by b.yaml"));
}

#[test]
fn a_service_that_moves_to_another_file_keeps_its_slice() {
    let text = entry("shop/web", "198.51.100.1:80", "192.0.2.1:80");
    let before = merged(&[content("a.toml", &text)]);
    let after = merged(&[content("b.toml", &text)]);
    assert_eq!(shown(&before.changes_to(&after)), ["+slice shop/file:web", "+service shop/web"]);
}

/// Files that define services and slices of few names, with and without backends of their own.
fn any_files() -> impl Strategy<Value = BTreeMap<u8, Vec<(u8, u8)>>> {
    prop::collection::btree_map(0_u8..6, prop::collection::vec((0_u8..4, 0_u8..6), 0..4), 0..6)
}

fn contents_of(files: &BTreeMap<u8, Vec<(u8, u8)>>) -> Contents {
    let content = |(file, entries): (&u8, &Vec<(u8, u8)>)| {
        let mut names = BTreeSet::new();
        let entries = entries.iter().filter(|(service, kind)| names.insert((*service, *kind < 4)));
        let text = |(service, kind): &(u8, u8)| {
            let (name, address) = (format!("shop/s{service}"), format!("198.51.100.{service}:80"));
            match kind {
                0 => format!("[[service]]\nname = \"{name}\"\nfrontends = [\"{address}\"]\n"),
                1 => entry(&name, &address, &format!("192.0.2.{file}:80")),
                2 => entry(&name, &address, &format!("b{file}.example:80")),
                3 => entry(&name, &address, "192.0.2.200:80"),
                _ => {
                    slice_yaml(&format!("e{service}"), &format!("s{}", kind - 4), &format!("192.0.2.{file}")) + "---\n"
                }
            }
        };
        let is_yaml = file % 2 == 0;
        let of_format = entries.filter(|(_, kind)| (*kind >= 4) == is_yaml);
        let text: String = "# a comment\n".to_owned() + &of_format.map(text).collect::<String>();
        let (path, content) = content(&format!("{file}.{}", if is_yaml { "yaml" } else { "toml" }), &text);
        (path, Arc::new(content))
    };
    files.iter().map(content).collect()
}

proptest! {
    /// A change of one file among 10,000 merged all of them.
    #[test]
    fn what_differs_is_merged_as_everything_is(steps in prop::collection::vec(any_files(), 1..8)) {
        let mut merged = Merged::default();
        for files in &steps {
            let files = contents_of(files);
            let with = merged.with(&files);
            prop_assert_eq!(&with, &merge(&files));
            merged = with;
        }
    }

    #[test]
    fn differences_are_those_of_each_key(
        old in prop::collection::btree_map(0_u8..20, 0_u8..3, 0..15),
        new in prop::collection::btree_map(0_u8..20, 0_u8..3, 0..15),
    ) {
        let shared = |map: &BTreeMap<u8, u8>| -> OrdMap<u8, Arc<u8>> {
            map.iter().map(|(key, value)| (*key, Arc::new(*value))).collect()
        };
        let (old_shared, new_shared) = (shared(&old), shared(&new));
        let (changed, gone) = differences(&old_shared, &new_shared);
        let expected = new.iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(_, value)| value);
        prop_assert_eq!(changed, expected.collect::<Vec<_>>());
        prop_assert_eq!(gone, old.keys().filter(|key| !new.contains_key(key)).collect::<Vec<_>>());
    }
}
