use super::*;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

#[test]
fn reads_like_kubectl() {
    let cases = [
        (0, "0s"),
        (999, "0s"),
        (119 * SECOND, "119s"),
        (2 * MINUTE, "2m"),
        (4 * MINUTE + 20 * SECOND, "4m20s"),
        (10 * MINUTE + 59 * SECOND, "10m"),
        (179 * MINUTE, "179m"),
        (3 * HOUR + 12 * MINUTE, "3h12m"),
        (8 * HOUR + 59 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (5 * DAY, "5d"),
        (5 * DAY + 3 * HOUR, "5d3h"),
        (8 * DAY + 3 * HOUR, "8d"),
        (729 * DAY, "729d"),
        (730 * DAY, "2y"),
        (800 * DAY, "2y70d"),
    ];
    for (millis, text) in cases {
        assert_eq!(human(millis), text, "{millis} ms");
    }
}

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
