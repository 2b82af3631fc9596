use super::*;

#[test]
fn durations_are_read_and_written() {
    let cases = [
        ("3h", 10_800_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s", 93_784_000),
        ("365d", 31_536_000_000),
        ("1m1s1ms", 61_001),
        ("500ms", 500),
    ];
    for (text, millis) in cases {
        assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        assert_eq!(exact(Duration::from_millis(millis)), text);
    }
    assert_eq!(parse("90s"), Some(Duration::from_secs(90)));
    assert_eq!(exact(Duration::ZERO), "0s");
    for text in ["h", "3", "3 h", "30m1h", "1h1h", "1ms1s", "99999999999999999999d", "1é", "-1s", "1.5h"] {
        assert_eq!(parse(text), None, "{text}");
    }
}
