use nodelb_datapath::is_open_for_writing;

use super::*;

pub(super) const WEB: &str =
    "[[service]]\nname = \"shop/web\"\nfrontends = [\"198.51.100.1:80\"]\nbackends = [\"192.0.2.1:80\"]\n";

#[test]
fn check_tells_everything_that_is_wrong_in_the_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(scratch.path().join(name), text).unwrap();
    assert_eq!(check(scratch.path(), is_open_for_writing).problems, []);
    file("a.toml", WEB);
    assert_eq!(check(scratch.path(), is_open_for_writing).problems, []);
    file("b.toml", WEB);
    file("c.toml", "x = 1\n\ny = 2\n");
    file("d.yaml", "{");
    std::fs::create_dir(scratch.path().join("e.yaml")).unwrap();
    let shown: Vec<_> = check(scratch.path(), is_open_for_writing).problems.iter().map(ToString::to_string).collect();
    let at = |rest: &str| format!("{}/{rest}", scratch.path().display());
    assert_eq!(
        shown[0],
        at(&format!(
            "b.toml:1: service shop/web is already defined by {}, which is served; keep one of them",
            at("a.toml")
        ))
    );
    assert_eq!(shown[1], at("c.toml:1: unknown key `x`; known here: service"));
    assert_eq!(shown[2], at("c.toml:3: unknown key `y`; known here: service"));
    assert!(shown[3].starts_with(&at("d.yaml:1: ")), "{shown:?}");
    assert_eq!(shown[4], at("e.yaml: a directory, not a file; directories are not searched"));
    assert_eq!(shown.len(), 5);
    let missing = check(&scratch.path().join("missing"), is_open_for_writing).problems;
    assert!(missing[0].to_string().contains("missing: cannot read the services directory: "), "{missing:?}");
}

/// The typical mistake is a copied file with an unchanged address: `check-config` sees both files.
#[test]
fn an_address_that_two_files_claim_is_a_problem_that_names_both() {
    let directory = tempfile::tempdir().unwrap();
    let web = directory.path().join("shop.toml");
    let thief = directory.path().join("zz-new.toml");
    std::fs::write(&web, WEB).unwrap();
    std::fs::write(&thief, WEB.replace("shop/web", "aaa/thief")).unwrap();
    let problems = check(directory.path(), is_open_for_writing).problems;
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    let text = problem.to_string();
    assert_eq!((&problem.path, problem.problem.line), (&thief, Some(1)), "{text}");
    for part in ["198.51.100.1:80/TCP", "aaa/thief", "shop/web", "shop.toml", "remove the address"] {
        assert!(text.contains(part), "{text}");
    }
    std::fs::write(&thief, WEB.replace("shop/web", "aaa/thief").replace(":80\"]\nb", ":81\"]\nb")).unwrap();
    assert_eq!(check(directory.path(), is_open_for_writing).problems, []);
}
