mod document;

use super::*;

#[test]
fn clients_are_counted_again_only_after_a_while() {
    let (mut counted, start) = (Counted::default(), Instant::now());
    assert_eq!(counted.number(start, || Some(3)), Some(3));
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY / 2, || panic!("too early")), Some(3));
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY, || None), None);
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY, || panic!("too early")), None);
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY * 2, || Some(4)), Some(4));
}
