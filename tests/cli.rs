//! Black-box tests of the `nodelb` binary: exit codes, standard output and standard error; and of
//! its admin API under hostile clients. Needs no privilege. `netns.rs` tests the running daemon.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};

#[path = "cli/accept.rs"]
mod accept;
#[path = "cli/asked.rs"]
mod asked;
#[path = "cli/hostile.rs"]
mod hostile;
#[path = "interference/mod.rs"]
mod interference;
#[path = "cli/non_interference.rs"]
mod non_interference;
#[path = "cli/openapi.rs"]
mod openapi;

const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");

/// The result of one command.
struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Finished {
    fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

fn nodelb(args: &[&str]) -> Finished {
    let Output { status, stdout, stderr } =
        Command::new(NODELB).args(args).stdin(Stdio::null()).output().expect("the binary starts");
    Finished {
        code: status.code().expect("the program ends by itself"),
        stdout: String::from_utf8(stdout).expect("UTF-8"),
        stderr: String::from_utf8(stderr).expect("UTF-8"),
    }
}

/// A loopback address without a listener.
fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").to_string()
}

/// Serves these rows on one connection, then ends.
fn serving_once(rows: String) -> (SocketAddr, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let task = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut asked = Vec::new();
        let mut byte = [0];
        while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("a request") > 0 {
            asked.push(byte[0]);
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", rows.len());
        stream.write_all((head + &rows).as_bytes()).expect("the client reads");
        String::from_utf8(asked).expect("UTF-8")
    });
    (address, task)
}

