use std::fs::File;
use std::os::unix::fs::symlink;

use nodelb_core::history::{Event, History, Stamp, What};
use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{PortKey, Source};
use tempfile::TempDir;

use super::super::*;

fn changed(service: &str) -> Event {
    let service = service.parse().unwrap();
    let port = PortKey { service, port: "http".into(), protocol: Protocol::Tcp, family: Family::Ipv4 };
    Event::for_port(&Arc::new(port), Some(Source::Files), What::Changed, Cause::default())
}

/// Records with these numbers.
fn records(numbers: std::ops::RangeInclusive<u64>) -> Vec<Arc<Record>> {
    let mut history = History::default();
    history.skip(numbers.start() - 1);
    for number in numbers {
        history.add(changed(&format!("shop/s{number}")), Stamp { at: number, to_kernel: 0 });
    }
    history.after(0).cloned().collect()
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The numbers found, and the number of invalid lines.
fn found(directory: &TempDir) -> (Vec<u64>, usize) {
    let found = read_files(directory.path()).unwrap();
    (found.records.iter().map(|record| record.sequence).collect(), found.unreadable)
}

fn add(directory: &TempDir, text: &[u8]) {
    let mut file = File::options().create(true).append(true).open(file_path(directory.path())).unwrap();
    file.write_all(text).unwrap();
}

#[test]
fn what_was_written_is_read_in_order() {
    let directory = directory();
    assert_eq!(found(&directory), (vec![], 0));
    append(directory.path(), &records(1..=2), &History::default()).unwrap();
    append(directory.path(), &records(2..=4), &History::default()).unwrap();
    assert_eq!(found(&directory), (vec![1, 2, 3, 4], 0));
    let read = read_files(directory.path()).unwrap();
    assert_eq!(read.records.last(), records(4..=4).first().map(|record| &**record));
}

#[test]
fn a_directory_that_is_not_there_is_made() {
    let directory = directory();
    assert!(read_files(&directory.path().join("a/b")).unwrap().records.is_empty());
    append(&directory.path().join("a/b"), &records(1..=1), &History::default()).unwrap();
}

/// Power fails at any position within a line: all records before and after it can still be read.
#[test]
fn a_line_that_was_cut_off_costs_that_record_only() {
    let whole = serde_json::to_vec(&*records(3..=3)[0]).unwrap();
    for length in 1..whole.len() {
        let directory = directory();
        append(directory.path(), &records(1..=2), &History::default()).unwrap();
        add(&directory, &whole[..length]);
        append(directory.path(), &records(4..=4), &History::default()).unwrap();
        assert_eq!(found(&directory), (vec![1, 2, 4], 1), "cut off after {length} bytes");
    }
}

#[test]
fn nonsense_costs_nothing_else() {
    let directory = directory();
    append(directory.path(), &records(1..=1), &History::default()).unwrap();
    add(&directory, b"\0\0\0\0\n\n[]\n{\"sequence\":2}\n\xff\xfe\n");
    add(&directory, format!("{{\"sequence\":{}\n", "7".repeat(1 << 20)).as_bytes());
    add(&directory, &[b'['; 4096]);
    append(directory.path(), &records(3..=3), &History::default()).unwrap();
    assert_eq!(found(&directory), (vec![1, 3], 6));
}

#[test]
fn a_large_file_makes_room_for_a_new_one_and_two_are_all_there_are() {
    let directory = directory();
    let mut written = 0;
    for batch in 0..40 {
        written = 2_000 * (batch + 1);
        append(directory.path(), &records(written - 1_999..=written), &History::default()).unwrap();
    }
    let sizes: u64 =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    assert!(sizes < 3 * MAX_FILE, "{sizes}");
    let (numbers, unreadable) = found(&directory);
    assert!(numbers.len() > 4_096 && numbers.is_sorted() && unreadable == 0, "{}", numbers.len());
    assert_eq!(numbers.last().copied(), Some(written));
}

/// The problems that are derived from starts and repairs would end with the file that has them.
#[test]
fn a_new_file_keeps_what_the_daemon_counts() {
    let mut history = History::default();
    history.add(Event::for_daemon(What::Started, "for a test"), Stamp::default());
    for number in 0..4_096 {
        let detail = Some("x".repeat(1_000).into());
        history.add(Event { detail, ..changed(&format!("shop/s{number}")) }, Stamp::default());
    }
    let text = String::from_utf8(repeated(&history, u64::MAX).unwrap()).unwrap();
    assert!(text.len() <= MAX_REPEATED && text.lines().count() < 4_000, "not all of them: {}", text.len());
    let read = |line: &str| serde_json::from_str::<Record>(line).unwrap();
    let sequences: Vec<u64> = text.lines().map(|line| read(line).sequence).collect();
    assert!(sequences.is_sorted() && sequences[0] == 1 && sequences.last() == Some(&4_097), "{sequences:?}");
}

#[test]
fn of_a_file_that_is_far_too_large_only_the_end_is_read() {
    let directory = directory();
    File::create(file_path(directory.path())).unwrap().set_len(1 << 40).unwrap();
    let mut text = vec![b'\n'];
    text.extend(serde_json::to_vec(&*records(5..=5)[0]).unwrap());
    add(&directory, &text);
    assert_eq!(found(&directory), (vec![5], 0));
    append(directory.path(), &records(6..=6), &History::default()).unwrap();
    assert_eq!(found(&directory).0, [5, 6]);
}

#[test]
fn symbolic_links_are_not_followed() {
    let directory = directory();
    let target = directory.path().join("target");
    symlink(&target, file_path(directory.path())).unwrap();
    assert!(append(directory.path(), &records(1..=1), &History::default()).is_err());
    assert!(read_files(directory.path()).is_err() && !target.exists());
}
