use nodelb_core::compile::select::Choice;
use nodelb_core::explain::rows::{BackendReport, FrontendReport, OutsideAccess, ServiceReport};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{BackendState, FrontendKind, ServiceName, Source, TrafficPolicy};
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};
use nodelb_core::state::status::Status;

use super::{backends, frontends, services};

#[path = "apiservers.rs"]
pub(in crate::admin) mod apiservers;

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

fn text(table: Table) -> String {
    Page::from(table).to_text()
}

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
        status: Status::Done,
        since: Moment(1_000),
        error: None,
    };
    let refused = FrontendReport {
        address: l4("[2001:db8::7]:53/UDP"),
        kind: FrontendKind::Static,
        port: "".into(),
        backends: (1..=7).map(|n| l4(&format!("10.1.0.{n}:80"))).collect(),
        flags: vec!["Affinity=10800s".into(), "Local".into()],
        status: Status::Error,
        error: Some("claimed by shop/web, which is older".into()),
        ..row.clone()
    };
    let text = text(frontends(vec![row, refused], Moment(261_000)));
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
    let heading = ["Address", "Type", "Service", "Port", "Backends", "Flags", "Outside", "Status", "Since", "Error"];
    assert_eq!(lines[0], heading);
    assert_eq!(
        lines[1],
        ["10.96.7.7:80/TCP", "ClusterIP", "shop/web", "http", "10.1.0.1:8080/TCP", "-", "Off", "Done", "4m20s", "-"]
    );
    let list = "10.1.0.1:80/TCP, 10.1.0.2:80/TCP, 10.1.0.3:80/TCP, 10.1.0.4:80/TCP, 10.1.0.5:80/TCP + 2 more";
    assert_eq!(lines[2][3..6], ["-", list, "Affinity=10800s, Local"]);
    assert_eq!(lines[2][9], "claimed by shop/web, which is older");
}

#[test]
fn a_service_and_a_backend_read_as_documented() {
    let service = ServiceReport {
        service: ServiceName::new("shop", "web"),
        source: Source::Files,
        origin: "/etc/nodelb/services.d/shop.toml".into(),
        ports: vec!["http=80/TCP".into()],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        affinity_seconds: Some(10_800),
        frontends: 2,
        outside: OutsideAccess::Off,
        backends: 3,
        selectable: 1,
        status: Status::Held,
        error: None,
    };
    let expected = "\
Service   Source  Ports        Internal-Policy  External-Policy  Affinity  Frontends  Outside  Backends  Selectable  Status  Origin                            Error
shop/web  files   http=80/TCP  Cluster          Local            10800     2          Off      3         1           Held    /etc/nodelb/services.d/shop.toml  -
";
    assert_eq!(text(services(vec![service])), expected);
    let backend = BackendReport {
        address: l4("10.1.0.1:8080"),
        service: ServiceName::new("shop", "web"),
        port: "http".into(),
        state: BackendState::Terminating,
        weight: 3,
        node: "".into(),
        zone: "a".into(),
        choice: Choice::NotHinted,
        origin: "shop.toml".into(),
        reason: None,
    };
    let expected = "\
Address            Service   Port  State        Weight  Node  Zone  Choice     Origin     Reason
10.1.0.1:8080/TCP  shop/web  http  Terminating  3       -     a     NotHinted  shop.toml  -
";
    assert_eq!(text(backends(vec![backend])), expected);
}

#[test]
fn fifty_thousand_rows_are_quick() {
    static FRONTENDS: Schema<[Column; 3]> = Schema {
        name: "frontends",
        columns: [Column::text("Address"), Column::list("Backends"), Column::age("Since")],
    };
    let rows = (0..50_000u32).map(|n| {
        [
            Cell::text(&format!("10.0.{n}.1:80/TCP")),
            Cell::list([format!("10.1.0.{n}:8080/TCP")]),
            Cell::Age(u64::from(n)),
        ]
    });
    let page = Page::from(Table::new(&FRONTENDS, rows));
    let start = std::time::Instant::now();
    let (text, json) = (page.to_text(), page.to_json().unwrap());
    assert_eq!(text.lines().count(), 50_001);
    assert!(json.len() > 50_000);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}
