//! Systems that are broken in one way each: `nodelb status` shows the problem, the command that it recommends runs and
//! names the cause, and what the remedy says ends the problem.

use std::fs;

use nix::sys::signal::Signal;
use nodelb_prober::{Backend, Transport};
use serde_json::Value;

use crate::host::{Daemon, Host, connect, eventually, say, service, socket};
use crate::network::ip;
use crate::sandbox;
use crate::without_daemon::nodelb;

/// The exit code for a command line that nodelb does not understand.
const USAGE: i32 = 64;
const BACKEND: &str = "192.0.2.11:8080";
const OTHER: &str = "192.0.2.12:8080";
const SOCKET: &str = "/run/nodelb-test/nodelb.sock";
const CHECK: &str = "[service.health-check]\ntype = \"tcp\"\ninterval = \"100ms\"\nrise = 1\nfall = 1\n";

struct Broken<'a> {
    host: &'a Host,
    daemon: Option<Daemon>,
    backend: Option<Backend>,
}

type Step = fn(&mut Broken<'_>);

/// A failure: its reason and object in `nodelb status`, how it comes, a word of what the recommended command prints, and
/// the remedy.
struct Failure {
    reason: &'static str,
    object: &'static str,
    begin: Step,
    shown: &'static str,
    remedy: Step,
}

const FAILURES: [Failure; 11] = [
    Failure {
        reason: "FileNotServed",
        object: "web.toml",
        begin: |broken| broken.host.serve("web.toml", "[[service]\nname = \"shop/web\"\n"),
        shown: "line 1",
        remedy: |broken| broken.web(&[BACKEND], ""),
    },
    Failure {
        reason: "SourceFailing",
        object: "services.d",
        begin: |broken| fs::rename(broken.host.path("services.d"), broken.host.path("moved")).unwrap(),
        shown: "services.d",
        remedy: |broken| fs::rename(broken.host.path("moved"), broken.host.path("services.d")).unwrap(),
    },
    Failure {
        reason: "NoBackends",
        object: "shop/web",
        begin: |broken| broken.host.serve("web.toml", &service("shop/web", &["198.51.100.10:80"], &[])),
        shown: "web.toml",
        remedy: |broken| broken.web(&[BACKEND], ""),
    },
    Failure {
        reason: "Conflict",
        object: "shop/rival",
        begin: |broken| broken.another("shop/rival", "198.51.100.10:80"),
        shown: "shop/web",
        remedy: |broken| broken.another("shop/rival", "198.51.100.11:80"),
    },
    Failure {
        reason: "Refused",
        object: "shop/own",
        begin: |broken| broken.another("shop/own", "198.51.100.200:80"),
        shown: "another address",
        remedy: |broken| broken.another("shop/own", "198.51.100.11:80"),
    },
    Failure {
        reason: "ReconcileFailing",
        object: "shop/many",
        begin: |broken| {
            let frontends: Vec<String> = (1..40).map(|number| format!("198.51.100.{}:81", 20 + number)).collect();
            let frontends: Vec<&str> = frontends.iter().map(String::as_str).collect();
            broken.host.serve("more.toml", &service("shop/many", &frontends, &[BACKEND]));
        },
        shown: "is full",
        remedy: |broken| {
            configure(broken.host, "256");
            broken.restart();
        },
    },
    Failure {
        reason: "LastResort",
        object: "shop/web",
        begin: |broken| {
            broken.web(&[BACKEND], CHECK);
            broken.backend = None;
        },
        shown: "Quarantined",
        remedy: |broken| broken.start_backend(),
    },
    Failure {
        reason: "BackendsQuarantined",
        object: "shop/web",
        begin: |broken| broken.web(&[BACKEND, OTHER], CHECK),
        shown: OTHER,
        remedy: |broken| broken.web(&[BACKEND], ""),
    },
    Failure {
        reason: "BackendsDrained",
        object: "shop/web",
        begin: |broken| {
            broken.web(&[BACKEND, OTHER], "");
            eventually("the drain", || broken.run(&format!("drain shop/web {OTHER} --admin {SOCKET}")).0 == 0);
        },
        shown: "drained",
        remedy: |broken| assert_eq!(broken.run(&format!("undrain shop/web {OTHER} --admin {SOCKET}")).0, 0),
    },
    Failure {
        reason: "ConfigRefused",
        object: "configuration",
        begin: |broken| {
            configure(broken.host, "\"many\"");
            broken.reload();
        },
        shown: "max-frontends",
        remedy: |broken| {
            configure(broken.host, "256");
            broken.reload();
        },
    },
    Failure {
        reason: "RestartPending",
        object: "configuration",
        begin: |broken| {
            configure(broken.host, "512");
            broken.reload();
        },
        shown: "",
        remedy: |broken| broken.restart(),
    },
];

fn configure(host: &Host, max_frontends: &str) {
    host.configure(&format!("max-frontends = {max_frontends}\n[admin]\nsocket = {SOCKET:?}"));
}

impl Broken<'_> {
    /// The service that every failure concerns; `more` are further lines of it.
    fn web(&self, backends: &[&str], more: &str) {
        let text = service("shop/web", &["198.51.100.10:80"], backends);
        self.host.serve("web.toml", &format!("{text}{more}"));
    }

    fn another(&self, name: &str, frontend: &str) {
        self.host.serve("more.toml", &service(name, &[frontend], &[BACKEND]));
    }

    fn start_backend(&mut self) {
        self.backend = Some(Backend::start("1", &[(Transport::Tcp, socket(BACKEND))]).unwrap());
    }

    fn reload(&self) {
        self.daemon.as_ref().unwrap().signal(Signal::SIGHUP);
    }

    fn restart(&mut self) {
        self.daemon.take().unwrap().stop();
        self.daemon = Some(self.host.start());
    }

    /// The exit code of a command, and everything that it prints.
    fn run(&self, line: &str) -> (i32, String) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = nodelb(self.host, &words);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// The problem in `nodelb status`.
    fn problem(&self, reason: &str, object: &str) -> Option<Value> {
        let status: Value = serde_json::from_str(&self.run("status -o json").1).unwrap();
        let problems = status["problems"].as_array().unwrap().iter();
        problems.filter(|it| it["reason"] == reason).find(|it| it["object"] == object).cloned()
    }

    /// Runs the commands of nodelb in a text that it printed, and returns their number.
    fn run_printed(&self, text: &str) -> usize {
        let mut count = 0;
        for (start, _) in text.match_indices("nodelb ") {
            let line = text[start..].lines().next().unwrap_or_default();
            let line = line.split(['`', ':', ';', ',', ')']).next().unwrap_or_default();
            let is_lead = ["`", "run ", "see ", "$ ", "-> "].iter().any(|lead| text[..start].ends_with(lead));
            if is_lead && !line.contains("undrain") {
                let (code, printed) = self.run(line.trim_start_matches("nodelb "));
                assert!(code != USAGE, "{line}, which nodelb printed: {printed}\n{text}");
                count += 1;
            }
        }
        count
    }
}

