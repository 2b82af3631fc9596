use nodelb_core::state::status::Status;

use super::Style;
use crate::output::schema::{Column, Schema};
use crate::output::table::{Cell, Table};
use crate::rows::{FrontendRow, table};
use crate::time::Time;

static THINGS: Schema = Schema {
    name: "things",
    columns: &[
        Column::name("Address"),
        Column::list("Backends"),
        Column::one_of("Status", &["OK", "Conflict"]),
        Column::age("Since"),
        Column::text("Error"),
    ],
};

fn text<const N: usize>(schema: &'static Schema, rows: &[[Cell<'_>; N]], style: &Style) -> String {
    let mut table = Table::new(schema, style);
    rows.iter().for_each(|row| table.push(row));
    table.to_text()
}

fn sample(style: &Style) -> String {
    let list = |last: u32| Cell::List((1..=last).map(|n| format!("10.1.0.{n}:8080/TCP")).collect());
    let age = |millis: u64| Cell::Since { time: Time(0), now: Time(millis) };
    let rows = [
        [
            Cell::Text("[2001:db8:1234:5678::7]:443/TCP".into()),
            list(7),
            Cell::Text("Conflict".into()),
            age(5_000),
            Cell::Text("claimed by shop/web, which is older; takes over when that goes".into()),
        ],
        [Cell::Text("10.96.7.7:80/TCP".into()), list(1), Cell::Text("OK".into()), age(0), Cell::None],
    ];
    text(&THINGS, &rows, style)
}

fn styled(width: usize, wide: bool, colour: bool) -> String {
    sample(&Style { width: Some(width), wide, is_stream: false, colour, zone: None })
}

#[test]
fn a_table_that_fits_is_unchanged() {
    assert_eq!(styled(10_000, true, false), sample(&Style { wide: true, ..Style::default() }));
}

#[test]
fn a_narrow_terminal_shortens_lists_and_puts_the_last_words_below() {
    let expected = "\
Address                          Backends          Status    Since
[2001:db8:1234:5678::7]:443/TCP  10.1.0.1:8080/T…  Conflict  5s
    Error: claimed by shop/web, which is older; takes over when
    that goes
10.96.7.7:80/TCP                 10.1.0.1:8080/T…  OK        0s
";
    assert_eq!(styled(66, false, false), expected);
}

#[test]
fn the_last_column_continues_in_its_row_if_there_is_room() {
    static TRACE: Schema = Schema { name: "trace", columns: &[Column::name("Step"), Column::text("Finding")] };
    let finding = "connect4; nodelb's own sockets are excluded there, and no others";
    let rows = [[Cell::Text("hook".into()), Cell::Text(finding.into())]];
    let text = text(&TRACE, &rows, &Style { width: Some(50), ..Style::default() });
    let expected = "\
Step  Finding
hook  connect4; nodelb's own sockets are excluded
      there, and no others
";
    assert_eq!(text, expected);
}

#[test]
fn no_terminal_is_narrow_enough_to_cut_an_address() {
    for width in 1..200 {
        let text = styled(width, false, false);
        assert!(text.contains("[2001:db8:1234:5678::7]:443/TCP"), "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let error = "claimed by shop/web, which is older; takes over when that goes";
        let is_there = |word: &str| words.iter().any(|it| it.trim_end_matches(';') == word.trim_end_matches(';'));
        assert!(error.split(' ').all(is_there), "{text}");
    }
    for width in 40..200 {
        assert!(styled(width, false, false).lines().all(|line| line.chars().count() <= width), "{width}");
    }
}

/// Once, tables with long names were wider than a terminal of 80 columns, which broke lines within words.
#[test]
fn rows_that_do_not_fit_are_paragraphs() {
    static NAMES: Schema = Schema {
        name: "names",
        columns: &[Column::name("A"), Column::name("B"), Column::name("C"), Column::name("D")],
    };
    let rows = [["aaaaaaaaaa", "bbbbbbbbbb", "", "dddddddddd"].map(|text| Cell::Text(text.into()))];
    let found = text(&NAMES, &rows, &Style { width: Some(30), ..Style::default() });
    assert_eq!(found, "aaaaaaaaaa\n    B: bbbbbbbbbb;\n    D: dddddddddd\n");
}

#[test]
fn long_names_and_addresses_of_ipv6_fit_terminals_of_every_width() {
    let address = |number: u16| format!("[2001:db8:1234:5678:9abc:def0:1234:{number:x}]:30443/TCP").parse().unwrap();
    let row = FrontendRow {
        address: address(0xffff),
        kind: Some("LoadBalancer".into()),
        service: Some("a-namespace-with-a-long-name/a-service-with-a-name-that-is-longer-still".into()),
        port: Some("https-metrics".into()),
        backends: (1..9).map(|number| address(number + 0x1000)).collect(),
        flags: vec!["Affinity=10800s".into(), "Local".into()],
        outside: "NodeOnly".into(),
        status: Status::Conflict,
        since: Some(Time(0)),
        error: Some("claimed by another service, which is older; takes over when that goes".into()),
    };
    for width in [80, 100, 120, 200] {
        let text = table(std::slice::from_ref(&row), Time(1_000), &Style { width: Some(width), ..Style::default() });
        let text = text.to_text();
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
        assert!(text.contains(&row.address.to_string()) && text.contains(row.service.as_ref().unwrap()), "{text}");
    }
}

#[test]
fn wide_shows_everything_on_one_line_each() {
    let text = styled(40, true, false);
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("10.1.0.7:8080/TCP") && !text.contains("more"), "{text}");
}

#[test]
fn colour_is_on_the_word_and_nothing_else() {
    let text = styled(66, false, true);
    assert!(
        text.contains("\u{1b}[31mConflict\u{1b}[0m  5s") && text.contains("\u{1b}[32mOK\u{1b}[0m        0s"),
        "{text}"
    );
    let bare: String = text.replace("\u{1b}[31m", "").replace("\u{1b}[32m", "").replace("\u{1b}[0m", "");
    assert_eq!(bare, styled(66, false, false));
}

#[test]
fn columns_without_room_are_left_out_from_the_last_on() {
    static NAMES: Schema = Schema {
        name: "names",
        columns: &[Column::name("A"), Column::name("B").spare(), Column::name("C").spare(), Column::name("D")],
    };
    let rows = [["aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc", "dddddddddd"].map(|text| Cell::Text(text.into()))];
    let headings = |width: usize| {
        let text = text(&NAMES, &rows, &Style { width: Some(width), ..Style::default() });
        text.lines().next().unwrap().split_whitespace().collect::<String>()
    };
    assert_eq!([46, 45, 34, 33, 22].map(headings), ["ABCD", "ABD", "ABD", "AD", "AD"]);
    let wide = text(&NAMES, &rows, &Style { width: Some(1), wide: true, ..Style::default() });
    assert!(wide.starts_with("A           B"), "{wide}");
}
