use serde_json::{Value, json};

use super::{Answer, DiffAnswer, DifferenceRow, FrontendRow, Frontends, HistoryAnswer, HistoryRow, Micros, Row};
use crate::output::table::Style;
use crate::time::Time;

const NOW: Time = Time(1_764_000_260_000);

fn frontend() -> Value {
    json!({
        "address": "10.96.7.7:80/TCP", "type": "ClusterIP", "service": "shop/web", "port": null,
        "backends": ["10.1.0.1:8080/TCP"], "flags": [], "outside": "Off", "status": "OK", "since": "2025-11-24T16:00:00.000Z",
        "error": null,
    })
}

/// The keys of the JSON form are those of the columns, and the schema has them, too.
#[test]
fn a_row_is_data_and_a_line() {
    let row: FrontendRow = serde_json::from_value(frontend()).unwrap();
    assert_eq!(serde_json::to_value(&row).unwrap(), frontend());
    assert_eq!(row.cells(NOW).len(), FrontendRow::schema().columns.len());
    let answer = Frontends { frontends: vec![row] };
    let text = answer.text(NOW, &Style::default());
    let expected = "\
Address           Type       Service   Backends           Status  Since
10.96.7.7:80/TCP  ClusterIP  shop/web  10.1.0.1:8080/TCP  OK      4m20s
";
    assert_eq!(text, expected);
    let schema = serde_json::to_value(schemars::schema_for!(FrontendRow)).unwrap();
    for key in frontend().as_object().unwrap().keys() {
        assert!(schema["properties"][key].is_object(), "{key} in {schema:#}");
    }
    assert_eq!(schema["properties"]["since"]["format"], "date-time");
}

#[test]
fn no_rows_say_so() {
    let text = Frontends { frontends: Vec::new() }.text(NOW, &Style::default());
    assert_eq!(text, "No frontends found.\n");
}

#[test]
fn durations_survive_json() {
    let json = serde_json::to_string(&Micros(350)).unwrap();
    assert_eq!((json.as_str(), serde_json::from_str::<Micros>(&json).unwrap()), ("0.00035", Micros(350)));
}

#[test]
fn a_change_fits_in_a_short_line_and_has_every_column_in_the_wide_form() {
    let row = json!({
        "sequence": 7, "time": "2025-11-24T16:04:17.000Z", "service": "shop/web", "port": "http/TCP/IPv4",
        "what": "Emptied", "object": "EndpointSlice shop/web-x", "resource_version": "15", "generation": null,
        "writer": "bob", "written": null, "added": [], "removed": ["10.1.0.1:80/TCP", "10.1.0.2:80/TCP"], "held": [],
        "refused": [], "frontends": [], "withdrawn": [], "to_nodelb": null, "to_kernel": 0.00035, "kernel": "done",
        "source": "kubernetes", "detail": null,
    });
    let row: HistoryRow = serde_json::from_value(row).unwrap();
    let answer = HistoryAnswer { history: vec![row.clone()] };
    let expected = "\
Age  Service   Change   Backends                            Applied  Cause
3s   shop/web  Emptied  -10.1.0.1:80/TCP, -10.1.0.2:80/TCP  350us    EndpointSlice shop/web-x, rv 15, bob
";
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeeze(&answer.text(NOW, &Style::default())), squeeze(expected));
    let narrow = answer.text(NOW, &Style { width: Some(80), ..Style::default() });
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    let wide = answer.text(NOW, &Style { wide: true, ..Style::default() });
    assert!(wide.contains("Sequence") && wide.contains("2025-11-24T16:04:17.000Z"), "{wide}");
    let withdrawn = vec!["198.51.100.1:80/TCP".parse().unwrap()];
    let moved = HistoryRow { frontends: withdrawn.clone(), withdrawn, writer: None, ..row };
    let text = HistoryAnswer { history: vec![moved] }.text(NOW, &Style::default());
    assert!(text.contains("rv 15, 198.51.100.1:80/TCP, no longer has 198.51.100.1:80/TCP"), "{text}");
}

