//! The pages of `docs/`: their commands, keys, routes and links exist, and their configurations are
//! valid.

use std::collections::BTreeSet;
use std::path::Path;

use nodelb::config::Config;
use nodelb_host::messages::{FIELDS, MESSAGES};

use crate::daemon::Daemon;
use crate::{ROOT, prose};

/// Every page for users, by its path in the repository.
pub(crate) fn all() -> Vec<String> {
    let pages = pages_of("docs");
    assert!(pages.len() > 5, "{pages:?}");
    pages
}

/// The pages of one folder.
fn pages_of(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(Path::new(ROOT).join(folder)).expect("the pages");
    let names = entries.map(|entry| entry.expect("a page").file_name().into_string().expect("a plain name"));
    let mut pages: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")).collect();
    pages.sort();
    pages
}

/// The indented blocks of a page, without the indent.
pub(crate) fn blocks(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(code) => blocks.last_mut().expect("never empty").push_str(&format!("{code}\n")),
            // An empty line may belong to the block.
            None if line.is_empty() => blocks.last_mut().expect("never empty").push('\n'),
            None => blocks.push(String::new()),
        }
    }
    blocks.retain(|block| !block.trim().is_empty());
    blocks
}

/// Commands in blocks: at the start of a line, after a prompt, or after `sudo`.
#[test]
fn commands_that_are_typed_exist() {
    let mut typed = 0;
    for page in all() {
        for line in blocks(&crate::read(&page)).iter().flat_map(|block| block.lines()) {
            let line = line.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ");
            let code = line.split([';', '|', '#']).next().unwrap().trim();
            if code.starts_with("nodelb ") {
                prose::check_command(&page, code);
                typed += 1;
            }
        }
    }
    assert!(typed > 30, "{typed}");
}

/// Words in code that look like `section.key`. Blocks may show a user's mistake and are not
/// checked.
#[test]
fn keys_that_are_mentioned_exist() {
    let config = Config::default();
    let keys: BTreeSet<String> = config.settings().map(|(key, _, _)| key).collect();
    let sections: BTreeSet<&str> = keys.iter().map(|key| key.split('.').next().unwrap()).collect();
    for page in all() {
        let text = crate::read(&page);
        let prose: Vec<&str> = text.lines().filter(|line| !line.starts_with("    ")).collect();
        for code in prose.join("\n").split('`').skip(1).step_by(2) {
            let word = code.split([' ', '=']).next().unwrap().trim_start_matches('[').trim_end_matches(']');
            let is_key = word.split_once('.').is_some_and(|(section, key)| {
                let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
                sections.contains(section) && !key.is_empty() && key.chars().all(is_name)
            });
            assert!(!is_key || keys.contains(word), "{page}: there is no key {word}");
        }
    }
}

/// `localhost:9890/ROUTE`, and routes in code.
#[test]
fn routes_that_are_mentioned_exist() {
    let (daemon, _) = Daemon::start();
    let answer: serde_json::Value = serde_json::from_str(&daemon.get("/?output=json")).unwrap();
    let routes: BTreeSet<&str> =
        answer["routes"].as_array().unwrap().iter().map(|row| row["route"].as_str().unwrap()).collect();
    for page in all() {
        let text = crate::read(&page);
        for (start, found) in text.match_indices("localhost:9890") {
            let rest = &text[start + found.len()..];
            let is_route = |c: char| c.is_ascii_alphabetic() || c == '/' || c == '.';
            let route: String = rest.chars().take_while(|c| is_route(*c)).collect();
            let route = route.trim_end_matches('.');
            assert!(route.is_empty() || routes.contains(route), "{page}: there is no route {route}");
        }
    }
}