#[test]
fn help_and_version_are_answers() {
    let help = nodelb(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    for command in [
        "run",
        "check-config",
        "status",
        "services",
        "frontends",
        "backends",
        "maps",
        "history",
        "trace",
        "sources",
        "apiservers",
        "config",
        "diagnose",
        "watch",
        "cleanup",
    ] {
        assert!(help.stdout.contains(&format!("  {command} ")), "{command} in {}", help.stdout);
        let help = nodelb(&[command, "--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (0, ""), "{command}");
        assert!(help.stdout.contains(&format!("nodelb {command} [OPTIONS]")), "{}", help.stdout);
    }
    assert!(help.stdout.contains("69  the daemon does not respond"), "{}", help.stdout);
    let version = nodelb(&["--version"]);
    assert_eq!((version.code, version.stdout.as_str()), (0, concat!("nodelb ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn a_wrong_command_line_is_64() {
    for args in [
        &[][..],
        &["frobnicate"],
        &["frontends", "--no-such-flag"],
        &["frontends", "--service", "no-namespace"],
        &["frontends", "--address", "10.0.0.1:80"],
        &["frontends", "--namespace", ""],
        &["top", "--namespace", "a/b"],
        &["frontends", "--admin", "localhost"],
        &["run", "--datapath", "magic"],
        &["run", "extra"],
    ] {
        let said = nodelb(args);
        assert_eq!((said.code, said.stdout.as_str()), (64, ""), "{args:?}");
        assert!(!said.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn without_a_daemon_reading_is_69_and_says_what_to_do() {
    for command in ["services", "frontends", "backends", "maps", "history", "sources"] {
        let address = unused_address();
        let said = nodelb(&[command, "--admin", &address]);
        assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{command}");
        assert!(
            said.stderr.starts_with(&format!("nodelb: cannot reach the nodelb daemon at {address}")),
            "{}",
            said.stderr
        );
        assert!(said.stderr.contains("systemctl status nodelb"), "{}", said.stderr);
        assert_eq!(said.stderr.matches("systemctl start nodelb").count(), 1, "{}", said.stderr);
    }
}

#[test]
fn filters_and_form_reach_the_daemon() {
    let (address, task) = serving_once(FRONTENDS.into());
    let admin = address.to_string();
    let said = nodelb(&[
        "frontends",
        "--service",
        "shop/web",
        "--address",
        "2001:db8::7",
        "--output",
        "json",
        "--admin",
        &admin,
    ]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, FRONTENDS, ""));
    let asked = task.join().expect("the server ends");
    assert!(
        asked.starts_with("GET /frontends?output=json&service=shop/web&address=2001:db8::7 HTTP/1.1\r\n"),
        "{asked}"
    );
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let (head, rest) = FRONTENDS.split_once('[').expect("a list");
    let row = rest.strip_suffix("]}").expect("the end of a list");
    let (address, task) = serving_once(format!("{head}[{}]}}", vec![row; 20_000].join(",")));
    let mut child = Command::new(NODELB)
        .args(["frontends", "--admin", &address.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut first = [0; 10];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("rows");
    let ended = child.wait_with_output().expect("the program ends");
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]));
    task.join().expect("the server ends");
}

#[test]
fn shells_get_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let said = nodelb(&["completions", shell]);
        assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{shell}");
        assert!(said.stdout.contains("NODELB_COMPLETE"), "{shell}: {}", said.stdout);
    }
    assert_eq!(nodelb(&["completions", "tcsh"]).code, 64);
}

/// The candidates for the last of these words of a command line, as the script for bash requests them.
fn candidates(words: &[&str]) -> Vec<String> {
    let mut command = Command::new(NODELB);
    command.env("NODELB_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
    let Output { status, stdout, stderr } =
        command.args(["--", "nodelb"]).args(words).stdin(Stdio::null()).output().expect("the binary starts");
    assert_eq!((status.code(), String::from_utf8(stderr).expect("UTF-8").as_str()), (Some(0), ""), "{words:?}");
    String::from_utf8(stdout).expect("UTF-8").lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn completion_knows_commands_values_and_the_services_of_the_daemon() {
    assert_eq!(candidates(&["front"]), ["frontends"]);
    assert_eq!(candidates(&["frontends", "--status", "H"]), ["Held"]);
    assert!(candidates(&["trace", "10.96.7.7:80", "--from", ""]).contains(&"outside".to_owned()));
    let row = |name: &str| {
        format!(
            r#"{{"service":"{name}","source":"files","ports":[],"internal_policy":"Cluster","external_policy":"Cluster",
            "affinity":null,"frontends":0,"outside":"Off","backends":0,"selectable":0,"status":"OK","origin":null,
            "error":null}}"#
        )
    };
    let rows = format!(r#"{{"services":[{},{}]}}"#, row("shop/api"), row("shop/web"));
    let (address, task) = serving_once(rows);
    assert_eq!(candidates(&["--admin", &address.to_string(), "backends", "shop/w"]), ["shop/web"]);
    assert!(task.join().expect("the server ends").starts_with("GET /services?output=json "));
}

#[test]
fn completion_does_not_wait_for_a_daemon_that_is_gone_or_hangs() {
    assert!(candidates(&["--admin", &unused_address(), "diagnose", "shop/"]).is_empty());
    // It accepts connections and never responds.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    assert!(candidates(&["--admin", &address, "diagnose", "shop/"]).is_empty());
}

#[test]
fn rates_of_a_daemon_that_counts_nothing_are_refused() {
    let (address, task) = serving_once(r#"{"is_counting":false,"counters":[]}"#.into());
    let said = nodelb(&["top", "--once", "--admin", &address.to_string()]);
    assert_eq!((said.code, said.stdout.as_str()), (69, ""));
    assert!(said.stderr.contains("datapath.count-connections"), "{}", said.stderr);
    task.join().expect("the server ends");
}

#[test]
fn a_socket_that_is_not_there_is_named_with_the_remedy() {
    let said = nodelb(&["status", "--admin", "/nonexistent/nodelb.sock"]);
    assert_eq!((said.code, said.stdout.as_str()), (69, ""));
    assert!(
        said.stderr.starts_with("nodelb: cannot reach the nodelb daemon at /nonexistent/nodelb.sock ("),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("systemctl status nodelb"), "{}", said.stderr);
}

/// The response of `/frontends` with one row.
const FRONTENDS: &str = r#"{"frontends":[{"address":"10.96.7.7:80/TCP","type":"ClusterIP","service":"shop/web",
"port":null,"backends":["10.1.0.1:80/TCP","10.1.0.2:80/TCP","10.1.0.3:80/TCP","10.1.0.4:80/TCP","10.1.0.5:80/TCP",
"10.1.0.6:80/TCP","10.1.0.7:80/TCP"],"flags":[],"outside":"Off","status":"NoBackends","since":"2026-11-20T12:03:04.123Z","error":null}]}"#;

/// Piped output is not fitted to a terminal and not coloured unless the user requests it, and every list is complete.
#[test]
fn a_pipe_gets_plain_and_complete_text() {
    let ask = |args: &[&str]| {
        let (address, task) = serving_once(FRONTENDS.into());
        let said = nodelb(&[args, &["--admin", &address.to_string()]].concat());
        (said, task.join().expect("the server ends"))
    };
    let (said, asked) = ask(&["frontends", "--type", "clusterip"]);
    assert!(asked.starts_with("GET /frontends?output=json&type=ClusterIP HTTP/1.1\r\n"), "{asked}");
    assert!(said.stdout.starts_with("Address           Type       Service   Backends"), "{}", said.stdout);
    assert!(
        said.stdout.contains("10.1.0.7:80/TCP  NoBackends  ") && !said.stdout.contains('\u{1b}'),
        "{}",
        said.stdout
    );
    let (said, _) = ask(&["fe", "-o", "wide", "--color", "always"]);
    assert!(said.stdout.contains("  2026-11-20T12:03:04.123Z  -\n"), "{}", said.stdout);
    assert!(said.stdout.contains("\u{1b}[31mNoBackends\u{1b}[0m"), "{}", said.stdout);
    let (said, _) = ask(&["frontends", "-n", "shop", "-o", "yaml"]);
    assert!(said.stdout.starts_with("frontends:\n  - "), "{}", said.stdout);
    let (said, _) = ask(&["frontends", "-o", "json"]);
    assert_eq!(said.stdout, FRONTENDS);
}

#[test]
fn an_answer_without_rows_says_so_and_a_service_that_is_missing_has_its_own_exit_code() {
    let (address, task) = serving_once("{\"frontends\":[]}".into());
    let said = nodelb(&["frontends", "--admin", &address.to_string()]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "No frontends found.\n"));
    task.join().expect("the server ends");
    let (address, task) = serving_once("{\"services\":[]}".into());
    let said = nodelb(&["frontends", "web", "--admin", &address.to_string()]);
    assert_eq!((said.code, said.stderr.as_str()), (4, "nodelb: there is no service web; see `nodelb services`\n"));
    task.join().expect("the server ends");
}

#[test]
fn the_version_is_a_command_too() {
    let version = nodelb(&["version"]);
    assert_eq!((version.code, version.stdout), (0, nodelb(&["--version"]).stdout));
}

/// The long options in a text, such as `--config`.
fn options(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
}

#[test]
fn the_manual_page_has_every_command_option_and_exit_code() {
    let lines = include_str!("../contrib/man/nodelb.8").lines().filter(|line| !line.starts_with(".\\\""));
    let page = lines.collect::<Vec<_>>().join("\n").replace("\\-", "-");
    // Without fonts.
    let page = ["\\fB", "\\fI", "\\fR"].into_iter().fold(page, |page, font| page.replace(font, ""));
    let help = nodelb(&["--help"]).stdout;
    let section = |from: &str, to: &str| help.split(from).nth(1).and_then(|rest| rest.split(to).next()).expect("help");
    let groups = ["Look", "Explain", "Run", "Packets of clients outside the node"];
    let commands = groups.into_iter().flat_map(|group| section(&format!("\n{group}:\n"), "\n\n").lines());
    let commands = commands.filter_map(|line| line.split_whitespace().next());
    let mut known = options(&help);
    for command in commands.filter(|command| *command != "help") {
        assert!(page.contains(&format!("\n.B {command}\n")), "{command} is not described in nodelb(8)");
        known.extend(options(&nodelb(&[command, "--help"]).stdout));
    }
    assert_eq!(options(&page), known);
    for line in section("Exit codes:\n", "\n\n").lines() {
        let code = line.split_whitespace().next().expect("a code");
        assert!(page.contains(&format!(".TP\n.B {code}\n")), "exit code {code} is not described in nodelb(8)");
    }
}

/// An empty configuration, which does not depend on this host.
fn nothing_configured() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new().expect("a file")
}

#[test]
fn diagnose_without_a_daemon_ends_with_2_only_if_nothing_is_pinned() {
    let config = nothing_configured();
    let admin = unused_address();
    let config = config.path().to_str().expect("UTF-8");
    let said = nodelb(&["diagnose", "shop/web", "--config", config, "--admin", &admin]);
    let is_out =
        said.stdout.contains("no BPF maps of nodelb are pinned in /sys/fs/bpf/nodelb: service addresses do not");
    let (code, severity) = if is_out { (2, "CRITICAL") } else { (1, "WARNING") };
    assert_eq!((said.code, said.stderr.as_str()), (code, ""), "{}", said.stdout);
    let what = format!("1. {severity}: the nodelb daemon on this node does not respond");
    assert!(said.stdout.contains(&what), "{}", said.stdout);
    let said = nodelb(&["diagnose", "shop/web", "--config", config, "--admin", &admin, "--output", "json"]);
    let report: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!((said.code, &report["findings"][0]["kind"]), (code, &"daemon-silent".into()));
    let short = nodelb(&["diagnose", "web", "--config", config, "--admin", &admin]);
    assert!(short.code == 69 && short.stderr.contains("name the service in full: NAMESPACE/NAME"), "{}", short.stderr);
}

#[test]
fn watch_says_what_it_needs() {
    let config = nothing_configured();
    let config = config.path().to_str().expect("UTF-8");
    let said = nodelb(&["watch", "--config", config]);
    assert_eq!((said.code, said.stdout.as_str()), (78, ""));
    assert!(said.stderr.contains("--kubeconfig"), "{}", said.stderr);
    let said = nodelb(&["watch", "--config", config, "--kubeconfig", "/nonexistent/kubeconfig"]);
    assert_eq!(said.code, 78, "{}", said.stderr);
    assert!(said.stderr.contains("/nonexistent/kubeconfig"), "{}", said.stderr);
}

/// A daemon that serves these rows on one connection and then waits until the client disconnects.
fn serving_rows(rows: &'static str) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let task = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let (mut asked, mut byte) = (Vec::new(), [0]);
        while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("a request") > 0 {
            asked.push(byte[0]);
        }
        let chunk = format!("{:x}\r\n{rows}\r\n", rows.len());
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all((head.to_owned() + &chunk).as_bytes()).expect("the client reads");
        let mut rest = Vec::new();
        // Ends when the client closes the connection.
        drop(stream.read_to_end(&mut rest));
    });
    (address, task)
}

