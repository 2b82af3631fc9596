//! The rules that tests can remove (`bpf/rule.h`) leave nothing in what is compiled.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The objects that have such rules.
const OBJECTS: [&str; 3] = ["packet", "xdp", "sweep"];

/// The text with each `RULE(name, condition)` replaced by its condition in parentheses.
fn without_rules(text: &str) -> String {
    let mut parts = text.split("RULE(");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, condition) = part.split_once(',').unwrap();
        plain.push('(');
        plain.push_str(condition);
    }
    plain
}

/// Copies the sources into the folder, and libbpf's headers into its folder `bpf`.
fn copy(into: &Path, change: impl Fn(&str) -> String) {
    std::fs::create_dir_all(into.join("bpf")).unwrap();
    for (name, content) in libbpf_sys::API_HEADERS {
        std::fs::write(into.join("bpf").join(name), content).unwrap();
    }
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let is_definition = path.ends_with("rule.h");
        let text = if is_definition { text } else { change(&text) };
        std::fs::write(into.join(path.file_name().unwrap()), text).unwrap();
    }
}

/// What clang compiles, without white space.
fn compiled(folder: &Path, object: &str) -> String {
    let multiarch = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| OsString::from("clang"));
    let output = Command::new(clang)
        .args(["-target", "bpf", "-E", "-P", &multiarch, "-I.", &format!("{object}.bpf.c")])
        .current_dir(folder)
        .output()
        .expect("clang (Debian package clang)");
    assert!(output.status.success(), "{object}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().collect()
}

#[test]
fn a_rule_is_its_condition() {
    let folder = tempfile::tempdir().unwrap();
    let (with, without) = (folder.path().join("with"), folder.path().join("without"));
    copy(&with, str::to_owned);
    copy(&without, without_rules);
    for object in OBJECTS {
        assert!(compiled(&with, object) == compiled(&without, object), "the rules change {object}.bpf.c");
    }
    let rules = |folder: &Path| std::fs::read_to_string(folder.join("begin.h")).unwrap().matches("RULE(").count();
    assert_eq!((rules(&with) > 0, rules(&without)), (true, 0));
}
