use super::*;

fn line(text: &str, name: &str) -> Option<u64> {
    line_of(text, &name.parse().unwrap())
}

#[test]
fn the_line_of_a_service_is_found_in_toml_yaml_and_json() {
    let toml = "[[service]]\nname = \"shop/web\" # the shop\nfrontends = [\"198.51.100.1:80\"]\n[[service]\n  name='shop/empty'\n";
    assert_eq!((line(toml, "shop/web"), line(toml, "shop/empty"), line(toml, "shop/we")), (Some(2), Some(5), None));
    let yaml = "kind: Service\nmetadata:\n  namespace: shop\n  name: web\n---\nmetadata: {name: db, namespace: ops}\n";
    assert_eq!((line(yaml, "shop/web"), line(yaml, "ops/db"), line(yaml, "ops/web")), (Some(4), Some(6), None));
    let json = r#"{"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}}"#;
    assert_eq!((line(json, "shop/web"), line(json, "ops/web")), (Some(1), None));
}

#[test]
fn a_file_that_is_not_served_is_found_by_its_content_or_by_its_problems() {
    let directory = std::env::temp_dir().join(format!("nodelb-definition-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("more.toml");
    std::fs::write(&path, "[[service]]\nname = \"shop/empty\"\n").unwrap();
    let row = |path: &str, problem: &str| SourceRow {
        source: "files".into(),
        path: path.into(),
        state: "Error".into(),
        problems: vec![problem.into()],
        ..SourceRow::default()
    };
    let rows =
        [row(path.to_str().unwrap(), "line 1: no"), row("/none.toml", "line 3: service shop/other: has no frontends")];
    let name = |text: &str| text.parse::<ServiceName>().unwrap();
    let found = find(&[], &rows, &name("shop/empty")).unwrap();
    assert_eq!((found.file.as_str(), found.line), (path.to_str().unwrap(), Some(2)));
    let found = find(&[], &rows, &name("shop/other")).unwrap();
    assert_eq!((found.file.as_str(), found.line), ("/none.toml", None));
    assert_eq!(find(&[], &rows, &name("shop/third")), None);
    std::fs::remove_dir_all(directory).unwrap();
}
