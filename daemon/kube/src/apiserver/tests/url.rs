use proptest::prelude::*;

use super::*;

#[test]
fn a_url_is_shown_without_its_userinfo() {
    let cases = [
        ("https://192.0.2.1:6443", "https://192.0.2.1:6443"),
        ("http://bob:hunter2@proxy:3128/", "http://…@proxy:3128/"),
        ("bob:hunter2@proxy:3128", "…@proxy:3128"),
        ("http://bob:hun/ter?2#@@proxy", "http://…@proxy"),
        ("bob:a://b@proxy", "…@proxy"),
        ("bob@x:hunter2://y", "…@x:hunter2://y"),
        ("", ""),
        ("http://a\u{1b}[2J", "http://a\\u{1b}[2J"),
    ];
    for (url, shown) in cases {
        assert_eq!(Shown(url).to_string(), shown);
        assert_eq!(format!("{:?}", Shown(url)), shown);
    }
}

proptest! {
    /// The user name and the password may contain any characters.
    #[test]
    fn no_part_of_the_userinfo_is_shown(user in "\\PC{0,8}", password in "[^\\x00]{0,8}", scheme in "(|http://|HTTPS://)") {
        let url = format!("{scheme}{user}:{password}QZSECRETQZ@proxy.example.com:3128/x");
        let shown = Shown(&url).to_string();
        prop_assert!(!shown.contains("QZSECRETQZ"), "{shown}");
        prop_assert!(shown.ends_with("…@proxy.example.com:3128/x"), "{shown}");
    }
}
