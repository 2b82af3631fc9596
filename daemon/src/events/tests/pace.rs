use super::*;

#[test]
fn one_namespace_that_refuses_silences_no_other() {
    let mut pace = Pace::default();
    let [a, b, c] = ["a", "b", "c"].map(Arc::<str>::from);
    let terminated = "unable to create new content in namespace a because it is being terminated";
    assert!((0..100).all(|now| !pace.refused(now, &a, terminated)));
    assert!(!pace.refused(100, &b, "exceeded quota: events") && !pace.is_quiet(100));
    pace.written();
    assert!(!pace.refused(101, &c, terminated) && !pace.refused(102, &a, terminated), "b took one");
    assert!(pace.refused(103, &b, terminated), "three in a row");
    assert!(pace.is_quiet(103 + REFUSED_FOR - 1) && !pace.is_quiet(103 + REFUSED_FOR));
    assert!(!pace.refused(103 + REFUSED_FOR, &b, terminated), "counted anew");
}

#[test]
fn what_rbac_refuses_is_refused_everywhere() {
    let mut pace = Pace::default();
    let why =
        r#"events is forbidden: User "nodelb" cannot create resource "events" in API group "" in the namespace "a""#;
    assert!(pace.refused(7, &"a".into(), why) && pace.is_quiet(7));
}

#[test]
fn pauses_double_to_minutes() {
    let mut pace = Pace::default();
    let mut pauses = Vec::new();
    let mut now = 0;
    for _ in 0..9 {
        pace.failed(now, 0);
        let until = (now..).find(|at| !pace.is_quiet(*at)).unwrap();
        pauses.push(until - now);
        now = until;
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    pace.written();
    pace.failed(now, 60);
    assert!(pace.is_quiet(now + 59) && !pace.is_quiet(now + 60), "as long as it asks for");
}
