use super::{ASSETS, DOCUMENT};

#[test]
fn the_page_is_small_and_loads_only_its_own_files() {
    let size: usize = ASSETS.iter().map(|asset| asset.content.len()).sum::<usize>() + DOCUMENT.content.len();
    assert!(size < 100_000, "{size} bytes");
    for asset in ASSETS.iter().chain([&DOCUMENT]) {
        let foreign = asset.content.replace("http://www.w3.org/2000/svg", "");
        assert!(!foreign.contains("http://") && !foreign.contains("https://"), "{}", asset.path);
        // The policy allows neither inline scripts nor inline styles.
        for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", "<style"] {
            assert!(!asset.content.contains(markup), "{}: {markup}", asset.path);
        }
    }
}

#[test]
fn every_file_that_the_page_loads_exists() {
    let loaded = |content: &str, mark: &str| -> Vec<String> {
        content.split(mark).skip(1).filter_map(|rest| rest.split('"').next()).map(ToOwned::to_owned).collect()
    };
    let exists = |path: &str| ASSETS.iter().any(|asset| asset.path == path);
    for path in loaded(DOCUMENT.content, "href=\"").into_iter().chain(loaded(DOCUMENT.content, "src=\"")) {
        assert!(exists(&path), "{path}");
    }
    for asset in ASSETS.iter().filter(|asset| asset.path.ends_with(".js")) {
        for name in loaded(asset.content, "from \"./") {
            assert!(exists(&format!("/page/{name}")), "{} loads {name}", asset.path);
        }
    }
}