#[test]
fn every_remedy_ends_its_problem() {
    sandbox::run("remedies::every_remedy_ends_its_problem", |sandbox| {
        let host = Host::new(sandbox);
        configure(&host, "20");
        ip(&["address", "add", "198.51.100.200/32", "dev", "lo"]);
        let mut broken = Broken { host: &host, daemon: None, backend: None };
        broken.start_backend();
        broken.web(&[BACKEND], "");
        broken.daemon = Some(host.start());
        let mut commands = 0;
        for failure in &FAILURES {
            let Failure { reason, object, .. } = failure;
            say(&format!("{reason} of {object}"));
            (failure.begin)(&mut broken);
            eventually(reason, || broken.problem(reason, object).is_some());
            let problem = broken.problem(reason, object).unwrap();
            let (code, status) = broken.run("status");
            assert!(code == 1 || problem["severity"] == "notice" && code == 0, "{status}");
            let command = problem["command"].as_str().unwrap();
            assert!(status.contains(command), "{status}");
            if let Some(line) = command.strip_prefix("nodelb ") {
                let (code, printed) = broken.run(line);
                assert!(code != USAGE && printed.contains(failure.shown), "{command}: {code} {printed}");
                commands += 1 + broken.run_printed(&printed);
            }
            if object.starts_with("shop/") {
                commands += broken.run_printed(&broken.run(&format!("diagnose {object}")).1);
            }
            (failure.remedy)(&mut broken);
            eventually("the end of the problem", || broken.problem(reason, object).is_none());
            host.serve("more.toml", "# none\n");
            broken.web(&[BACKEND], "");
            eventually("a node without problems", || broken.run("status").0 == 0);
            eventually("the service", || connect("198.51.100.10:80", Transport::Tcp, 20).failures() == 0);
        }
        assert!(commands > FAILURES.len(), "only {commands} commands were printed");
    });
}
