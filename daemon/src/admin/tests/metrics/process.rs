use super::super::*;

const STAT: &str = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 9 0 0 0 250 150 0 0 20 0 3 0 12345 9 9 9";

#[test]
fn figures_are_read_whatever_the_name_of_the_process() {
    assert_eq!(cpu_seconds(STAT), Some(4.0));
    assert_eq!(start_time(STAT, "cpu 1 2\nbtime 1700000000\nprocesses 3\n"), Some(1_700_000_123.45));
    assert_eq!(resident_bytes("Name:\tnodelb\nVmRSS:\t   20480 kB\n"), Some(20_971_520));
}

#[test]
fn invalid_lines_are_skipped() {
    assert_eq!(cpu_seconds(""), None);
    assert_eq!(cpu_seconds("1 (x) S"), None);
    assert_eq!(start_time(STAT, "cpu 1"), None);
    assert_eq!(resident_bytes("VmRSS: many kB"), None);
}

#[test]
fn this_process_has_figures() {
    let mut exposition = Exposition::default();
    process(&mut exposition);
    let text = exposition.text().unwrap();
    for metric in ["process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes"] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{metric} "))), "{metric}: {text}");
    }
}
