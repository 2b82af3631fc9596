use super::by_name;

#[test]
fn programs_are_counted_by_name_with_some_of_their_ids() {
    let named =
        |ids: std::ops::Range<u32>, name: Option<&str>| ids.map(|id| (id, name.map(str::to_owned))).collect::<Vec<_>>();
    let programs = [named(1..2, Some("firewall")), named(10..73, Some("agent"))].concat();
    assert_eq!(by_name(&programs), "63 agent (ids 10, 11, 12, 13 and 59 more); 1 firewall (id 1)");
    assert_eq!(by_name(&named(7..9, None)), "2 of a name that only root can see (ids 7, 8)");
}
