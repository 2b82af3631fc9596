use super::*;

#[test]
fn the_ranges_that_make_sense_are_taken() {
    let text =
        br#"{"items":[{"spec":{"cidrs":["10.96.0.0/16","2001:db8::/112"]}},{"spec":{"cidrs":["nonsense"]}},{}]}"#;
    let list = serde_json::from_slice(text).expect("a list");
    let cidrs: Vec<String> = networks(list).iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.96.0.0/16", "2001:db8::/112"]);
    assert!(serde_json::from_slice::<ObjectList<ServiceCIDR>>(b"<html>").is_err());
}