#[test]
fn a_table_that_is_watched_ends_with_its_reader() {
    let events = [
        ("frontends", "{\"id\":0,\"event\":\"table\",\"data\":{\"frontends\":[]}}\n", "No frontends found.\n"),
        ("history", "{\"id\":0,\"event\":\"table\",\"data\":{\"history\":[]}}\n", "No changes found.\n"),
    ];
    for (command, event, first) in events {
        let (address, daemon) = serving_rows(event);
        let begun = std::time::Instant::now();
        let line = format!("{NODELB} {command} --watch --admin {address} | head -1");
        let mut shell = Command::new("timeout");
        let output = shell.args(["20", "sh", "-c", &line]).stdin(Stdio::null()).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), first);
        assert!(output.status.success() && output.stderr.is_empty(), "{command}: {output:?}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(15), "{command}: {:?}", begun.elapsed());
        daemon.join().expect("the client has left");
    }
}

/// A cluster with its server, and a configuration for a user with this role.
fn cluster_for(role: nodelb_apiserver::Role) -> (nodelb_apiserver::Replica, tempfile::TempDir) {
    serve(&nodelb_apiserver::Cluster::new().expect("a cluster"), role)
}

/// The server of the cluster, and a configuration for a user with this role.
fn serve(
    cluster: &nodelb_apiserver::Cluster,
    role: nodelb_apiserver::Role,
) -> (nodelb_apiserver::Replica, tempfile::TempDir) {
    cluster.allow("nodelb", role);
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("https://{}", listener.local_addr().expect("bound"));
    let replica = cluster.serve(listener, nodelb_apiserver::ServeOptions::default()).expect("served");
    let scratch = tempfile::tempdir().expect("a directory");
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, cluster.kubeconfig(&[&url]).expect("a kubeconfig")).expect("a file");
    let (services, state) = (scratch.path().join("services.d"), scratch.path().join("state"));
    let text = format!(
        "[files]\ndirectory = {services:?}\n[state]\ndirectory = {state:?}\n[kubernetes]\nkubeconfig = {kubeconfig:?}\n"
    );
    std::fs::write(scratch.path().join("nodelb.toml"), text).expect("a file");
    (replica, scratch)
}

