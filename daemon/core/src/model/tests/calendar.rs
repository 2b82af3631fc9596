use super::utc;

#[test]
fn times_are_shown_in_utc() {
    for (seconds, expected) in [
        (0, Some("1970-01-01T00:00:00Z")),
        (951_782_399, Some("2000-02-28T23:59:59Z")),
        (951_782_400, Some("2000-02-29T00:00:00Z")),
        (951_868_800, Some("2000-03-01T00:00:00Z")),
        (4_107_542_399, Some("2100-02-28T23:59:59Z")),
        (4_107_542_400, Some("2100-03-01T00:00:00Z")),
        (253_402_207_200, Some("9999-12-30T22:00:00Z")),
        (253_402_300_800, None),
        (u64::MAX, None),
    ] {
        assert_eq!(utc(seconds).as_deref(), expected, "{seconds}");
    }
}
