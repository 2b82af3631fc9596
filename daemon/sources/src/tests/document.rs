use super::*;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Example {
    size: u32,
    list: Vec<u32>,
    big: u32,
    is_on: bool,
    one: Table<Inner>,
    many: Vec<Table<Inner>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    needed: u16,
    #[serde(default)]
    kind: Kind,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    OneOf,
    Two,
    Three,
}

fn read_example(text: &str) -> (Read<Example>, Vec<String>) {
    let mut problems = Problems::new(text);
    let table = parse(text, &mut problems);
    let found = read(table.span(), table.get_ref(), "", &mut problems);
    (found, problems.into_list().iter().map(Problem::to_string).collect())
}

fn problems_of(text: &str) -> Vec<String> {
    read_example(text).1
}

#[test]
fn every_mismatch_and_every_unknown_key_is_reported_with_its_line() {
    let text = "size = \"big\"\nlist = [1,\n  \"two\"]\nbig = 4294967296\nsiez = 1\nnonsense = true\nis_on = 1.5\n";
    let (Read { value, refused }, found) = read_example(text);
    assert_eq!(
        found,
        [
            "line 1: size: expected an integer, found a string",
            "line 3: list: expected an integer, found a string",
            "line 4: big: 4294967296 is not in 0..=4294967295",
            "line 5: unknown key `siez`; did you mean `size`?",
            "line 6: unknown key `nonsense`; known here: size, list, big, is_on, one, many",
            "line 7: is_on: expected true or false, found a float",
        ]
    );
    assert_eq!(value, Example { list: vec![1], ..Example::default() });
    assert_eq!(
        refused.into_iter().collect::<BTreeSet<_>>(),
        ["big", "is_on", "list", "size"].map(str::to_owned).into()
    );
}

#[test]
fn every_table_of_an_array_is_read() {
    let text = "many = [{ needed = 70000 },\n{},\n{ needed = 1, kind = \"four\" },\n{ needed = -1, kind = 3, x = 1 }]\n\
                [[one]]\nneeded = 1\n";
    assert_eq!(
        problems_of(text),
        [
            "line 1: many.needed: 70000 is not in 0..=65535",
            "line 2: many: has no needed; add needed = \"…\"",
            "line 3: many.kind: `four` is not one of the choices (expected \"one-of\", \"two\" or \"three\")",
            "line 4: many.kind: expected a string",
            "line 4: many.needed: -1 is not in 0..=65535",
            "line 4: unknown key `many.x`; known here: needed, kind",
            "line 5: one: expected a table, found an array",
        ]
    );
}

#[test]
fn several_syntax_errors_are_reported_at_once() {
    let found = problems_of("a = \nb = 1\nc = = 2\n");
    assert!(found.iter().any(|p| p.starts_with("line 1: not valid TOML")), "{found:?}");
    assert!(found.iter().any(|p| p.starts_with("line 3: not valid TOML")), "{found:?}");
}

#[test]
fn tables_must_be_tables() {
    assert_eq!(
        problems_of("one = 1\nmany = [1]\n"),
        ["line 1: one: expected a table, found an integer", "line 2: many: expected a table, found an integer"]
    );
    assert_eq!(problems_of("one = []\nmany = 3\n").len(), 2);
}

#[test]
fn lines_are_counted_from_one() {
    let problems = Problems::new("a\nb\n\nd");
    assert_eq!([0, 1, 2, 4, 5, 99].map(|at| problems.line(at)), [1, 1, 2, 3, 4, 4]);
}

#[test]
fn a_flood_of_problems_is_cut() {
    let text = "list = [".to_owned() + &"\"a\",\n".repeat(1000) + "]";
    let found = problems_of(&text);
    assert_eq!(found.len(), MAX_PROBLEMS + 1);
    assert_eq!(found[MAX_PROBLEMS], "there are more problems; correct these first");
}

#[test]
fn the_nearest_key_is_suggested() {
    let suggested = |written: &str| nearest(["max-slots", "max-services", "name", "zone"].into_iter(), written);
    assert_eq!(suggested("max_slots"), Some("max-slots"));
    assert_eq!(suggested("Max-Slot"), Some("max-slots"));
    assert_eq!(suggested("nmae"), Some("name"));
    assert_eq!(suggested("zoen"), Some("zone"));
    assert_eq!(suggested("bypass"), None);
    assert_eq!(suggested(&"n".repeat(1 << 20)), None);
}
