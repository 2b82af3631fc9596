use super::*;

#[test]
fn characters_that_control_a_terminal_are_replaced() {
    assert_eq!(name("kubectl-edit \u{e9}"), "kubectl-edit \u{e9}");
    assert_eq!(name("a\nb\u{1b}[2Jc\u{202e}d"), "a\u{fffd}b\u{fffd}[2Jc\u{fffd}d");
    for invisible in
        ['\u{200b}', '\u{200f}', '\u{061c}', '\u{feff}', '\u{2060}', '\u{e0001}', '\u{e0041}', '\u{9b}', '\u{85}']
    {
        assert_eq!(name(&format!("a{invisible}b")), "a\u{fffd}b", "{invisible:?}");
    }
}

#[test]
fn a_text_that_is_too_long_is_cut() {
    let long = "\u{e9}".repeat(1000);
    assert_eq!((name(&long).chars().count(), sentence(&long).chars().count()), (MAX_NAME + 1, MAX_SENTENCE + 1));
    assert_eq!(name(&"x".repeat(MAX_NAME)), "x".repeat(MAX_NAME));
}

#[test]
fn a_list_names_the_first_items_and_counts_the_others() {
    assert_eq!(listed(["a"; 0], 2), "");
    assert_eq!(listed(["a", "b"], 2), "a, b");
    assert_eq!(listed(["a", "b", "c", "d", "e"], 2), "a, b and 3 more");
}
