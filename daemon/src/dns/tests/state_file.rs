use super::*;
use crate::files::named::RecordType;

#[test]
fn the_file_has_what_was_written_and_hostile_contents_are_left_out() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("names.json");
    let question = Question { name: DnsName::of_labels("web.example").unwrap(), record: RecordType::A };
    let records = Records::Addresses(vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
    let answers: Answers = [(question, Known { records, server: "192.0.2.53:53".into(), since: 9 })].into();
    write(&path, &answers).unwrap();
    assert_eq!(read(&path).unwrap(), answers);
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in [("web.example", "w\\u001b.example"), ("web.example", "WEB.example"), ("web.example", "")] {
        std::fs::write(&path, text.replace(from, to)).unwrap();
        assert_eq!(read(&path).unwrap(), Answers::new(), "{to}");
    }
    std::fs::write(&path, "{").unwrap();
    assert!(read(&path).is_err() && scratch.path().join("names.json.corrupt").exists());
}
