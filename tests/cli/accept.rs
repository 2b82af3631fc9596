//! `nodelb accept`, with a daemon that reads an API server.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{NODELB, nodelb, serve};

const NAMESPACE: &str = r#"namespaces = ["shopp"]"#;

struct Daemon(Child);

impl Daemon {
    fn start(config: &Path) -> Self {
        let mut command = Command::new(NODELB);
        command.args(["run", "--datapath", "memory", "--config"]).arg(config);
        Self(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop((self.0.kill(), self.0.wait()));
    }
}

/// Waits until the command prints this.
fn until(command: &[&str], text: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = nodelb(command).text();
        if found.contains(text) {
            return found;
        }
        assert!(Instant::now() < deadline, "{command:?} does not print {text}: {found}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// All services were removed within seconds, and nothing said so.
#[test]
fn a_misspelt_namespace_takes_no_service_away_until_it_is_accepted() {
    let cluster = nodelb_apiserver::Cluster::new().expect("a cluster");
    let (_replica, scratch) = serve(&cluster, nodelb_apiserver::Role::node_proxier());
    for name in ["a", "b", "c"] {
        let service = serde_json::json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
            "spec": {"clusterIP": format!("198.51.100.{}", name.as_bytes()[0]), "ports": [{"port": 80}]},
        });
        cluster.apply_value(service).expect("a valid object");
    }
    std::fs::create_dir(scratch.path().join("services.d")).expect("a directory");
    let path = scratch.path().join("nodelb.toml");
    let socket = scratch.path().join("nodelb.sock");
    let socket = socket.to_str().expect("UTF-8");
    let text = std::fs::read_to_string(&path).expect("a file");
    let admin = format!("{text}[admin]\nlisten = []\nsocket = {socket:?}\n");
    std::fs::write(&path, &admin).expect("a file");
    let stored = scratch.path().join("state/kubernetes.jsonl");
    let daemon = Daemon::start(&path);
    until(&["services", "--admin", socket], "shop/c");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(&stored).is_ok_and(|text| text.matches("UpsertService").count() == 3) {
        assert!(Instant::now() < deadline, "the state is not stored");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(daemon);

    std::fs::write(&path, admin.replace("[kubernetes]\n", &format!("[kubernetes]\n{NAMESPACE}\n"))).expect("a file");
    let held = "kubernetes.namespaces = shopp selects 0 of 3 known services";
    let checked = nodelb(&["check-config", "--config", path.to_str().expect("UTF-8")]).text();
    assert!(checked.contains(&format!("note: {held}")), "{checked}");
    let _daemon = Daemon::start(&path);
    // The history says it first.
    let status = until(&["status", "--admin", socket], "nodelb accept");
    assert!(status.contains(held), "{status}");
    let services = until(&["services", "--admin", socket], "shop/c");
    assert!(["shop/a", "shop/b", "shop/c"].iter().all(|name| services.contains(name)), "{services}");
    let accepted = nodelb(&["accept", "--admin", socket]).text();
    if !nix::unistd::geteuid().is_root() {
        assert!(accepted.contains("only root may accept changes"), "{accepted}");
        return;
    }
    assert_eq!(accepted.trim(), format!("accepted: {held}; the others are removed"));
    let history = until(&["history", "--admin", socket, "-o", "wide"], "not selected by kubernetes.namespaces = shopp");
    assert!(!history.contains("Service shop/a (removed)"), "{history}");
    let status = nodelb(&["status", "--admin", socket]).text();
    assert!(!status.contains(&format!("is served: {held}")), "{status}");
    assert_eq!(nodelb(&["accept", "--admin", socket]).text().trim(), "nothing waits to be accepted");
}
