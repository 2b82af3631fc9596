use std::sync::Arc;

use crate::explain::summary::ObjectCounts;
use crate::output::table::Style;
use crate::problems::{Problem, Reason, Severity};
use crate::rows::Answer;
use crate::status_report::{ApiserverSummary, ChangeSummary, Kernel, SourceSummary, StatusReport};
use crate::time::Time;
use nodelb_core::history::{Event, Record, What};
use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{Origin, PortKey};
use nodelb_core::source_report::SourceState;
use nodelb_core::state::status::Status;

const NOW: u64 = 1_764_000_000_000;

fn report(problems: Vec<Problem>) -> StatusReport {
    StatusReport {
        node: "node-7".into(),
        version: "0.1.0".into(),
        time: Time(NOW),
        uptime_seconds: 540,
        ready: true,
        kernel: Some(Kernel { release: "6.18.44".into(), missing_features: Vec::new() }),
        checks: Vec::new(),
        problems,
        counts: ObjectCounts {
            services: 3,
            services_by_status: [(Status::Ok, 2), (Status::NoBackends, 1)].into(),
            frontends: 4,
            ..ObjectCounts::default()
        },
        apiserver: None,
        sources: Vec::new(),
        changes: Vec::new(),
    }
}

fn problem(object: &str) -> Problem {
    Problem {
        severity: Severity::Critical,
        reason: Reason::NoBackends,
        object: object.into(),
        since: Some(Time(NOW - 3_000)),
        cause: "no usable backend: EndpointSlice shop/web emptied by bob (resourceVersion 15)".into(),
        command: format!("nodelb diagnose {object}"),
        blocks_readiness: false,
        services: Vec::new(),
        shared: None,
    }
}

#[test]
fn without_problems_it_says_so() {
    let text = report(Vec::new()).text(Time(NOW), &Style::default());
    assert_eq!(
        text,
        "node-7  nodelb 0.1.0  up 9m  READY  kernel 6.18.44 (all features)\n\
         No problems found.\n\
         services 3 (2 OK, 1 NoBackends)   frontends 4   backends 0\n\
         sources ok\n"
    );
}

/// "No services yet" stood there although the last one had just been removed.
#[test]
fn without_services_it_says_where_they_come_from() {
    let counts = ObjectCounts::default();
    let none = StatusReport { counts, ..report(Vec::new()) }.text(Time(NOW), &Style::default());
    assert!(none.contains("No problems found.\nNo services: add a file to files.directory"), "{none}");
    assert!(!report(Vec::new()).text(Time(NOW), &Style::default()).contains("No services"));
}

/// A label selector with a typing error left nothing, and everything was said to be well.
#[test]
fn a_selection_that_selects_nothing_is_named() {
    let text = |state, services, selection: Option<&str>| {
        let source =
            |source: &str, services| SourceSummary { source: source.into(), path: "services".into(), state, services };
        let apiserver = ApiserverSummary { selection: selection.map(str::to_owned), ..ApiserverSummary::default() };
        let sources = vec![source("files", 3), source("kubernetes", services), source("kubernetes", 0)];
        let report = StatusReport { apiserver: Some(apiserver), sources, ..report(vec![problem("shop/web")]) };
        report.text(Time(NOW), &Style::default())
    };
    let keys = "kubernetes.label-selector = team=shopp";
    let named = format!("\nNo Kubernetes services: {keys} selects no Service that nodelb serves; ");
    let nothing = text(SourceState::Ok, 0, Some(keys));
    assert!(nothing.contains(&named), "{nothing}");
    assert!(!text(SourceState::Ok, 1, Some(keys)).contains("selects no Service"));
    assert!(!text(SourceState::Ok, 0, None).contains("selects no Service"), "an empty cluster");
    assert!(!text(SourceState::Error, 0, Some(keys)).contains("selects no Service"), "nothing was listed yet");
}

#[test]
fn lines_fit_and_the_first_problem_comes_first() {
    let report = report(vec![problem("shop/web"), problem("shop/other")]);
    for width in [80, 100] {
        let style = Style { width: Some(width), ..Style::default() };
        let text = report.text(Time(NOW), &style);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert!(text.lines().nth(2).is_some_and(|line| line.starts_with("  CRITICAL  shop/web")), "{text}");
        assert!(text.contains("nodelb diagnose shop/other"), "{text}");
    }
}

