use super::*;

#[test]
fn ports_of_sockets_are_recognised() {
    for (setting, is_shared) in [
        ("32768\t60999\n", false),
        ("29999\t60999\n", true),
        ("1024\t10000\n", true),
        ("1024\t9999\n", false),
        ("1024\t65535\n", true),
        ("15000\t15001\n", true),
        ("", false),
        ("1024\n", false),
    ] {
        assert_eq!(overlaps(setting, &(10_000..=29_999)), is_shared, "{setting:?}");
    }
}
