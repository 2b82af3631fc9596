use super::{CounterRow, Counters, Rates};
use crate::output::table::Style;
use crate::time::Time;

fn counters(rows: &[(&str, &str, u64, Option<u64>, u64)]) -> Counters {
    let row = |&(service, port, inside, outside, refused): &(&str, &str, u64, Option<u64>, u64)| CounterRow {
        service: service.into(),
        port: port.into(),
        inside,
        outside,
        refused,
    };
    Counters { is_counting: true, started: 0, counters: rows.iter().map(row).collect() }
}

fn rates(before: &Counters, after: &Counters, is_by_port: bool) -> Vec<(String, Option<String>, f64, f64, u64)> {
    let rates = Rates::between(before, after, (Time(0), 2.0), is_by_port).rates.into_iter();
    rates.map(|row| (row.service, row.port, row.per_second, row.refused, row.total)).collect()
}

#[test]
fn the_busiest_service_comes_first_and_its_ports_are_added_up() {
    let before = counters(&[("shop/api", "TCP/IPv4", 100, None, 0), ("shop/web", "http/TCP/IPv4", 10, Some(5), 0)]);
    let after = counters(&[
        ("shop/api", "TCP/IPv4", 103, None, 1),
        ("shop/web", "http/TCP/IPv4", 20, Some(15), 0),
        ("shop/web", "https/TCP/IPv4", 4, None, 0),
    ]);
    let services = [("shop/web".into(), None, 12.0, 0.0, 39), ("shop/api".into(), None, 1.5, 0.5, 104)];
    assert_eq!(rates(&before, &after, false), services);
    let ports: Vec<_> = rates(&before, &after, true).into_iter().filter_map(|row| Some((row.1?, row.2))).collect();
    assert_eq!(ports, [("http/TCP/IPv4".into(), 10.0), ("TCP/IPv4".into(), 1.5), ("https/TCP/IPv4".into(), 2.0)]);
    let outside = Rates::between(&before, &after, (Time(0), 2.0), false).rates;
    assert_eq!(outside.iter().map(|row| row.outside).collect::<Vec<_>>(), [Some(5.0), None]);
}

#[test]
fn a_count_that_began_again_is_no_negative_rate() {
    let before = counters(&[("shop/web", "TCP/IPv4", 1_000, None, 7)]);
    let after = counters(&[("shop/web", "TCP/IPv4", 6, None, 0)]);
    assert_eq!(rates(&before, &after, false), [("shop/web".into(), None, 3.0, 0.0, 6)]);
    let at_once = Rates::between(&before, &after, (Time(0), 0.0), false);
    assert_eq!(at_once.rates[0].per_second, 0.0);
}

/// Once, `-0.0 connections per second`.
#[test]
fn nothing_is_zero() {
    let text = Rates::between(&counters(&[]), &counters(&[]), (Time(0), 1.0), false).busiest(9, &Style::default());
    assert!(text.contains("  0.0 connections per second, 0.0 refused"), "{text}");
}

/// Once, the total of a service was 0, of which every connection is refused.
#[test]
fn the_total_includes_refused_connections() {
    let now = counters(&[("shop/web", "TCP/IPv4", 0, None, 315)]);
    assert_eq!(rates(&now, &now, false), [("shop/web".into(), None, 0.0, 0.0, 315)]);
}

#[test]
fn the_summary_is_that_of_all_services_although_few_are_shown() {
    let before = counters(&[]);
    let after = counters(&[("shop/api", "TCP/IPv4", 3, None, 1), ("shop/web", "TCP/IPv4", 20, None, 0)]);
    let text = Rates::between(&before, &after, (Time(0), 2.0), false).busiest(1, &Style::default());
    assert!(text.contains("11.5 connections per second, 0.5 refused"), "{text}");
    assert!(text.contains("shop/web") && !text.contains("shop/api"), "{text}");
}
