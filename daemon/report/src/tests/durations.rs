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