/// A dead host filled the history with a row for each of its services (C1 of the operators' findings).
#[test]
fn what_happens_to_several_services_at_once_is_one_row_of_a_terminal() {
    let change = |service: &str, time: &str, detail: &str| -> HistoryRow {
        serde_json::from_value(json!({
            "sequence": 7, "time": format!("2025-11-24T16:04:{time}Z"), "service": service, "port": "http/TCP/IPv4",
            "what": "LastResort", "object": null, "resource_version": null, "generation": null, "writer": null,
            "written": null, "added": [], "removed": [], "held": [], "refused": [], "frontends": [], "withdrawn": [],
            "to_nodelb": null, "to_kernel": 0.00035, "kernel": "done", "source": "files", "detail": detail,
        }))
        .unwrap()
    };
    let history = vec![
        change("shop/a", "10.000", "no answer"),
        change("shop/other", "10.100", "refused"),
        change("shop/b", "10.200", "no answer"),
        change("shop/c", "10.900", "no answer"),
        change("shop/d", "10.950", "no answer"),
        change("shop/a", "10.960", "no answer"),
        change("shop/e", "11.970", "no answer"),
    ];
    let text = |style| HistoryAnswer { history: history.clone() }.text(NOW, &style);
    let narrow = text(Style { width: Some(120), ..Style::default() });
    let expected = "\
Age  Service     Change      Applied  Cause
10s  4 services  LastResort  350us    no answer: shop/a, shop/b, shop/c and 1 more
9s   shop/other  LastResort  350us    refused
9s   shop/a      LastResort  350us    no answer
8s   shop/e      LastResort  350us    no answer
";
    assert_eq!(narrow, expected);
    let whole = |style: Style| text(style).matches("shop/").count();
    assert_eq!(whole(Style::default()), 7, "a pipe gets every change");
    assert_eq!(whole(Style { width: Some(120), wide: true, ..Style::default() }), 7);
}

#[test]
fn a_removed_service_is_described_with_its_cause() {
    let row = |object: Option<&str>, version: Option<&str>, writer: Option<&str>| {
        let row = json!({
            "sequence": 7, "time": "2025-11-24T16:04:17.000Z", "service": "shop/web", "port": "http/TCP/IPv4",
            "what": "Removed", "object": object, "resource_version": version, "generation": null, "writer": writer,
            "written": null, "added": [], "removed": [], "held": [], "refused": [], "frontends": [], "withdrawn": [],
            "to_nodelb": null, "to_kernel": null, "kernel": "done", "source": null, "detail": null,
        });
        serde_json::from_value::<HistoryRow>(row).unwrap()
    };
    let said = |object, version, writer| row(object, version, writer).removal().unwrap_or_default();
    let file = "its entry in /etc/nodelb/services.d/shop.toml was removed";
    assert_eq!(said(Some("/etc/nodelb/services.d/shop.toml (removed)"), None, None), file);
    let deleted = "Service shop/web was deleted (resourceVersion 15)";
    assert_eq!(said(Some("Service shop/web (removed)"), Some("15"), None), deleted);
    let changed = "Service shop/web changed (resourceVersion 16, written by kubectl)";
    assert_eq!(said(Some("Service shop/web"), Some("16"), Some("kubectl")), changed);
    assert_eq!(said(None, None, None), "");
    let gone = row(None, None, None).gone(NOW);
    assert_eq!(gone, "the service shop/web was removed 3s ago");
}

#[test]
fn differences_are_blocks_that_fit() {
    let row = DifferenceRow {
        between: "memory/kernel".into(),
        what: "10.96.7.7:80/TCP".into(),
        service: Some("shop/web".into()),
        source: None,
        memory: Some("10.1.0.1:80/TCP ".repeat(20).trim_end().into()),
        kernel: Some("absent".into()),
        likely_cause: "another process removed it".into(),
        what_happens: "written again within 120 s".into(),
    };
    let compared = super::ComparedRow { services: 1, frontends: 2 };
    let answer = DiffAnswer { differences: vec![row], compared, whole: true };
    let text = answer.text(NOW, &Style { width: Some(80), ..Style::default() });
    assert!(text.starts_with("10.96.7.7:80/TCP  shop/web  (memory/kernel)\n  memory  10.1.0.1:80/TCP"), "{text}");
    assert!(text.contains("  cause   another process removed it\n  next    written again"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let none = DiffAnswer { differences: Vec::new(), ..answer };
    assert_eq!(
        none.text(NOW, &Style::default()),
        "source, memory and kernel agree: 1 service, 2 frontends; compared just now\n"
    );
}
