use proptest::prelude::*;

use super::*;

#[test]
fn names_are_complete_and_in_lower_case() {
    for (text, name) in [
        ("Web.Example.COM", "web.example.com"),
        ("web.example.com.", "web.example.com"),
        ("_http._tcp.web.service.consul", "_http._tcp.web.service.consul"),
        ("web.", "web"),
        ("1.2.example", "1.2.example"),
    ] {
        assert_eq!(DnsName::parse(text).unwrap().as_str(), name);
    }
}

#[test]
fn a_refused_name_says_what_to_write() {
    let long = format!("{}.example", "a".repeat(64));
    let longer = vec!["abcdefgh"; 30].join(".");
    for (text, problem) in [
        ("web", "search domains are not applied; write one like web.example.com"),
        ("", "empty label"),
        (".", "empty label"),
        ("web..example", "empty label"),
        (".web.example", "empty label"),
        ("b\u{fc}cher.example", "write such names in ASCII"),
        ("web example.com", "` ` is not a letter"),
        ("web.example.com/x", "`/` is not a letter"),
        ("\u{1b}[31m.example", "`\\u{1b}` is not a letter"),
        (&long, "a label has more than 63 characters"),
        (&longer, "more than 253 characters"),
    ] {
        let error = DnsName::parse(text).unwrap_err();
        assert!(error.contains(problem), "{text}: {error}");
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}

proptest! {
    /// Arbitrary text is a name or refused with a reason that a terminal can show; a name is equal to its own form.
    #[test]
    fn arbitrary_names_are_read_or_refused(text in "[a-zA-Z0-9._:-]{0,80}|\\PC{0,300}|.{0,40}") {
        match DnsName::parse(&text) {
            Ok(name) => {
                prop_assert_eq!(DnsName::of_labels(name.as_str()), Ok(name.clone()));
                prop_assert_eq!(DnsName::parse(&format!("{name}.")), Ok(name));
            }
            Err(why) => prop_assert!(!why.chars().any(char::is_control), "{}", why),
        }
    }
}
