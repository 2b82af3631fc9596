use nodelb_core::compile::select::Choice;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{BackendState, FrontendKind, ServiceName};
use nodelb_core::state::status::Status;
use nodelb_report::explain::rows::{BackendReport, FrontendReport, OutsideAccess};
use nodelb_report::output::table::Style;
use nodelb_report::rows::{
    Answer, BackendRow, Backends, CheckResult, FrontendRow, Frontends, Micros, ServiceRow, Services,
};
use nodelb_report::time::{Clocks, Time};

#[path = "apiservers.rs"]
pub(in crate::admin) mod apiservers;

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// The wide form, which has every column.
fn text(answer: &impl Answer) -> String {
    answer.text(CLOCKS.time, &Style { wide: true, ..Style::default() })
}

const CLOCKS: Clocks = Clocks { moment: Moment(261_000), time: Time(1_764_000_260_000) };

#[test]
fn a_frontend_reads_as_documented() {
    let row = FrontendReport {
        address: l4("10.96.7.7:80"),
        kind: FrontendKind::ClusterIP,
        service: ServiceName::new("shop", "web"),
        port: "http".into(),
        backends: vec![l4("10.1.0.1:8080")],
        flags: Vec::new(),
        outside: OutsideAccess::Off,
        status: Status::Ok,
        since: Moment(1_000),
        error: None,
    };
    let refused = FrontendReport {
        address: l4("[2001:db8::7]:53/UDP"),
        kind: FrontendKind::Static,
        port: "".into(),
        backends: (1..=7).map(|n| l4(&format!("10.1.0.{n}:80"))).collect(),
        flags: vec!["Affinity=10800s".into(), "Local".into()],
        status: Status::Refused,
        error: Some("claimed by shop/web, which is older".into()),
        ..row.clone()
    };
    let frontends = [row, refused].into_iter().map(|row| FrontendRow::new(row, CLOCKS)).collect();
    let text = text(&Frontends { frontends });
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
    let heading = ["Address", "Type", "Service", "Port", "Backends", "Flags", "Outside", "Status", "Since", "Error"];
    assert_eq!(lines[0], heading);
    assert_eq!(
        lines[1],
        [
            "10.96.7.7:80/TCP",
            "ClusterIP",
            "shop/web",
            "http",
            "10.1.0.1:8080/TCP",
            "-",
            "Off",
            "OK",
            "2025-11-24T16:00:00.000Z",
            "-"
        ]
    );
    let list = "10.1.0.1:80/TCP, 10.1.0.2:80/TCP, 10.1.0.3:80/TCP, 10.1.0.4:80/TCP, 10.1.0.5:80/TCP, 10.1.0.6:80/TCP, \
                10.1.0.7:80/TCP";
    assert_eq!(lines[2][3..6], ["-", list, "Affinity=10800s, Local"]);
    assert_eq!(lines[2][9], "claimed by shop/web, which is older");
}

#[test]
fn a_service_and_a_backend_read_as_documented() {
    let service = ServiceRow {
        service: Some("shop/web".into()),
        source: "files".into(),
        origin: Some("/etc/nodelb/services.d/shop.toml".into()),
        ports: vec!["http=80/TCP".into()],
        internal_policy: "Cluster".into(),
        external_policy: "Local".into(),
        affinity: Some(10_800),
        forward: Some("direct".into()),
        frontends: 2,
        outside: "Off".into(),
        backends: 3,
        selectable: 1,
        status: Status::Held,
        error: None,
    };
    let expected = "\
Service   Source  Ports        Internal-Policy  External-Policy  Affinity  Forward  Frontends  Outside  Backends  Selectable  Status  Origin                            Error
shop/web  files   http=80/TCP  Cluster          Local            10800     direct   2          Off      3         1           Held    /etc/nodelb/services.d/shop.toml  -
";
    assert_eq!(text(&Services { services: vec![service] }), expected);
    let backend = BackendReport {
        address: l4("10.1.0.1:8080"),
        service: ServiceName::new("shop", "web"),
        port: "http".into(),
        state: BackendState::Terminating,
        weight: 3,
        node: "".into(),
        zone: "a".into(),
        is_drained: false,
        choice: Choice::NotHinted,
        origin: "shop.toml".into(),
        reason: None,
    };
    let expected = "\
Address            Service   Port  State        Weight  Node  Zone  Choice     Origin     Reason  Check   Checked                   Latency
10.1.0.1:8080/TCP  shop/web  http  Terminating  3       -     a     NotHinted  shop.toml  -       Passed  2025-11-24T16:04:17.000Z  1.2ms
";
    let last = CheckResult { result: "Passed".into(), time: Time(CLOCKS.time.0 - 3_000), latency: Micros(1_200) };
    let row = BackendRow::from(backend).with(last);
    assert_eq!(text(&Backends { backends: vec![row] }), expected);
}

#[test]
fn fifty_thousand_rows_are_quick() {
    let row = |n: u32| FrontendRow {
        address: l4(&format!("10.{}.{}.1:80", n / 250, n % 250)),
        kind: Some("ClusterIP".into()),
        service: Some("shop/web".into()),
        port: None,
        backends: vec![l4("10.1.0.1:8080")],
        flags: Vec::new(),
        outside: "Off".into(),
        status: Status::Ok,
        since: Some(CLOCKS.time),
        error: None,
    };
    let answer = Frontends { frontends: (0..50_000).map(row).collect() };
    let start = std::time::Instant::now();
    let (text, json) = (text(&answer), serde_json::to_string(&answer).unwrap());
    assert_eq!(text.lines().count(), 50_001);
    assert!(json.len() > 50_000);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}
