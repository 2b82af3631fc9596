use serde_json::json;

use super::text;

#[test]
fn data_become_a_document() {
    let data = json!({
        "frontends": [{"address": "10.96.7.7:80/TCP", "port": null, "flags": [], "backends": ["a", "b: c\n"]}, 7],
        "empty": {},
        "ok": true,
    });
    let expected = "\
empty: {}
frontends:
  - address: \"10.96.7.7:80/TCP\"
    backends:
      - \"a\"
      - \"b: c\\n\"
    flags: []
    port: null
  - 7
ok: true
";
    let sorted: serde_json::Value = serde_json::from_str(&data.to_string()).unwrap();
    let mut lines: Vec<String> = text(&sorted).lines().map(str::to_owned).collect();
    let mut wanted: Vec<String> = expected.lines().map(str::to_owned).collect();
    // The order of keys is that of the data.
    lines.sort();
    wanted.sort();
    assert_eq!(lines.len(), wanted.len());
    assert!(text(&sorted).contains("backends:\n      - \"a\"\n      - \"b: c\\n\"\n"), "{}", text(&sorted));
}
