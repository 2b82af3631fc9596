use super::*;

/// After the removal of the pin directory, three tables had the same 2,400 characters.
#[test]
fn repairs_are_one_sentence_that_says_whether_connections_were_affected() {
    let repair = |hook: &str, lasted| Repair { what: format!("hook {hook}: its link was detached"), lasted };
    let pins: Vec<Repair> = ["a", "b", "c"].map(|hook| repair(hook, true)).into();
    let [lost, lasted] = &repaired(&[pins, vec![repair("connect4", false)]].concat())[..] else { panic!() };
    assert!(
        lost.starts_with("reattached 1 program ") && lost.ends_with("up to 10 s: hook connect4: its link was detached")
    );
    let expected = "recreated 3 pins that another process had removed or hidden; the programs stayed attached, and no \
                    connection was affected (the journal names them)";
    assert_eq!(lasted, expected);
    assert_eq!(repaired(&[]), [""; 0]);
}
