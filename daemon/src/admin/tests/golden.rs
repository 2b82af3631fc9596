//! The text of each command that shows tables or findings, at 80 and 120 columns and in a pipe, with 5 and with 10,000 services, as
//! files in `golden/`. The rows are those of the routes, and the command line renders them with the same code. `UPDATE=1`
//! rewrites the files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nodelb_cli::DiagnoseOptions;
use nodelb_cli::answer::Format;
use nodelb_cli::client::At;
use nodelb_cli::diagnose::{Readers, examine};
use nodelb_cli::endpoints::Endpoints;
use nodelb_kube::api::scope::Selection;
use nodelb_report::output::table::Style;
use nodelb_report::rows::{Answer, Diagnosis, Rates};
use nodelb_report::time::Time;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use self::state::{UNIX, state};
use super::query::Query;
use super::route::Content;
use super::routes::ROUTES;
use super::state::AdminState;
use super::{counters, serve};
use crate::admin::without_daemon;
use crate::generated::is_update;
use crate::http::Listener;
use crate::world;

#[path = "golden/state.rs"]
mod state;

/// The name of a file, and the request behind the command.
const REQUESTS: [(&str, &str); 16] = [
    ("status", "/status"),
    ("services", "/services"),
    ("frontends", "/frontends"),
    ("backends", "/backends"),
    ("trace", "/trace?to=10.96.0.1:80"),
    ("history", "/history"),
    ("diff", "/diff"),
    ("maps", "/maps"),
    ("sources", "/sources"),
    ("dns", "/dns"),
    ("apiservers", "/apiservers"),
    ("devices", "/devices"),
    ("connections", "/connections"),
    ("drops", "/drops"),
    ("config", "/config"),
    ("counters", "/counters"),
];

/// The commands that send several requests, or not only to the daemon. The files have their names.
const OTHERS: [&str; 2] = ["top", "diagnose"];

/// The services of `nodelb diagnose`: one that does not get its address, one with a refused backend, and one that does
/// not exist.
const DIAGNOSED: [&str; 3] = ["production/service-00002", "production/service-00003", "production/service-0001"];

/// The commands without a table: their output depends on the width only in its line ends; tests/README.md names their
/// tests.
const WITHOUT_TABLE: [&str; 11] = [
    "run",
    "check-config",
    "watch",
    "drain",
    "undrain",
    "accept",
    "cleanup",
    "metrics",
    "version",
    "completions",
    "reaper",
];

/// The outputs: the heading in the file, and the width that the command line uses: at most 100 on a terminal.
const OUTPUTS: [(&str, Option<usize>); 5] = [
    ("a terminal of 80 columns", Some(80)),
    ("a terminal of 100 columns", Some(100)),
    ("a terminal of 120 columns", Some(120)),
    ("a terminal of 200 columns", Some(200)),
    ("a pipe", None),
];

/// The maximum number of lines of an output that is compared as a whole.
const WHOLE: usize = 80;
/// The number of lines of a long output that are compared, at its start and its end.
const HEAD: usize = 8;
const TAIL: usize = 2;
/// The maximum length of a line in a file.
const LONGEST: usize = 240;

/// The text of the answer to a request in this style.
fn text(state: &AdminState, target: &str, style: &Style) -> String {
    let path = target.split('?').next().unwrap();
    let route = ROUTES.iter().find(|route| route.path == path).unwrap();
    let query = Query::parse(&target.parse().unwrap(), &route.takes()).unwrap();
    let (_, content) = (route.answer)(state, &query, (state.clock)()).unwrap();
    let Content::Data(data) = content else { panic!("{target} has no tables") };
    data.text(style)
}

/// The part of a long output that is compared, with its length and its width.
fn sample(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
    let shown = |line: &&str| match line.chars().count() {
        length if length > LONGEST => {
            format!("{}[and {} characters]\n", line.chars().take(LONGEST).collect::<String>(), length - LONGEST)
        }
        _ => format!("{line}\n"),
    };
    let mut out = format!("({} lines, {width} columns)\n", lines.len());
    if lines.len() <= WHOLE {
        out.extend(lines.iter().map(shown));
    } else {
        out.extend(lines[..HEAD].iter().map(shown));
        out.push_str("[...]\n");
        out.extend(lines[lines.len() - TAIL..].iter().map(shown));
    }
    out
}