/// Causes were wrapped in a narrow column, and the next command stood anywhere (C1 of the operators' findings).
#[test]
fn a_problem_is_one_line_and_what_does_not_fit_stands_below() {
    let text = |cause: &str, width| {
        let report = report(vec![Problem { cause: cause.into(), ..problem("shop/web") }]);
        let text = report.text(Time(NOW), &Style { width: Some(width), ..Style::default() });
        let lines = text.lines().skip(2).take_while(|line| line.starts_with("  "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let start = "  CRITICAL  shop/web  3s     ";
    assert_eq!(text("all is lost", 80), [format!("{start}all is lost  nodelb diagnose shop/web")]);
    let cause = "all is lost: a firewall drops the packets; nothing else is known of it at all";
    assert_eq!(
        text(cause, 80),
        [
            format!("{start}all is lost: a firewall drops the packets"),
            "            nothing else is known of it at all  nodelb diagnose shop/web".to_owned(),
        ]
    );
    let long = "a sentence without any pause that is longer than the room of eighty columns allows";
    assert_eq!(
        text(long, 80),
        [
            format!("{start}a sentence without any pause that is longer than"),
            "            the room of eighty columns allows  nodelb diagnose shop/web".to_owned(),
        ]
    );
}

#[test]
fn a_pipe_gets_one_line_for_each_problem() {
    let problems: Vec<Problem> = (0..30).map(|number| problem(&format!("shop/web-{number}"))).collect();
    let wide = report(problems.clone()).text(Time(NOW), &Style::default());
    assert_eq!(wide.matches("emptied by bob").count(), 30);
    assert!(wide.contains("(resourceVersion 15)  nodelb diagnose shop/web-29\n"), "{wide}");
    let narrow = report(problems).text(Time(NOW), &Style { width: Some(100), ..Style::default() });
    assert!(narrow.contains("and 20 more: nodelb status -o wide"), "{narrow}");
}

#[test]
fn a_change_does_not_repeat_a_problem() {
    let change = ChangeSummary {
        time: Time(NOW - 3_000),
        service: Some("shop/web".into()),
        services: Vec::new(),
        change: What::Refused,
        added: Vec::new(),
        removed: Vec::new(),
        object: None,
        resource_version: None,
        writer: None,
        detail: Some("198.51.100.1:80/TCP: it is an address of this node".into()),
    };
    let known = Problem { cause: "198.51.100.1:80/TCP: it is an address of this node".into(), ..problem("shop/web") };
    let report = StatusReport { changes: vec![change], ..report(vec![known]) };
    let narrow = report.text(Time(NOW), &Style { width: Some(100), ..Style::default() });
    assert!(narrow.ends_with("Refused     see above\n"), "{narrow}");
    let pipe = report.text(Time(NOW), &Style::default());
    assert!(pipe.ends_with("it is an address of this node\n"), "{pipe}");
}

#[test]
fn names_cannot_send_commands_to_the_terminal() {
    let hostile = Problem { cause: "\u{1b}[2J\u{202e}".into(), ..problem("a\u{1b}]0;x\u{7}") };
    let text = report(vec![hostile]).text(Time(NOW), &Style { width: Some(80), colour: false, ..Style::default() });
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}') && !text.contains('\u{7}'), "{text:?}");
}

/// A dead host filled the last changes with one service after the other (C1 of the operators' findings).
#[test]
fn what_happens_to_several_services_at_once_is_one_change() {
    let record = |at: u64, service: &str, object: &str| {
        let key = PortKey {
            service: service.parse().unwrap(),
            port: "".into(),
            protocol: Protocol::Tcp,
            family: Family::Ipv4,
        };
        let origin = Origin { object: object.into(), ..Origin::default() };
        let cause = Cause { origin, ..Cause::default() };
        Record {
            sequence: at,
            at,
            to_owner: None,
            to_kernel: None,
            is_from_before: false,
            event: Event::for_port(&Arc::new(key), None, What::LastResort, cause),
        }
    };
    let dead = "health checks (192.0.2.1:80: connection refused)";
    let mut records: Vec<Record> = (0..54).map(|n| record(9_000 - n, &format!("shop/web-{n}"), dead)).collect();
    records.push(record(8_900, "shop/other", "health checks (192.0.2.2:80: connection refused)"));
    records.push(record(8_000, "shop/first", dead));
    records.push(record(7_000, "shop/early", dead));
    let latest = ChangeSummary::latest(records.iter());
    let shown: Vec<(Option<&str>, usize)> =
        latest.iter().map(|it| (it.service.as_deref(), it.services.len())).collect();
    assert_eq!(shown, [(Some("shop/web-0"), 55), (Some("shop/other"), 0), (Some("shop/early"), 0)]);
    let text = StatusReport { changes: latest, ..report(Vec::new()) }.text(Time(NOW), &Style::default());
    assert!(text.contains("55 services  LastResort"), "{text}");
}
