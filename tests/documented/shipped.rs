//! Users copy the configuration on a page into the shipped file, which already has every key: each
//! line replaces the line of its key, and no key is added.

use nodelb::config::Config;

use crate::pages;

/// The shipped file with the lines of a block instead of its own, as the pages instruct.
fn typed_into_the_shipped_file(block: &str) -> String {
    let shipped = crate::read("config.example.toml");
    let mut lines: Vec<String> = shipped.lines().map(str::to_owned).collect();
    let mut section = 0..lines.len();
    let mut block = block.lines().filter(|line| !line.is_empty());
    while let Some(line) = block.next() {
        if line.starts_with('[') {
            let start = lines.iter().position(|there| there == line);
            let start = start.ok_or_else(|| format!("no {line} in the shipped file")).expect("a section") + 1;
            let rest = lines[start..].iter().position(|there| there.starts_with('['));
            section = start..rest.map_or(lines.len(), |length| start + length);
            continue;
        }
        let (key, value) = line.split_once(" = ").ok_or(line).expect("a key and its value");
        let mut text = line.to_owned();
        // An array over several lines.
        if value.split('#').next().unwrap_or_default().trim() == "[" {
            for line in block.by_ref() {
                text.push_str(&format!("\n{line}"));
                if line == "]" {
                    break;
                }
            }
        }
        let begin = format!("{key} = ");
        let mut there = section.clone().filter(|at| lines[*at].starts_with(&begin));
        let at = there.next().ok_or_else(|| format!("{key} is not in the shipped file")).expect("a line to change");
        lines[at] = text;
    }
    lines.join("\n")
}

/// The blocks for a node of a cluster, in the README and in the page that it links to.
#[test]
fn kubernetes_examples_fit_into_the_shipped_file() {
    for page in ["README.md", "docs/kubernetes.md"] {
        let blocks = pages::blocks(&crate::read(page));
        let mut configurations =
            blocks.iter().map(|block| block.trim()).filter(|block| block.starts_with("[kubernetes]"));
        let block = configurations.next().ok_or(page).expect("a configuration for Kubernetes");
        assert_eq!(configurations.next(), None, "{page}");
        let typed = typed_into_the_shipped_file(block);
        let config = Config::parse(&typed).map_err(|problems| format!("{page}: {problems:?} in\n{typed}"));
        let alone = Config::parse(block).map_err(|problems| format!("{page}: {problems:?} in\n{block}"));
        let (config, alone) = (config.expect("the file is good"), alone.expect("the block is good"));
        assert!(config.settings().eq(alone.settings()), "{page}: the shipped file means something else");
        assert!(!config.kubernetes.apiserver.is_empty(), "{page}");
    }
}