/// The text of `nodelb top` after two counts, half a minute apart.
fn top(state: &AdminState, style: &Style) -> String {
    let after = counters::counters(state, &Default::default());
    let less = |count: u64| count - count / 10;
    let mut before = after.clone();
    for row in &mut before.counters {
        (row.inside, row.outside, row.refused) = (less(row.inside), row.outside.map(less), less(row.refused));
    }
    let rates = Rates::between(&before, &after, (Time(UNIX * 1_000), 30.0), false);
    rates.busiest(usize::MAX, style)
}

/// What `nodelb diagnose` finds out about services from this daemon.
fn diagnoses(state: AdminState) -> Vec<Diagnosis> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (sender, listeners) = mpsc::channel(1);
        sender.try_send(Listener::Unix(UnixListener::bind(&path).unwrap())).map_err(drop).unwrap();
        tokio::spawn(serve(listeners, state, std::future::pending()));
        let (settings, selection) = (None, Selection::default());
        let endpoints = Endpoints { admin: vec![At::Unix(path)], settings, selection, node: "node-7".into() };
        let readers =
            Readers { peer: |_, _, _| Ok(None), stored: without_daemon::open, forward_drops: || Ok(Vec::new()) };
        let mut found = Vec::new();
        for service in DIAGNOSED {
            let options = DiagnoseOptions {
                service: service.into(),
                output: Format::Text,
                color: Default::default(),
                verbose: false,
                connection: Default::default(),
                no_connect: true,
            };
            let (service, now) = (service.parse().unwrap(), Time(UNIX * 1_000));
            let examined = examine(&service, &options, &endpoints, readers, now);
            found.push(Box::pin(examined).await);
        }
        found
    })
}

fn compare(services: u32) {
    let state = state(services);
    let diagnoses = diagnoses(state.clone());
    let mut problems = Vec::new();
    for (name, target) in REQUESTS.into_iter().chain(OTHERS.map(|name| (name, ""))) {
        let mut found = String::new();
        for (heading, width) in OUTPUTS {
            let style = Style { width, ..Style::default() };
            let text = match name {
                "top" => top(&state, &style),
                "diagnose" => diagnoses.iter().map(|it| it.text(it.time, &style)).collect::<Vec<_>>().join("\n"),
                _ => text(&state, target, &style),
            };
            problems.extend(problem(&text, width).map(|what| format!("{name}, {heading}: {what}")));
            found.push_str(&format!("== {heading} {}", sample(&text)));
        }
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/admin/tests/golden/{name}-{services}.txt"));
        if is_update() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &found).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        assert!(found == expected, "{} differs: run this test with UPDATE=1\n{found}", file.display());
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// What is wrong with the text: tables on a terminal fit, and in a pipe, nothing is shortened.
fn problem(text: &str, width: Option<usize>) -> Option<String> {
    match width {
        Some(width) => {
            let wide = text.lines().find(|line| line.chars().count() > width);
            wide.map(|line| format!("wider than {width}: {line}"))
        }
        // A finding that follows from another one is hidden at any width.
        None => (text.contains('…') || text.replace(" more finding", "").contains(" more")).then(|| "shortened".into()),
    }
}

#[test]
fn five_services_read_as_recorded() {
    compare(5);
}

#[test]
fn ten_thousand_services_read_as_recorded() {
    compare(10_000);
}

#[test]
fn every_command_has_files_or_no_table() {
    let files = REQUESTS.iter().map(|(name, _)| *name).chain(OTHERS);
    let known: BTreeSet<&str> = files.filter(|name| *name != "counters").chain(WITHOUT_TABLE).collect();
    let command = nodelb_cli::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let commands: BTreeSet<&str> = names.filter(|name| *name != "help").collect();
    assert_eq!(known, commands);
}

/// `nodelb frontends | grep ADDRESS` finds each backend.
#[test]
fn a_pipe_contains_every_backend() {
    let services = 10_000;
    let state = state(services);
    let text = text(&state, "/frontends", &Style::default());
    let mut found: Vec<&str> = text.split([' ', ',', '\n']).filter(|word| word.ends_with(":8080/TCP")).collect();
    found.sort_unstable();
    let refused = 3;
    for number in (0..services).filter(|number| ![2, refused].contains(number)) {
        for backend in world::backends(number) {
            let address = format!("{backend}:8080/TCP");
            assert!(found.binary_search(&address.as_str()).is_ok(), "{address} of service {number}");
        }
    }
}