/// Names in capitals are message ids or fields of the journal, or belong to a short list of other
/// names, mostly of the kernel.
#[test]
fn messages_that_are_mentioned_exist() {
    let others =
        ["LC_ALL", "COLUMNS", "KUBE_PROXY", "SO_NETNS_COOKIE", "SOCK_DESTROY", "RLIMIT_MEMLOCK"].into_iter().chain([
            "SO_ORIGINAL_DST",
            "MSG_ERRQUEUE",
            "IP_RECVERR",
            "IP_UNICAST_IF",
            "SO_BINDTODEVICE",
            "HTTP_PROXY",
            "TCP_RR",
            "TCP_CRR",
            "FLOOD_SYNS",
            "GLIBC_TUNABLES",
            "M_ARENA_MAX",
            "LD_PRELOAD",
            "BULK_ONLY",
            "CONNECT_ONLY",
            "FLOOD_PACKETS",
        ]);
    let known: BTreeSet<String> = MESSAGES
        .iter()
        .map(|message| message.name.to_owned())
        .chain(FIELDS.iter().map(|(field, _)| field.to_uppercase()))
        .chain(others.map(str::to_owned))
        .collect();
    let ids: BTreeSet<String> = MESSAGES.iter().map(|message| message.id.to_string()).collect();
    for page in all() {
        for word in crate::read(&page).split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_name = word.contains('_') && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            let is_foreign = ["CAP_", "CONFIG_", "BPF_"].iter().any(|prefix| word.starts_with(prefix));
            assert!(!is_name || is_foreign || known.contains(word), "{page}: there is no message {word}");
            let is_id = word.len() == 32 && word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
            assert!(!is_id || ids.contains(word), "{page}: there is no message {word}");
        }
    }
}

/// Configurations in blocks are valid; the files that they name need not exist here.
#[test]
fn configurations_that_are_shown_are_good() {
    let mut shown = 0;
    for page in all() {
        for block in blocks(&crate::read(&page)) {
            let first = block.trim_start().lines().next().unwrap_or_default();
            let is_config =
                ["[node]", "[files]", "[kubernetes]", "[admin]", "[datapath]", "[packets]", "[log]"].contains(&first);
            if is_config {
                let problems = Config::parse(&block).err().unwrap_or_default();
                assert!(problems.is_empty(), "{page}: {problems:?} in\n{block}");
                shown += 1;
            }
        }
    }
    assert!(shown > 0);
}

/// Service files and Kubernetes objects that a page shows are read without a problem or a notice.
#[test]
fn service_files_that_are_shown_are_good() {
    let mut shown = 0;
    for page in all() {
        let text = crate::read(&page);
        let fenced = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next().map(str::to_owned));
        for block in blocks(&text).into_iter().chain(fenced) {
            let path = match block.trim_start().lines().find(|line| !line.starts_with('#')).unwrap_or_default() {
                "[[service]]" => "a.toml",
                "apiVersion: v1" | "apiVersion: discovery.k8s.io/v1" => "a.yaml",
                _ => continue,
            };
            let content = nodelb_sources::files::parse(Path::new(path), block.as_bytes());
            let content = content.unwrap_or_else(|problems| panic!("{page}: {problems:?} in\n{block}"));
            assert!(content.notices.is_empty(), "{page}: {:?} in\n{block}", content.notices);
            assert!(content.services.len() + content.slices.len() > 0, "{page}: nothing is read of\n{block}");
            shown += 1;
        }
    }
    assert!(shown >= 4, "{shown}");
}

/// The `sed` expressions of the quick start each change one line of the shipped configuration, and the result is valid.
#[test]
fn the_quick_start_edits_the_shipped_configuration() {
    let page = crate::read("docs/quickstart.md");
    let mut config = crate::read("config.example.toml");
    let mut edits = 0;
    for edit in page.lines().filter_map(|line| line.trim().strip_prefix("-e 's|^")) {
        let (pattern, rest) = edit.split_once(" = .*|").expect("the form of the other edits");
        let replacement = rest.split('|').next().expect("never empty");
        let is_edited = |line: &&str| line.starts_with(&format!("{pattern} = "));
        assert_eq!(config.lines().filter(is_edited).count(), 1, "{pattern} in config.example.toml");
        let lines = config.lines().map(|line| if is_edited(&line) { replacement } else { line });
        config = lines.collect::<Vec<_>>().join("\n");
        edits += 1;
    }
    assert!(edits > 0);
    let problems = Config::parse(&config).err().unwrap_or_default();
    assert!(problems.is_empty(), "{problems:?}");
}

