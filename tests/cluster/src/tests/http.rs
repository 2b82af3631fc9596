use super::*;

#[test]
fn answers() {
    assert_eq!(parse("HTTP/1.0 200 OK\r\nA: b\r\n\r\nbody"), Some((200, "body".to_owned())));
    assert_eq!(parse("HTTP/1.0 503 No\r\n\r\n"), Some((503, String::new())));
    assert_eq!(parse("SSH-2.0"), None);
}
