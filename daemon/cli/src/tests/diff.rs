use super::*;

#[test]
fn an_answer_reads_as_the_daemon_would_have_put_it() {
    let row = r#"{"between":"memory/kernel","what":"198.51.100.10:80/TCP","service":"shop/web","source":null,
        "memory":"leads to shop/web:http/TCP/IPv4","kernel":"absent","likely_cause":"deleted","what_happens":"repaired"}"#;
    let answer = |rows: &str| -> Answer {
        serde_json::from_str(&format!(r#"{{"differences":[{rows}],"compared":[{{"services":3,"frontends":5}}]}}"#))
            .unwrap()
    };
    let text = page(&answer(row), Vec::new(), true).to_text();
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(lines[1][..4], ["memory/kernel", "198.51.100.10:80/TCP", "shop/web", "-"], "{text}");
    let agree = "source, memory and kernel agree: 3 services, 5 frontends; compared just now\n";
    assert_eq!(page(&answer(""), Vec::new(), true).to_text(), agree);
    let json = page(&answer(row), Vec::new(), true).to_json().unwrap();
    assert_eq!(serde_json::from_str::<Answer>(&json).unwrap().differences.len(), 1);
}
