use super::*;

#[test]
fn a_record_has_the_first_program_of_each_direction() {
    let mut record = [0; RECORD];
    record[0] = 7;
    record[4] = 3;
    record[8] = 21;
    record[12..17].copy_from_slice(b"other");
    record[28..48].copy_from_slice(b"\x16\0\0\0sixteen_bytes_xx");
    let parsed = parse(&record).unwrap();
    assert_eq!((parsed.link, parsed.ifindex), (7, 3));
    assert_eq!(*parsed.first(Direction::In), (21, "other".into()));
    assert_eq!(*parsed.first(Direction::Out), (22, "sixteen_bytes_xx".into()));
}
