use super::{Cell, Column, Schema, Style, Table, sections};
use crate::time::Time;

static THINGS: Schema = Schema {
    name: "things",
    columns: &[
        Column::text("Name"),
        Column::list("Backends"),
        Column::number("Node-Count"),
        Column::age("Since"),
        Column::text("Error"),
    ],
};

/// The text of a table with these rows.
fn text<const N: usize>(schema: &'static Schema, rows: &[[Cell<'_>; N]], style: &Style) -> String {
    table(schema, rows, style).to_text()
}

fn table<const N: usize>(schema: &'static Schema, rows: &[[Cell<'_>; N]], style: &Style) -> Table {
    let mut table = Table::new(schema, style);
    rows.iter().for_each(|row| table.push(row));
    table
}

fn sample() -> String {
    text(
        &THINGS,
        &[
            [
                Cell::Text("shop/web".into()),
                Cell::List((1..=7).map(|n| format!("10.1.0.{n}:80/TCP")).collect()),
                Cell::Number(3),
                Cell::Since { time: Time(1_000), now: Time(261_000) },
                Cell::None,
            ],
            [
                Cell::Text("".into()),
                Cell::Addresses(&[]),
                Cell::Number(0),
                Cell::Since { time: Time(9_000), now: Time(0) },
                Cell::Text("map full".into()),
            ],
        ],
        &Style::default(),
    )
}

#[test]
fn text_is_aligned_and_has_a_dash_for_nothing() {
    let expected = "\
Name      Backends                                                                                             Node-Count  Since  Error
shop/web  10.1.0.1:80/TCP, 10.1.0.2:80/TCP, 10.1.0.3:80/TCP, 10.1.0.4:80/TCP, 10.1.0.5:80/TCP, 10.1.0.6:80/TCP, 10.1.0.7:80/TCP  3           4m20s  -
-         -                                                                                                    0           0s     map full
";
    // The wide column is easier to read above than to count, so this compares without runs of spaces and then checks
    // the alignment.
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = sample();
    assert_eq!(squeeze(&text), squeeze(expected));
    let columns: Vec<usize> = text.lines().zip(["Since", "4m20s", "0s"]).filter_map(|(l, w)| l.find(w)).collect();
    assert_eq!(columns.len(), 3);
    assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
}

#[test]
fn columns_without_a_value_are_left_out_unless_all_are_requested() {
    static T: Schema = Schema { name: "t", columns: &[Column::text("A"), Column::text("B"), Column::text("C").wide()] };
    let rows = [
        [Cell::Text("x".into()), Cell::None, Cell::Text("z".into())],
        [Cell::Text("y".into()), Cell::Text("".into()), Cell::None],
    ];
    assert_eq!(text(&T, &rows, &Style::default()), "A\nx\ny\n");
    let wide = Style { wide: true, ..Style::default() };
    assert_eq!(text(&T, &rows, &wide), "A  B  C\nx  -  z\ny  -  -\n");
    let stream = Style { is_stream: true, ..Style::default() };
    assert_eq!(text(&T, &rows, &stream), "A  B\nx  -\ny  -\n");
}

#[test]
fn a_column_is_left_out_if_every_row_has_a_usual_word() {
    static T: Schema = Schema {
        name: "t",
        columns: &[Column::name("A"), Column::exceptions("B", &["yes", "no", "off"], &["no", "off"])],
    };
    let shown = |words: [&'static str; 2], style: &Style| {
        text(&T, &words.map(|word| [Cell::Text("x".into()), Cell::Text(word.into())]), style)
    };
    assert_eq!(shown(["no", "no"], &Style::default()), "A\nx\nx\n");
    assert_eq!(shown(["no", "yes"], &Style::default()), "A  B\nx  no\nx  yes\n");
    let wide = Style { wide: true, ..Style::default() };
    assert_eq!(shown(["no", "no"], &wide), "A  B\nx  no\nx  no\n");
}

#[test]
fn a_time_is_an_age_or_a_time_of_day() {
    static T: Schema = Schema { name: "t", columns: &[Column::age("Age")] };
    let rows = [[Cell::Since { time: Time(1_764_000_000_000), now: Time(1_764_000_260_000) }]];
    assert_eq!(text(&T, &rows, &Style::default()), "Age\n4m20s\n");
    let wide = Style { wide: true, ..Style::default() };
    assert_eq!(text(&T, &rows, &wide), "Age\n2025-11-24T16:00:00.000Z\n");
}

#[test]
fn several_tables_have_headings() {
    static FIRST: Schema = Schema { name: "first", columns: &[Column::flag("A")] };
    static SECOND: Schema = Schema { name: "second", columns: &[Column::flag("A")] };
    let tables = [&FIRST, &SECOND].map(|schema| table(schema, &[[Cell::Flag(true)]], &Style::default()));
    assert_eq!(sections(&tables), "first:\nA\nyes\n\nsecond:\nA\nyes\n");
}

#[test]
fn control_characters_never_reach_the_terminal() {
    static T: Schema = Schema { name: "t", columns: &[Column::text("A")] };
    let rows = [[Cell::Text("x\u{1b}[31m\ny\u{9b}é".into())]];
    assert_eq!(text(&T, &rows, &Style::default()), "A\nx\\u{1b}[31m\\ny\\u{9b}é\n");
}

#[test]
fn an_empty_table_still_shows_its_columns() {
    static T: Schema = Schema { name: "t", columns: &[Column::text("A"), Column::text("B")] };
    assert_eq!(Table::new(&T, &Style::default()).to_text(), "A  B\n");
}
