use super::*;

fn problems_of(text: &str, read: impl FnOnce(&mut Fields<'_, '_>, &mut Problems)) -> Vec<String> {
    let mut problems = Problems::of(text);
    let table = parse(text, &mut problems);
    let mut fields = Fields::of(table.get_ref(), "");
    read(&mut fields, &mut problems);
    fields.refuse_others(&mut problems);
    problems.into_list().iter().map(Problem::to_string).collect()
}

#[test]
fn every_mismatch_and_every_unknown_key_is_reported_with_its_line() {
    let text = "size = \"big\"\nlist = [1,\n  \"two\"]\nbig = 4294967296\nsiez = 1\nnonsense = true\n";
    let found = problems_of(text, |fields, problems| {
        assert_eq!(fields.read::<u32>("size", problems), None);
        assert_eq!(fields.read::<Vec<u32>>("list", problems), None);
        assert_eq!(fields.read::<u32>("big", problems), None);
    });
    assert_eq!(
        found,
        [
            "line 1: size: expected an integer, found a string",
            "line 3: list: expected an integer, found a string",
            "line 4: big: 4294967296 is not in 0..=4294967295",
            "line 5: unknown key `siez`; did you mean `size`?",
            "line 6: unknown key `nonsense`; known here: size, list, big",
        ]
    );
}

#[test]
fn several_syntax_errors_are_reported_at_once() {
    let found = problems_of("a = \nb = 1\nc = = 2\n", |_, _| {});
    assert!(found.iter().any(|p| p.starts_with("line 1: not valid TOML")), "{found:?}");
    assert!(found.iter().any(|p| p.starts_with("line 3: not valid TOML")), "{found:?}");
}

#[test]
fn tables_must_be_tables() {
    let found = problems_of("one = 1\nmany = [1]\nfew = 3\n", |fields, problems| {
        assert!(fields.table("one", problems).is_none());
        assert!(fields.tables("many", problems).is_empty());
        assert!(fields.tables("few", problems).is_empty());
        assert!(fields.tables("none", problems).is_empty());
    });
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[1].contains("array of tables"), "{found:?}");
}

#[test]
fn lines_are_counted_from_one() {
    let problems = Problems::of("a\nb\n\nd");
    assert_eq!([0, 1, 2, 4, 5, 99].map(|at| problems.line(at)), [1, 1, 2, 3, 4, 4]);
}

#[test]
fn a_flood_of_problems_is_cut() {
    let text = "x = [".to_owned() + &"\"a\",".repeat(1000) + "]";
    let found = problems_of(&text, |fields, problems| {
        fields.read::<Vec<u32>>("x", problems);
    });
    assert_eq!(found.len(), MAX_PROBLEMS + 1);
    assert_eq!(found[MAX_PROBLEMS], "900 more problems; correct the first ones");
}

#[test]
fn the_nearest_key_is_suggested() {
    let known = ["max-slots", "max-services", "name", "zone"].map(str::to_owned);
    let suggested = |written: &str| nearest(&known, written).map(String::as_str);
    assert_eq!(suggested("max_slots"), Some("max-slots"));
    assert_eq!(suggested("Max-Slot"), Some("max-slots"));
    assert_eq!(suggested("nmae"), Some("name"));
    assert_eq!(suggested("zoen"), Some("zone"));
    assert_eq!(suggested("bypass"), None);
    assert_eq!(suggested(&"n".repeat(1 << 20)), None);
}
