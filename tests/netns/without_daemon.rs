//! The commands that work without the daemon: it is killed, and they read the pins and the state directory.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use crate::host::{Host, eventually, history, is_served_by, service};
use crate::sandbox;

const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");

/// Runs a command with the host's configuration at the default path.
pub(crate) fn nodelb(host: &Host, arguments: &[&str]) -> Output {
    let script = "mount -t tmpfs tmpfs /etc && mkdir /etc/nodelb && cp \"$0\" /etc/nodelb/nodelb.toml && exec \"$@\"";
    let mut command = sandbox::program("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(host.path("nodelb.toml")).arg(NODELB).args(arguments);
    command.output().unwrap()
}

/// Returns stdout of a command that succeeds and reports that the daemon does not answer.
fn read(host: &Host, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = nodelb(host, arguments);
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{arguments:?}: {status}\n{stdout}{stderr}");
    let notice = "The nodelb daemon does not answer at 127.0.0.1:9890 (connection refused); ";
    assert!(stderr.starts_with(notice) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    let source = if arguments[0] == "history" { "state/history.jsonl" } else { "read from /sys/fs/bpf/nodelb" };
    assert!(stderr.trim_end().ends_with(source), "{arguments:?}: {stderr}");
    stdout
}

fn read_json(host: &Host, arguments: &[&str]) -> Value {
    serde_json::from_str(&read(host, &[arguments, &["-o", "json"]].concat())).unwrap()
}

fn fails_without(host: &Host, arguments: &[&str], part: &str) {
    let output = nodelb(host, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{arguments:?}: {said}");
    assert!(said.contains(part), "{arguments:?}: {said}");
}

#[test]
fn the_pins_and_the_history_are_read() {
    sandbox::run("without_daemon::the_pins_and_the_history_are_read", |sandbox| {
        let host = Host::new(sandbox);
        host.serve("web.toml", &service("shop/web", &["198.51.100.10:80"], &["192.0.2.1:8080", "192.0.2.2:8080"]));
        host.serve("past.toml", &service("shop/past", &["198.51.100.11:80"], &["192.0.2.3:8080"]));
        let daemon = host.start();
        eventually("the services", || {
            is_served_by("198.51.100.10:80/TCP", &["192.0.2.1:8080/TCP", "192.0.2.2:8080/TCP"])
                && is_served_by("198.51.100.11:80/TCP", &["192.0.2.3:8080/TCP"])
        });
        host.withdraw("past.toml");
        let is_stored = || fs::read_to_string(host.path("state/history.jsonl")).unwrap_or_default().contains("past");
        eventually("the removal in the file", || history("shop/past").len() == 2 && is_stored());
        let online = nodelb(&host, &["maps", "-o", "json"]);
        assert!(online.status.success() && online.stderr.is_empty(), "{online:?}");
        let online: Value = serde_json::from_slice(&online.stdout).unwrap();
        daemon.kill();

        // What the files contain now is not what the kernel has.
        host.serve("web.toml", &service("shop/web", &["198.51.100.10:80"], &["192.0.2.9:8080"]));
        let maps = read_json(&host, &["maps"]);
        for table in ["frontends", "services", "slots", "node_addresses"] {
            assert_eq!(maps[table], online[table], "{table}");
        }
        let frontends = read_json(&host, &["frontends", "web"]);
        let row = &frontends["frontends"][0];
        assert_eq!((&row["address"], &row["service"]), (&json!("198.51.100.10:80/TCP"), &json!("shop/web")));
        assert_eq!(row["backends"], json!(["192.0.2.1:8080/TCP", "192.0.2.2:8080/TCP"]));
        assert!(read(&host, &["frontends"]).contains("198.51.100.10:80/TCP"));
        let backends = read(&host, &["backends", "shop/web", "-o", "wide"]);
        assert!(backends.contains("192.0.2.2:8080/TCP  shop/web"), "{backends}");
        let trace = read_json(&host, &["trace", "198.51.100.10:80"]);
        let verdict = &trace["verdict"];
        assert_eq!((&verdict["verdict"], &verdict["backends"]), (&json!("Forwarded"), &json!(2)));
        let gone = read(&host, &["trace", "198.51.100.11:80/TCP"]);
        let step =
            format!("ago this was shop/past; its entry in {} was removed", host.path("services.d/past.toml").display());
        assert!(gone.contains(&step) && gone.contains("PassedThrough"), "{gone}");
        let past = read(&host, &["history", "--address", "198.51.100.11", "-o", "yaml"]);
        assert!(past.contains("what: \"Removed\"") && past.contains("198.51.100.11:80/TCP"), "{past}");

        fails_without(&host, &["frontends", "--watch"], "cannot reach the nodelb daemon");
        fails_without(&host, &["frontends", "--admin", "127.0.0.1:9890"], "cannot reach the nodelb daemon");
        fails_without(&host, &["services"], "cannot reach the nodelb daemon");
        host.cleanup();
        fails_without(
            &host,
            &["frontends"],
            "No BPF maps of nodelb are pinned in /sys/fs/bpf/nodelb: service addresses do not work",
        );
    });
}
