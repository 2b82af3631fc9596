use super::*;

#[test]
fn timestamps() {
    for (text, expected) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2000-02-29T23:59:59Z", 951_868_799),
        ("2024-05-01T12:34:56Z", 1_714_566_896),
        ("2024-05-01T12:34:56.789z", 1_714_566_896),
        ("2024-05-01T14:34:56+02:00", 1_714_566_896),
        ("2024-05-01T07:04:56-05:30", 1_714_566_896),
        ("2100-03-01T00:00:00Z", 4_107_542_400),
        ("2016-12-31T23:59:60Z", 1_483_228_800),
    ] {
        assert_eq!(seconds(text), Some(expected), "{text}");
    }
}

#[test]
fn thousandths() {
    for (text, expected) in [
        ("2024-05-01T12:34:56Z", 1_714_566_896_000),
        ("2024-05-01T12:34:56.7Z", 1_714_566_896_700),
        ("2024-05-01T12:34:56.789123456Z", 1_714_566_896_789),
        ("2024-05-01T12:34:56.Z", 1_714_566_896_000),
    ] {
        assert_eq!(millis(text), Some(expected), "{text}");
    }
}

#[test]
fn anything_else_is_no_timestamp() {
    for text in [
        "",
        "null",
        "2024-05-01",
        "2024-05-01T12:34:56",
        "2024-13-01T00:00:00Z",
        "2024-00-01T00:00:00Z",
        "2024-01-32T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:60:00Z",
        "2024-01-01T00:00:00.xZ",
        "2024-01-01T00:00:00+2:00",
        "2024-01-01T00:00:00+24:00",
        "24-01-01T00:00:00Z",
        "+024-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "2024-01-01T00:00:00Zé",
        "2024-01-01T00:00:00+é",
    ] {
        assert_eq!(seconds(text), None, "{text}");
    }
}

#[test]
fn days_follow_one_another() {
    let mut expected = days_since_1970(1900, 1, 1);
    for year in 1900..2200 {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, length) in (1..).zip(lengths) {
            for day in 1..=length {
                assert_eq!(days_since_1970(year, month, day), expected, "{year}-{month}-{day}");
                expected += 1;
            }
        }
    }
}
