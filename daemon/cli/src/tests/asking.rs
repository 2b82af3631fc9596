use super::target;

#[test]
fn a_question_is_escaped_where_it_must_be() {
    let parameters =
        [("service", "shop/web".to_owned()), ("address", "2001:db8::7".into()), ("from", "a b&c=%".into())];
    assert_eq!(target("/trace", &parameters), "/trace?service=shop/web&address=2001:db8::7&from=a%20b%26c%3D%25");
    assert_eq!(target("/sources", &[]), "/sources");
}
