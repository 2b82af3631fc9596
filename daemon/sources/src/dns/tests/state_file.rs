use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use nodelb_core::model::named::RecordType;

fn saved() -> Saved {
    let question = Question { name: DnsName::of_labels("web.example").unwrap(), record: RecordType::A };
    let records = Records::Addresses(vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
    let held = Held { problem: "SERVFAIL".into(), gone_since: Some((Moment(70_000), 1_764_000_000)) };
    let held = [(question.clone(), held)].into();
    let answers: BTreeMap<_, _> = [(question, Known { records, server: "192.0.2.53:53".into(), since: 9 })].into();
    let question = Question { name: DnsName::of_labels("srv.example").unwrap(), record: RecordType::Srv };
    let priorities = vec![vec![NamedAddress { addr: "192.0.2.9".parse().unwrap(), srv: Some((80, 1)) }]];
    let used = NameRecords { priorities, server: "192.0.2.53:53".into(), since: 8, is_recalled: true };
    Saved { answers, used: [(question, used)].into(), held }
}

#[test]
fn the_file_has_what_was_written_and_hostile_contents_are_left_out() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("names.json");
    write(&path, &saved()).unwrap();
    assert_eq!(read(&path).unwrap(), saved());
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in [("web.example", "w\\u001b.example"), ("web.example", "WEB.example"), ("web.example", "")] {
        std::fs::write(&path, text.replace(from, to)).unwrap();
        assert_eq!(read(&path).unwrap(), Saved { used: saved().used, ..Saved::default() }, "{to}");
    }
    for (from, to) in [("192.0.2.9", "0.0.0.0"), ("192.0.2.9", "127.0.0.1"), ("80,", "0,")] {
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        assert_eq!(read(&path).unwrap(), Saved { used: BTreeMap::new(), ..saved() }, "{to}");
    }
    std::fs::write(&path, text.replace(&boot_id().unwrap(), "another")).unwrap();
    assert_eq!(read(&path).unwrap(), Saved { held: BTreeMap::new(), ..saved() }, "times of another boot");
    std::fs::write(&path, "{").unwrap();
    assert!(read(&path).is_err() && scratch.path().join("names.json.corrupt").exists());
}

/// Earlier versions store the answers alone, and ignore what they do not know.
#[test]
fn files_of_an_earlier_version_are_read_and_an_earlier_version_reads_this_one() {
    #[derive(serde::Deserialize)]
    struct Earlier {
        version: u32,
        answers: Vec<Entry>,
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("names.json");
    let old = r#"{"version":1,"answers":[{"question":{"name":"web.example","record":"A"},"records":{"addresses":["192.0.2.1","2001:db8::1"]},"server":"192.0.2.53:53","since":9}]}"#;
    std::fs::write(&path, old).unwrap();
    assert_eq!(read(&path).unwrap(), Saved { answers: saved().answers, ..Saved::default() });
    write(&path, &saved()).unwrap();
    let earlier: Earlier = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((earlier.version, earlier.answers.len()), (1, 1));
}

/// A disk with errors at the start: what it had was replaced by what was found since then.
#[tokio::test]
async fn what_could_not_be_read_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let [state, aside] = ["state", "aside"].map(|name| directory.path().join(name));
    write(&aside.join(NAME), &saved()).unwrap();
    std::fs::write(&state, "a file where the directory should be").unwrap();
    let limits = Limits { every: Duration::ZERO, retry: Duration::from_millis(1), timeout: Duration::from_secs(20) };
    let mut stored = load(&state, limits).await;
    std::fs::remove_file(&state).unwrap();
    std::fs::rename(&aside, &state).unwrap();
    let new = Saved { answers: saved().answers, ..Saved::default() };
    stored.save(new.clone());
    stored.close(new).await;
    assert_eq!(read(&state.join(NAME)).unwrap(), saved());
}
