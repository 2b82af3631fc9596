use super::*;

#[test]
fn the_ranges_that_make_sense_are_taken() {
    let text =
        br#"{"items":[{"spec":{"cidrs":["10.96.0.0/16","2001:db8::/112"]}},{"spec":{"cidrs":["nonsense"]}},{}]}"#;
    let cidrs: Vec<String> = parse(text).expect("a list").iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.96.0.0/16", "2001:db8::/112"]);
    assert!(parse(b"<html>").is_err());
}
