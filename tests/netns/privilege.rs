//! The privileges of nodelb, and its messages when one is missing.

use std::fs;
use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};

use nodelb_datapath::features::{OPTIONAL, Optional};

use crate::host::{Host, answering, backend, eventually, get, is_served_by, service};
use crate::sandbox;

#[test]
fn no_capability_is_left_after_the_start() {
    sandbox::run("privilege::no_capability_is_left_after_the_start", |sandbox| {
        let host = Host::new(sandbox);
        let _backend = backend("1", "192.0.2.11:8080");
        let daemon = host.start();
        for task in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
            let status = match fs::read_to_string(task.unwrap().path().join("status")) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue, // A thread that has ended since.
                status => status.unwrap(),
            };
            for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
                let line = status.lines().find(|line| line.starts_with(set)).unwrap();
                assert!(line.ends_with("\t0000000000000000"), "{line}");
            }
        }
        host.serve("a.toml", &service("shop/web", &["198.51.100.10:80"], &["192.0.2.11:8080"]));
        eventually("it works without any", || is_served_by("198.51.100.10:80/TCP", &["192.0.2.11:8080/TCP"]));
    });
}

/// Each row of the table is reported as present or as missing, with the consequence.
#[test]
fn kernel_features_are_reported() {
    sandbox::run("privilege::kernel_features_are_reported", |sandbox| {
        let host = Host::new(sandbox);
        let _daemon = host.start();
        let status = get("/status").unwrap();
        let missing = status["kernel"]["missing_features"].as_array().unwrap();
        let log = host.log();
        let line = log.lines().find(|line| line.contains("optional features: ")).unwrap();
        assert!(line.contains(status["kernel"]["release"].as_str().unwrap()), "{line}");
        for Optional { name, without, .. } in OPTIONAL {
            assert!(line.contains(name), "{name}: {line}");
            let is_missing = line.contains(&format!("): {without}"));
            let is_shown = missing.iter().any(|it| it.as_str().is_some_and(|it| it.starts_with(name)));
            assert_eq!(is_missing, is_shown, "{name}: {line}");
        }
        let says = line;
        // These tests rely on both: protected NodePorts, and no capabilities.
        assert!(!says.contains("are not protected") && !says.contains("keeps CAP_BPF"), "{says}");
    });
}

#[test]
fn the_memory_datapath_needs_no_privilege() {
    sandbox::run("privilege::the_memory_datapath_needs_no_privilege", |sandbox| {
        let host = Host::new(sandbox);
        host.serve("a.toml", &service("shop/web", &["198.51.100.10:80"], &["192.0.2.11:8080"]));
        // Other users may not have access to the build directory.
        let binary = host.path("nodelb");
        fs::copy(env!("CARGO_BIN_EXE_nodelb"), &binary).unwrap();
        let mut command = sandbox::program("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]).arg(binary);
        let mut daemon = host.launch(command, &["--datapath=memory"]);
        assert!(daemon.wait_ready(), "{}", host.log());
        // The kernel does not tell such a user whether a file of root is open for writing, so that it is read twice.
        eventually("the service", || is_served_by("198.51.100.10:80/TCP", &["192.0.2.11:8080/TCP"]));
        assert!(host.nothing_pinned());
        daemon.stop();
    });
}

#[test]
fn says_what_is_missing_where_bpf_may_not_be_loaded() {
    sandbox::run("privilege::says_what_is_missing_where_bpf_may_not_be_loaded", |sandbox| {
        let host = Host::new(sandbox);
        let everything_but_bpf = "--bounding-set=-bpf,-sys_admin,-perfmon,-net_admin";
        let mut command = sandbox::program("setpriv");
        command.args([everything_but_bpf, "--inh-caps=-all", env!("CARGO_BIN_EXE_nodelb")]);
        let status = host.launch(command, &[]).wait();
        assert_eq!(status.code(), Some(77), "{}", host.log());
        for missing in ["CAP_BPF", "CAP_NET_ADMIN"] {
            host.assert_logged(missing);
        }
        assert!(host.nothing_pinned());
    });
}

#[test]
fn what_is_short_ends_it_with_a_code_that_systemd_tries_again() {
    sandbox::run("privilege::what_is_short_ends_it_with_a_code_that_systemd_tries_again", |sandbox| {
        let unit = include_str!("../../contrib/systemd/nodelb.service");
        let lasting = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).unwrap();
        let lasting: Vec<i32> = lasting.split(' ').map(|code| code.parse().unwrap()).collect();
        assert!(lasting.contains(&77), "{lasting:?}");
        let host = Host::new(sandbox);
        for descriptors in 10..=34 {
            let mut command = sandbox::program("prlimit");
            command.arg(format!("--nofile={descriptors}")).arg(env!("CARGO_BIN_EXE_nodelb"));
            let code = host.launch(command, &[]).wait().code();
            assert!(code.is_some_and(|code| code != 0 && !lasting.contains(&code)), "{code:?}: {}", host.log());
        }
        host.start().stop();
    });
}

