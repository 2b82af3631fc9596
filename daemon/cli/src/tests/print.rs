use super::*;

#[test]
fn only_text_and_own_colours_reach_the_terminal() {
    let cases = [
        ("a\tb\nü\n", "a\tb\nü\n"),
        ("\u{1b}[31mError\u{1b}[0m", "\u{1b}[31mError\u{1b}[0m"),
        ("\u{1b}]0;title\u{7}", "\u{fffd}]0;title\u{fffd}"),
        ("\u{1b}[2J\u{1b}[31;5m", "\u{fffd}[2J\u{fffd}[31;5m"),
        ("\u{9b}31m\u{85}", "\u{fffd}31m\u{fffd}"),
        ("{\"a\":\"\u{9d}\"}\r\n", "{\"a\":\"\u{fffd}\"}\u{fffd}\n"),
    ];
    for (text, shown) in cases {
        assert_eq!(sanitize(text.as_bytes()), shown);
    }
    assert_eq!(sanitize(b"\xff\x9b1m"), "\u{fffd}\u{fffd}1m");
}

#[test]
fn a_text_may_be_cut_anywhere() {
    let text = "ä\u{1b}[31m€\u{1b}[0m\u{1b}[2J\u{9b}\n";
    let whole = sanitize(text.as_bytes());
    for cut in 0..=text.len() {
        for second in cut..=text.len() {
            let mut filter = Sanitizer::default();
            let mut shown = filter.pass(&text.as_bytes()[..cut]);
            shown += &filter.pass(&text.as_bytes()[cut..second]);
            shown += &filter.pass(&text.as_bytes()[second..]);
            assert_eq!(shown, whole, "cut at {cut} and {second}");
        }
    }
    let mut filter = Sanitizer::default();
    assert_eq!(filter.pass(b"a line\n"), "a line\n", "nothing is kept that need not be");
}

#[test]
fn a_text_is_written_over_the_previous_one() {
    let shown = overwriting("a\u{1b}[2J\nb\n");
    assert_eq!(
        shown, "\u{1b}[Ha\u{fffd}[2J\u{1b}[K\nb\u{1b}[K\n\u{1b}[J",
        "an escape sequence of the daemon does not pass"
    );
}