#[test]
fn watch_without_permission_ends_and_says_what_to_ask() {
    let role = nodelb_apiserver::Role::node_proxier().without("endpointslices");
    let (_replica, scratch) = cluster_for(role);
    let config = scratch.path().join("nodelb.toml");
    let config = config.to_str().expect("UTF-8");
    let mut command = Command::new("timeout");
    command.args(["30", NODELB, "watch", "--config", config, "--admin", &unused_address()]);
    let output = command.stdin(Stdio::null()).output().expect("the binary starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(77), "{stdout}{stderr}");
    assert!(stderr.contains("kubectl auth can-i list endpointslices.discovery.k8s.io"), "{stderr}");
    assert_eq!(stdout.matches("# watching ").count(), 2, "a second look: {stdout}");
}

#[test]
fn a_secret_in_a_url_is_shown_nowhere() {
    let (_replica, scratch) = cluster_for(nodelb_apiserver::Role::node_proxier());
    let (config, kubeconfig) = (scratch.path().join("nodelb.toml"), scratch.path().join("kubeconfig"));
    std::fs::create_dir(scratch.path().join("services.d")).expect("a directory");
    let good = (std::fs::read_to_string(&config).expect("text"), std::fs::read_to_string(&kubeconfig).expect("text"));
    let check = || nodelb(&["check-config", "--config", config.to_str().expect("UTF-8")]);
    let is_silent = |said: &Finished, at: &str| {
        let all = format!("{}{}", said.stdout, said.stderr);
        assert!(!all.contains("hunter2") && all.contains(at), "{all}");
    };
    let with = |server: &str| good.1.replacen("server: ", server, 1);
    let said = check();
    assert_eq!(said.code, 0, "{}", said.stderr);
    std::fs::write(&kubeconfig, with("proxy-url: http://bob:hunter2@proxy:3128\n    server: ")).expect("written");
    let said = check();
    is_silent(&said, "@proxy:3128, which nodelb ignores");
    assert_eq!(said.code, 0, "{}", said.stderr);
    std::fs::write(&kubeconfig, with("server: https://bob:hunter2@192.0.2.1 #")).expect("written");
    let said = check();
    is_silent(&said, "@192.0.2.1");
    assert_eq!(said.code, 78);
    std::fs::write(&kubeconfig, &good.1).expect("written");
    std::fs::write(&config, format!("{}proxy = \"http://bob:hunter2@192.0.2.9:3128\"\n", good.0)).expect("written");
    let said = check();
    is_silent(&said, "@192.0.2.9:3128");
    assert_eq!(said.code, 78);
    let server = "apiserver = [{ address = \"https://bob:hunter2@192.0.2.9:6443\" }]";
    std::fs::write(&config, format!("{}{server}\n", good.0)).expect("written");
    let said = check();
    is_silent(&said, "@192.0.2.9:6443");
    assert_eq!(said.code, 78);
}

/// The output of `check-config` for this kubeconfig, run as a process of the unit with this
/// credentials directory, or by a user.
fn checked(kubeconfig: &str, directory: Option<&std::path::Path>) -> Output {
    let scratch = tempfile::tempdir().expect("a directory");
    let (config, services) = (scratch.path().join("nodelb.toml"), scratch.path().join("services.d"));
    std::fs::create_dir(&services).expect("a directory");
    let text = format!("[files]\ndirectory = {services:?}\n[kubernetes]\nkubeconfig = {kubeconfig:?}\n");
    std::fs::write(&config, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodelb"));
    command.arg("check-config").arg("--config").arg(&config).env_remove("CREDENTIALS_DIRECTORY");
    if let Some(directory) = directory {
        command.env("CREDENTIALS_DIRECTORY", directory);
    }
    command.output().expect("nodelb runs")
}

/// A start would not take the address from the current owner, but only one of the two services is
/// served.
#[test]
fn check_config_reports_address_conflicts_between_files_with_65() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (config, services) = (scratch.path().join("nodelb.toml"), scratch.path().join("services.d"));
    std::fs::create_dir(&services).expect("a directory");
    std::fs::write(&config, format!("[files]\ndirectory = {services:?}\n")).expect("a file");
    for (file, name) in [("shop.toml", "shop/web"), ("zz-new.toml", "aaa/thief")] {
        let text = format!("[[service]]\nname = {name:?}\nfrontends = [\"10.96.7.7:80\"]\nbackends = []\n");
        std::fs::write(services.join(file), text).expect("a file");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodelb"));
    let output = command.arg("check-config").arg("--config").arg(&config).output().expect("nodelb runs");
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    for part in ["address conflict", "10.96.7.7:80/TCP", "aaa/thief", "zz-new.toml", "shop/web", "shop.toml"] {
        assert!(output_text.contains(part), "{output_text}");
    }
}

#[test]
fn a_credential_is_checked_in_the_directory_that_systemd_provides() {
    const NAME: &str = "nodelb-test.kubeconfig";
    let kubeconfig = format!("credential:{NAME}");
    let by_hand = checked(&kubeconfig, None);
    let output_text = String::from_utf8_lossy(&by_hand.stdout);
    assert!(
        by_hand.status.success() && output_text.contains("not checked here") && output_text.contains(NAME),
        "{by_hand:?}"
    );

    let handed = tempfile::tempdir().expect("a directory");
    let missing = checked(&kubeconfig, Some(handed.path()));
    let output_text = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(78), "{missing:?}");
    assert!(output_text.contains(&format!("write it to /etc/credstore/{NAME}")), "{output_text}");

    std::fs::write(handed.path().join(NAME), "apiVersion: v1\nkind: Config\n").expect("a file");
    let bad = checked(&kubeconfig, Some(handed.path()));
    let output_text = String::from_utf8_lossy(&bad.stderr);
    assert!(bad.status.code() == Some(78) && output_text.contains("current-context is not set"), "{bad:?}");
}