#[test]
fn a_cgroup_without_nodelb_is_refused_before_anything_is_attached() {
    sandbox::run("privilege::a_cgroup_without_nodelb_is_refused_before_anything_is_attached", |sandbox| {
        let host = Host::new(sandbox);
        let other = sandbox.cgroup.join("other");
        fs::create_dir(&other).unwrap();
        let text = fs::read_to_string(host.path("nodelb.toml")).unwrap();
        host.write("nodelb.toml", &text.replace(&format!("{:?}", sandbox.cgroup), &format!("{other:?}")));
        assert_eq!(host.spawn(None).wait().code(), Some(78), "{}", host.log());
        assert!(host.log().contains("does not contain nodelb, which is in"), "{}", host.log());
        assert!(!host.pins.exists());
        let checked = Command::new(env!("CARGO_BIN_EXE_nodelb"))
            .args(["check-config", "--config"])
            .arg(host.path("nodelb.toml"))
            .output()
            .unwrap();
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(said.contains("note: datapath.cgroup: nodelb starts only in"), "{said}");
    });
}

#[test]
fn programs_of_another_pin_directory_are_reported_at_start() {
    sandbox::run("privilege::programs_of_another_pin_directory_are_reported_at_start", |sandbox| {
        let mut host = Host::new(sandbox);
        host.start().stop();
        host.start().stop();
        assert!(!host.log().contains("attached to"), "its own links: {}", host.log());
        let others = sandbox.bpffs.join("others");
        fs::create_dir(&others).unwrap();
        let before = std::mem::replace(&mut host.pins, others.join("nodelb2"));
        host.configure("");
        host.start().stop();
        let warning = format!("programs pinned in {} are also attached to", before.display());
        host.assert_logged_times(&warning, 1);
        host.cleanup();
        host.pins = before;
        host.configure("");
        host.start().stop();
        host.assert_logged_times("are also attached to", 1);
    });
}

/// The check `canary` of `/status`, as `failed: DETAIL`.
fn canary() -> Option<String> {
    let status = get("/status")?;
    let row = status["checks"].as_array().unwrap().iter().find(|row| row["check"] == "canary")?;
    let result = if row["passed"] == true { "ok" } else { "failed" };
    Some(format!("{result}: {}", row["detail"].as_str()?))
}

fn nodelb(host: &Host, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodelb"));
    command.args(arguments).arg("--config").arg(host.path("nodelb.toml")).stdin(Stdio::null());
    command.output().unwrap()
}

/// Runs a command that `/readyz` recommends, with more options, and waits until every check passes; returns its output.
fn run_remedy(host: &Host, arguments: &[&str], more: &[&str]) -> String {
    let command = format!("nodelb {}", arguments.join(" "));
    let is_reported =
        || canary().is_some_and(|says| says.starts_with("failed: programs of another") && says.contains(&command));
    eventually(&command, is_reported);
    assert!(get("/readyz").is_none(), "not ready as long as it lasts");
    let output = nodelb(host, &[arguments, more].concat());
    assert!(output.status.success(), "{output:?}");
    eventually("ready again", || get("/readyz").is_some());
    String::from_utf8(output.stdout).unwrap()
}

/// After a start with another pin directory, or with a bpffs mounted on it, the old programs run first and use their
/// old maps forever. The self-test reports it, and the command that it recommends detaches them while the daemon runs.
#[test]
fn old_programs_are_reported_until_the_command_detaches_them() {
    sandbox::run("privilege::old_programs_are_reported_until_the_command_detaches_them", |sandbox| {
        const SERVICE: &str = "198.51.100.10:80";
        let mut host = Host::new(sandbox);
        let _backends =
            [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080"), backend("3", "192.0.2.13:8080")];
        let serve = |host: &Host, at: &str| host.serve("a.toml", &service("shop/web", &[SERVICE], &[at]));
        serve(&host, "192.0.2.11:8080");
        host.start().stop();

        let before = std::mem::replace(&mut host.pins, sandbox.bpffs.join("nodelb2"));
        host.configure("");
        serve(&host, "192.0.2.12:8080");
        let daemon = host.start();
        assert_eq!(answering(SERVICE), ["1"], "the old programs are in effect");
        run_remedy(&host, &["cleanup", "--pin-directory", before.to_str().unwrap()], &[]);
        assert_eq!(answering(SERVICE), ["2"]);
        daemon.stop();

        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&sandbox.bpffs).status().unwrap();
        assert!(mounted.success());
        serve(&host, "192.0.2.13:8080");
        let daemon = host.start();
        assert_eq!(answering(SERVICE), ["2"], "the old programs are in effect");
        let asked = nodelb(&host, &["cleanup", "--hidden"]);
        assert_eq!(asked.status.code(), Some(64), "without a terminal to ask on: {asked:?}");
        assert_eq!(answering(SERVICE), ["2"], "nothing was detached");
        let said = run_remedy(&host, &["cleanup", "--hidden"], &["--yes"]);
        assert!(said.contains("detached 10 links"), "{said}");
        assert_eq!(answering(SERVICE), ["3"]);
        daemon.stop();
    });
}