/// The anchor of a heading, as GitHub generates it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Links between pages and to the rest of the repository.
#[test]
fn links_have_targets() {
    let mut followed = 0;
    for page in all().into_iter().chain(pages_of("docs/development")).chain(["README.md".to_owned()]) {
        let text = crate::read(&page);
        let directory = Path::new(&page).parent().expect("a page is a file");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") {
                continue;
            }
            let (file, heading) = target.split_once('#').map_or((target, None), |(file, at)| (file, Some(at)));
            let path = directory.join(file);
            let linked = if file.is_empty() { page.clone() } else { path.to_string_lossy().into_owned() };
            assert!(Path::new(ROOT).join(&linked).exists(), "{page}: {target} leads nowhere");
            let found = heading.is_none_or(|heading| anchors(&crate::read(&linked)).contains(heading));
            assert!(found, "{page}: {target}: there is no such heading");
            followed += 1;
        }
    }
    assert!(followed > 20, "{followed}");
}

/// The index lists every page and no other.
#[test]
fn the_index_has_every_page() {
    let index = crate::read("docs/README.md");
    for page in all() {
        let name = page.trim_start_matches("docs/");
        assert!(name == "README.md" || index.contains(&format!("]({name})")), "docs/README.md does not lead to {name}");
    }
}

/// The fields of kube-proxy's configuration in Kubernetes 1.36, which docs/migration.md must cover.
const FIELDS_OF_KUBE_PROXY: [&str; 57] = [
    "bindAddress",
    "bindAddressHardFail",
    "clientConnection.acceptContentTypes",
    "clientConnection.burst",
    "clientConnection.contentType",
    "clientConnection.kubeconfig",
    "clientConnection.qps",
    "clusterCIDR",
    "configSyncPeriod",
    "conntrack.maxPerCore",
    "conntrack.min",
    "conntrack.tcpBeLiberal",
    "conntrack.tcpCloseWaitTimeout",
    "conntrack.tcpEstablishedTimeout",
    "conntrack.udpStreamTimeout",
    "conntrack.udpTimeout",
    "detectLocal.bridgeInterface",
    "detectLocal.interfaceNamePrefix",
    "detectLocalMode",
    "enableProfiling",
    "featureGates",
    "healthzBindAddress",
    "hostnameOverride",
    "iptables.localhostNodePorts",
    "iptables.masqueradeAll",
    "iptables.masqueradeBit",
    "iptables.minSyncPeriod",
    "iptables.syncPeriod",
    "ipvs.excludeCIDRs",
    "ipvs.minSyncPeriod",
    "ipvs.scheduler",
    "ipvs.strictARP",
    "ipvs.syncPeriod",
    "ipvs.tcpFinTimeout",
    "ipvs.tcpTimeout",
    "ipvs.udpTimeout",
    "logging.flushFrequency",
    "logging.format",
    "logging.options",
    "logging.verbosity",
    "logging.vmodule",
    "metricsBindAddress",
    "mode",
    "nftables.masqueradeAll",
    "nftables.masqueradeBit",
    "nftables.minSyncPeriod",
    "nftables.syncPeriod",
    "nodePortAddresses",
    "oomScoreAdj",
    "portRange",
    "showHiddenMetricsForVersion",
    "windowsRunAsService",
    "winkernel.enableDSR",
    "winkernel.forwardHealthCheckVip",
    "winkernel.networkName",
    "winkernel.rootHnsEndpointName",
    "winkernel.sourceVip",
];

#[test]
fn every_field_of_kube_proxy_has_a_row() {
    let text = crate::read("docs/migration.md");
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split(" | ").next());
    let documented: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    for field in FIELDS_OF_KUBE_PROXY {
        assert!(documented.contains(field), "docs/migration.md does not mention {field}");
    }
}
