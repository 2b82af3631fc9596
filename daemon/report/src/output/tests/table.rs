use super::{Cell, Column, Page, Schema, Style, Table};
use crate::time::Time;
use nodelb_core::model::moment::Moment;

static THINGS: Schema<[Column; 5]> = Schema {
    name: "things",
    columns: [
        Column::text("Name"),
        Column::list("Backends"),
        Column::number("Node-Count"),
        Column::age("Since"),
        Column::text("Error"),
    ],
};

fn sample() -> Table<'static> {
    Table::new(
        &THINGS,
        [
            [
                Cell::text("shop/web"),
                Cell::list((1..=7).map(|n| format!("10.1.0.{n}:80/TCP"))),
                Cell::Number(3),
                Cell::age(Moment(1_000), Moment(261_000)),
                Cell::None,
            ],
            [
                Cell::text(""),
                Cell::list([""; 0]),
                Cell::count(0),
                Cell::age(Moment(9_000), Moment(0)),
                Cell::text("map full"),
            ],
        ],
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
    let text = Page::from(sample()).to_text();
    assert_eq!(squeeze(&text), squeeze(expected));
    let columns: Vec<usize> = text.lines().zip(["Since", "4m20s", "0s"]).filter_map(|(l, w)| l.find(w)).collect();
    assert_eq!(columns.len(), 3);
    assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
}

#[test]
fn columns_without_a_value_are_left_out_unless_all_are_requested() {
    static T: Schema<[Column; 3]> =
        Schema { name: "t", columns: [Column::text("A"), Column::text("B"), Column::text("C").wide()] };
    let rows = [[Cell::text("x"), Cell::None, Cell::text("z")], [Cell::text("y"), Cell::text(""), Cell::None]];
    let table = Table::new(&T, rows);
    assert_eq!(table.to_text_with(&Style::default()), "A\nx\ny\n");
    let wide = Style { wide: true, ..Style::default() };
    assert_eq!(table.to_text_with(&wide), "A  B  C\nx  -  z\ny  -  -\n");
    let stream = Style { is_stream: true, ..Style::default() };
    assert_eq!(table.to_text_with(&stream), "A  B\nx  -\ny  -\n");
}

#[test]
fn a_column_is_left_out_if_every_row_has_a_usual_word() {
    static T: Schema<[Column; 2]> = Schema {
        name: "t",
        columns: [Column::name("A"), Column::exceptions("B", &["yes", "no", "off"], &["no", "off"])],
    };
    let table = |words: [&'static str; 2]| Table::new(&T, words.map(|word| [Cell::text("x"), Cell::text(word)]));
    assert_eq!(table(["no", "no"]).to_text_with(&Style::default()), "A\nx\nx\n");
    assert_eq!(table(["no", "yes"]).to_text_with(&Style::default()), "A  B\nx  no\nx  yes\n");
    let wide = Style { wide: true, ..Style::default() };
    assert_eq!(table(["no", "no"]).to_text_with(&wide), "A  B\nx  no\nx  no\n");
}

#[test]
fn a_time_is_an_age_or_a_time_of_day() {
    static T: Schema<[Column; 1]> = Schema { name: "t", columns: [Column::age("Age")] };
    let table = Table::new(&T, [[Cell::Since { time: Time(1_764_000_000_000), now: Time(1_764_000_260_000) }]]);
    assert_eq!(table.to_text_with(&Style::default()), "Age\n4m20s\n");
    let wide = Style { wide: true, ..Style::default() };
    assert_eq!(table.to_text_with(&wide), "Age\n2025-11-24T16:00:00.000Z\n");
}

#[test]
fn a_page_of_several_tables_has_headings() {
    static FIRST: Schema<[Column; 1]> = Schema { name: "first", columns: [Column::flag("A")] };
    static SECOND: Schema<[Column; 1]> = Schema { name: "second", columns: [Column::flag("A")] };
    let table = |schema| Table::new(schema, [[Cell::Flag(true)]]);
    assert_eq!(Page(vec![table(&FIRST), table(&SECOND)]).to_text(), "first:\nA\nyes\n\nsecond:\nA\nyes\n");
}

#[test]
fn control_characters_never_reach_the_terminal() {
    static T: Schema<[Column; 1]> = Schema { name: "t", columns: [Column::text("A")] };
    let table = Table::new(&T, [[Cell::text("x\u{1b}[31m\ny\u{9b}é")]]);
    assert_eq!(Page::from(table).to_text(), "A\nx\\u{1b}[31m\\ny\\u{9b}é\n");
}

#[test]
fn an_empty_table_still_shows_its_columns() {
    static T: Schema<[Column; 2]> = Schema { name: "t", columns: [Column::text("A"), Column::text("B")] };
    let table = Table::new(&T, std::iter::empty());
    assert!(table.is_empty());
    assert_eq!(Page::from(table).to_text(), "A  B\n");
}
