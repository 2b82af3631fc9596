//! The text of each command that shows tables, at 80 and 120 columns and in a pipe, with 5 and with 10,000 services, as
//! files in `golden/`. The rows are those of the routes, and the command line renders them with the same code. `UPDATE=1`
//! rewrites the files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nodelb_core::history::{Event, History, Kernel, Stamp, What};
use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{Origin, PortKey, Source};
use nodelb_core::output::table::Style;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::state::kernel_check::Content as MapContent;
use tokio::sync::watch;

use super::fixture::{always, kubernetes, owner, unsynced};
use super::query::Query;
use super::routes::{Content, ROUTES};
use super::state::{AdminState, Now};
use super::tables::tests::apiservers::report;
use crate::datapath::fake::FakeDatapath;
use crate::generated::is_update;
use crate::reconcile;
use crate::recorder;
use crate::status::{Check, Health};
use crate::world::{self, World};

/// The time of every answer, in seconds since 1970.
const UNIX: u64 = 1_795_000_000;

/// The name of a file, and the request behind the command.
const COMMANDS: [(&str, &str); 12] = [
    ("status", "/status"),
    ("services", "/services"),
    ("frontends", "/frontends"),
    ("backends", "/backends"),
    ("trace", "/trace?to=10.96.0.1:80"),
    ("history", "/history"),
    ("diff", "/diff"),
    ("maps", "/maps"),
    ("sources", "/sources"),
    ("apiservers", "/apiservers"),
    ("config", "/config"),
    ("counters", "/counters"),
];

/// The outputs: the heading in the file, and the width that the command line uses: at most 100 on a terminal.
const OUTPUTS: [(&str, Option<usize>); 3] =
    [("a terminal of 80 columns", Some(80)), ("a terminal of 120 columns", Some(100)), ("a pipe", None)];

/// The number of lines of a long output that are compared, at its start and its end.
const HEAD: usize = 8;
const TAIL: usize = 2;
/// The maximum length of a line in a file.
const LONGEST: usize = 240;

fn state(services: u32) -> AdminState {
    let world = World::new(services);
    let snapshot = world.engine.snapshot(world.now);
    let realised = snapshot.realised.clone();
    let content = move || Ok(MapContent { state: realised.clone(), ..MapContent::default() });
    let now = Now { moment: world.now, unix: UNIX };
    let health = Health { heartbeat: world.now, checks: vec![Check::passed("links", "10 links")] };
    AdminState {
        owner: reconcile::Published { health: always(health), ..owner(always(snapshot)) },
        datapath: Arc::new(FakeDatapath {
            content: Box::new(content),
            limits: world::LIMITS,
            ..FakeDatapath::default()
        }),
        kubernetes: Some(kubernetes(report())),
        recorder: recorder::Published { history: watch::channel(Arc::new(history())).1, ..unsynced().recorder },
        files: always(vec![source()]),
        clock: Arc::new(move || now),
        ..unsynced()
    }
}

fn source() -> SourceReport {
    SourceReport {
        source: Source::Files,
        path: "/etc/nodelb/services.d/shop.toml".into(),
        state: SourceState::LastGood,
        services: 3,
        slices: 3,
        problems: vec!["/etc/nodelb/services.d/shop.toml:3: service shop/web: unknown key `backend`".into()],
        since: UNIX - 90,
        kind: None,
        notices: Vec::new(),
        last_received: None,
    }
}

fn history() -> History {
    let mut history = History::default();
    let key = PortKey {
        service: "production/service-00001".parse().unwrap(),
        port: "http".into(),
        protocol: Protocol::Tcp,
        family: Family::Ipv4,
    };
    let origin = Origin {
        object: "EndpointSlice production/service-00001-x7k2p".into(),
        resource_version: "15".into(),
        writer: "kube-controller-manager".into(),
        ..Origin::default()
    };
    let address = |text: &str| -> L4Addr { text.parse().unwrap() };
    let event =
        Event::for_port(&Arc::new(key), Some(Source::Kubernetes), What::Changed, Cause { origin, is_removed: false });
    let added = (1..=7).map(|number| address(&format!("10.1.0.{number}:8080"))).collect();
    let event =
        Event { added, removed: [address("10.1.1.1:8080")].into_iter().collect(), kernel: Kernel::Done, ..event };
    history.add(Event::for_daemon(What::Started, "nodelb 0.1.0"), Stamp { at: (UNIX - 600) * 1_000, to_kernel: 0 });
    history.add(event, Stamp { at: (UNIX - 60) * 1_000, to_kernel: 350 });
    history
}

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
    if lines.len() <= 40 {
        out.extend(lines.iter().map(shown));
    } else {
        out.extend(lines[..HEAD].iter().map(shown));
        out.push_str("[...]\n");
        out.extend(lines[lines.len() - TAIL..].iter().map(shown));
    }
    out
}

fn compare(services: u32) {
    let state = state(services);
    let mut problems = Vec::new();
    for (name, target) in COMMANDS {
        let mut found = String::new();
        for (heading, width) in OUTPUTS {
            let text = text(&state, target, &Style { width, ..Style::default() });
            problems.extend(problem(&text, width).map(|what| format!("{name}, {heading}: {what}")));
            found.push_str(&format!("== {heading} {}", sample(&text)));
        }
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/admin/tests/golden/{name}-{services}.txt"));
        if is_update() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &found).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap();
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
        None => (text.contains('…') || text.contains(" more")).then(|| "shortened".into()),
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
