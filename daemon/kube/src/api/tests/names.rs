use super::*;

#[test]
fn repeated_names_are_kept_once() {
    let mut strings = Names::default();
    let (first, second) = (strings.shared("node-1"), strings.shared("node-1"));
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(strings.non_empty(Some("")), None);
    assert_eq!(strings.hints(&EndpointHints::default()), None);
}
