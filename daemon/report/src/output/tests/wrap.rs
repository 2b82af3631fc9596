use super::fitted;

#[test]
fn wide_lines_continue_and_the_others_stay_as_they_are() {
    let text = "first\n  | indented, and wider than the others\n\n^^  a sentence  in words that is wider\n";
    assert_eq!(fitted(text, None), text);
    assert_eq!(fitted(text, Some(80)), text);
    let expected = "first\n  | indented, and wider\n      than the others\n\n\
                    ^^  a sentence  in\n    words that is wider\n";
    assert_eq!(fitted(text, Some(23)), expected);
}

#[test]
fn no_line_is_wider_unless_a_word_is() {
    let text = "note: nodelb.service cannot see /root/a/path/that/is/long of the host;   move the file to /etc";
    for width in 30..=110 {
        let shown = fitted(text, Some(width));
        assert!(shown.lines().all(|line| line.chars().count() <= width.max(36)), "{width}: {shown}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&shown), words(text));
    }
    assert_eq!(fitted("/one/long/word and  ", Some(8)), "/one/long/word\n    and");
    assert_eq!(fitted("ää öö üü", Some(5)), "ää öö\n    üü");
}
